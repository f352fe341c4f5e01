"""python -m embodied_rl.benchmarks.lab.deploy_film: a film of the twin and a picture of the dashboard.

    python -m embodied_rl.benchmarks.lab.deploy_film --film docs/images/twin.gif --dashboard docs/images/dashboard.svg

Episodes run through server, bridge and twin over ROS 2 until one succeeds. The film is made from its recording: what
the bridge saw in each control step, every second one.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from embodied_rl.cli.deploy import DeployCommand
from embodied_rl.errors import UserError
from embodied_rl.jobs.deploy import held_out, launcher_config
from embodied_rl.real_robot.deploy.dashboard import dashboard
from embodied_rl.real_robot.deploy.episodes import Episode, run_episode
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.record.episodes import RecordedEpisode, read_episodes, read_images
from embodied_rl.real_robot.record.reader import RecordingFile
from embodied_rl.real_robot.ros2.environment import enter, ros_environment
from embodied_rl.telemetry.video import captioned, tile, write_gif
from embodied_rl.types import Array

MODULE = "embodied_rl.benchmarks.lab.deploy_film"
FPS, STRIDE, LAST = 10, 2, 10
"""Pictures a second, control steps between two of them, and how often the last one is shown."""


def main() -> int:
    """Run the episodes and write both."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--film", type=Path, required=True, help="the GIF")
    parser.add_argument("--dashboard", type=Path, required=True, help="the SVG")
    parser.add_argument("--checkpoint", default="shipped")
    parser.add_argument("--suite", default="tabletop_spatial")
    parser.add_argument("--episodes", type=int, default=10, help="tries, until one succeeds")
    parser.add_argument("--size", type=int, default=192, help="side of each camera's picture")
    parser.add_argument("--speed", type=float, default=1.0, help="the twin's seconds in one of the wall clock")
    options = parser.parse_args()
    environment = ros_environment(domain=1 + os.getpid() % 100, loopback=True)
    enter(MODULE, sys.argv[1:], environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes are ended on the way out
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder) / "run.mcap"
        command = DeployCommand(checkpoint=options.checkpoint, suite=options.suite, speed=options.speed)
        config = launcher_config(command, environment)
        assert config.twin is not None
        bridge, twin = replace(config.bridge, record=str(recording)), replace(config.twin, image_size=options.size)
        status, done = run(replace(config, bridge=bridge, twin=twin), held_out(options.suite, options.episodes))
        svg(options.dashboard, {**status, "recording": {**status["recording"], "file": "run.mcap"}}, done)
        frames = film(RecordingFile(recording), success=done[-1].success)
    write_gif(options.film, frames, FPS)
    for path in (options.film, options.dashboard):
        print(f"wrote {path}, {path.stat().st_size / 1e6:.2f} MB")
    return 0


def run(config: LauncherConfig, plan: list[tuple[str, int, float]]) -> tuple[dict[str, Any], list[Episode]]:
    """Run episodes until one succeeds: the last status while the arm moved, and the episodes."""
    done: list[Episode] = []
    with Launcher(config) as launcher:
        assert launcher.twin is not None
        sampler = _Sampler(launcher)
        for task, state, horizon_s in plan:
            done.append(run_episode(launcher.bridge, launcher.twin, task, state, horizon_s))
            print(done[-1], flush=True)
            if done[-1].success:
                break
        sampler.close()
    return sampler.running, done


class _Sampler:
    """Keeps the last status in which the arm ran, as the dashboard would show it."""

    def __init__(self, launcher: Launcher) -> None:
        self.running: dict[str, Any] = {}
        self._launcher, self._stopping = launcher, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more.

        Raises:
            UserError: The arm was never seen running.
        """
        self._stopping.set()
        self._thread.join()
        if not self.running:
            raise UserError("the bridge never said that the arm runs")

    def _look(self) -> None:
        while not self._stopping.wait(0.1):
            status = self._launcher.bridge.status
            if status.get("state") == "running" and status["step_ms"] and not status["faults"]:
                self.running = dict(status)


def svg(path: Path, status: Mapping[str, Any], done: list[Episode]) -> None:
    """The dashboard as `deploy` shows it in a terminal, without fonts from elsewhere."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=100, file=nowhere, force_terminal=True)
        console.print(dashboard(status, done[:-1], f"episode {len(done)}"))
        text = console.export_svg(title="embodied-rl deploy --robot twin")
    path.write_text(re.sub(r"@font-face \{.*?\}\s*", "", text, flags=re.DOTALL), encoding="utf-8")


def film(recording: RecordingFile, *, success: bool) -> list[Array]:
    """Frames of the last episode, uint8 [H, W, 3]: its cameras side by side under the instruction and the time."""
    episode = read_episodes(recording)[-1]
    cameras = recording.session.cameras
    wanted = episode.images(cameras)[::STRIDE]
    images = dict(read_images(recording, {image for row in wanted for image in row}))
    frames = [
        captioned(tile([images[image] for image in row]), caption(episode, index * STRIDE))
        for index, row in enumerate(wanted)
    ]
    last = tile([images[image] for image in wanted[-1]])
    return frames + [captioned(last, caption(episode, len(episode.steps) - 1), success)] * LAST


def caption(episode: RecordedEpisode, step: int) -> str:
    """The time since the episode began, and the instruction."""
    seconds = (episode.steps[step].time_ns - episode.steps[0].time_ns) / 1e9
    return f"{seconds:.1f} s  {episode.instruction}"


if __name__ == "__main__":
    sys.exit(main())

"""python -m embodied_rl.benchmarks.deploy: a policy on the twin over ROS 2, its success and timing, and fault drills.

Server, twin and bridge are processes of their own; figures come from their messages.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.benchmarks.deploy_cameras import button_to_last_command
from embodied_rl.benchmarks.deploy_faults import Drills
from embodied_rl.cli.deploy import DeployCommand
from embodied_rl.errors import UserError
from embodied_rl.jobs.deploy import held_out, launcher_config, summary
from embodied_rl.real_robot.deploy.episodes import run_episode
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.ros2.environment import enter, ros_environment

MODULE = "embodied_rl.benchmarks.deploy"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "latency 150 ms": {"latency_ms": 150.0, "requests": 4, "horizon": 1},
    "latency 150 ms, naive": {"latency_ms": 150.0},
    "friction x 0.5": {"friction": 0.5},
    "pictures 50 ms late": {"camera_latency_ms": 50.0},
    "light and texture": {"looks": ("light", "texture")},
}
"""What the twin and the network differ in, as options of `deploy`."""


def main() -> int:
    """Run the chosen parts and print one line each."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--checkpoint", default="shipped")
    parser.add_argument("--suite", default="tabletop_spatial")
    parser.add_argument("--episodes", type=int, default=10, help="of each variant")
    parser.add_argument("--variants", nargs="*", default=["plain"], choices=list(VARIANTS))
    parser.add_argument("--drills", type=int, default=0, help="rounds of fault drills")
    parser.add_argument("--presses", type=int, default=0, help="of the button, beside two 1080p cameras at 30 Hz")
    parser.add_argument("--speed", type=float, default=1.0, help="the twin's seconds in one of the wall clock")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    environment = ros_environment(domain=1 + os.getpid() % 100, loopback=True)
    enter(MODULE, sys.argv[1:], environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes are ended on the way out
    found: dict[str, Any] = {"load": os.getloadavg()[0], "speed": options.speed}
    for name in options.variants:
        found[name] = _success(name, options, environment)
    if options.drills:
        found["drills"] = _drills(options, environment)
    if options.presses:
        found["presses"] = _presses(options, environment)
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _config(name: str, options: argparse.Namespace, environment: dict[str, str]) -> LauncherConfig:
    command = DeployCommand(checkpoint=options.checkpoint, suite=options.suite, speed=options.speed, **VARIANTS[name])
    config = launcher_config(command, environment)
    return replace(config, bridge=replace(config.bridge, aligned="naive" not in name))


def _success(name: str, options: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    with Launcher(_config(name, options, environment)) as launcher:
        assert launcher.twin is not None
        done = []
        for task, state, horizon_s in held_out(options.suite, options.episodes):
            try:
                done.append(run_episode(launcher.bridge, launcher.twin, task, state, horizon_s))
            except UserError as error:  # its answers come too late to arm it
                print(f"{name}: {error}", flush=True)
                return {"refused": str(error)}
            print(f"  {name}: {done[-1]}", flush=True)
        said = summary(done, launcher.bridge.status)
    status = said["status"]
    step, answer = status["step_ms"], status["answer_ms"]
    timing = f"control step every {step['p50']:.0f} ms (p99 {step['p99']:.0f}); answers {answer['p50']:.0f} ms"
    print(f"{name}: {said['text']}; {timing} (p99 {answer['p99']:.0f})", flush=True)
    return said


def _drills(options: argparse.Namespace, environment: dict[str, str]) -> list[dict[str, Any]]:
    config = _config("plain", options, environment)
    launcher = Launcher(replace(config, bridge=replace(config.bridge, resume_s=None)))
    found = []
    try:
        drills = Drills(launcher, held_out(options.suite, 1)[0][0], options.speed)
        for _ in range(options.drills):
            found += [drills.emergency_stop(), drills.drop_camera()]
            found += [drills.stop(name) for name in ("server", "twin", "bridge")]
        found += [drills.kill(name) for name in ("server", "twin", "bridge")]
    finally:
        launcher.close()
    for drill in found:
        state, still = _ms(drill.state_s), _ms(drill.still_s)
        print(f"{drill.fault}: {drill.state or 'gone'} after {state}, at rest after {still}", flush=True)
    return [asdict(drill) for drill in found]


def _presses(options: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    config = _config("plain", options, environment)
    config = replace(config, bridge=replace(config.bridge, resume_s=None, speed=1.0))
    said = button_to_last_command(config, held_out(options.suite, 1)[0][0], options.presses)
    p50, p99, most = np.quantile(said["ms"], [0.5, 0.99, 1.0])
    print(
        f"button to last command, {len(said['ms'])} times: p50 {p50:.1f} ms, p99 {p99:.1f}, max {most:.1f}", flush=True
    )
    for name, flow in said["flows"].items():
        print(f"  {name}: {flow['rate_hz']:.0f} Hz, {flow['age_ms']:.0f} ms old", flush=True)
    return said


def _ms(seconds: float | None) -> str:
    return "(not seen)" if seconds is None else f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    sys.exit(main())

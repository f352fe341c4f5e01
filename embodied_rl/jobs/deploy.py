"""Starts what a deployment needs and runs it: episodes on the twin, or a person's keys on a real arm."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table

from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import load_detector
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.jobs.deploy_views import data_set_views, recorded_views, simulated_views, write_views
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.real_robot.deploy.dashboard import checklist, dashboard
from embodied_rl.real_robot.deploy.episodes import Episode, run_episode, shadow_episode, to_idle
from embodied_rl.real_robot.deploy.keys import CONFIRM, KEYS, LABELS, Keys
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.deploy.remote import BridgeRemote
from embodied_rl.real_robot.deploy.service_calls import ServiceCalls
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.preflight import LIMITS, STOP, Check
from embodied_rl.real_robot.twin.options import TwinOptions
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.words import counted

RECORDINGS = Path("runs/deploy")
_REFRESH_S = 0.1
_RESUME_S, _ANSWER_S = 0.3, 30.0
_ANSWERS = 10
"""Answers before the checks: the first ones are slow."""
_CONTROL_HZ = 20.0


def run(wanted: Any, environment: Mapping[str, str]) -> int:
    """Deploy until the twin's episodes or the person is done.

    Args:
        wanted: The command's options, `cli.deploy.DeployCommand`.
        environment: Of the processes.

    Returns:
        0, or 1 where the checks before arming fail.
    """
    keys = None if wanted.robot == "twin" else Keys()  # no terminal, no arm
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes are ended on the way out
    console = LastingConsole()
    plan = [] if keys is not None else held_out(wanted.suite, wanted.episodes, _known(wanted))
    console.say("starting: a first time compiles for a minute or two")
    path, config = recording_path(wanted.record), launcher_config(wanted, environment)
    with Launcher(
        replace(config, bridge=replace(config.bridge, record=None if path is None else str(path)))
    ) as launcher:
        bridge = launcher.bridge
        bridge.instruct(wanted.instruction if launcher.twin is None else launcher.twin.state["instruction"])
        bridge.wait(lambda: bridge.status.get("answers", 0) >= _ANSWERS, _ANSWER_S)
        if path is not None and bridge.status.get("answers"):
            _show_views(wanted, path, console)
        done = _on_twin(wanted, plan, launcher, console) if keys is None else _by_hand(launcher, keys, console)
    if path is not None:
        console.say(f"recorded {path}")
    if path is not None and not (done or wanted.dry_run or wanted.shadow):
        console.say(f"train on it: embodied-rl export {path} --to lerobot --out demos")
    return done


def _show_views(wanted: Any, recording: Path, console: LastingConsole) -> None:
    """Write what the cameras see now beside what training saw, and say where."""
    path = recording.with_suffix(".png")
    training = simulated_views(wanted.suite) if wanted.robot == "twin" else []
    if wanted.training_view is not None:
        training = data_set_views(resolve(wanted.training_view, "dataset"))
    write_views(path, recorded_views(recording), training)
    console.say(f"what the cameras see{', beside training' if training else ''}: {path}")


def recording_path(record: str) -> Path | None:
    """Where the recording goes, its folder made; None for none."""
    if record == "none":
        return None
    path = RECORDINGS / time.strftime("%Y%m%d-%H%M%S.mcap") if record == "auto" else Path(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def launcher_config(wanted: Any, environment: Mapping[str, str]) -> LauncherConfig:
    """The processes that these options describe."""
    twin = wanted.robot == "twin"
    host, _, port = (wanted.server or "127.0.0.1:0").rpartition(":")
    mode = "dry_run" if wanted.dry_run else "shadow" if wanted.shadow else "live"
    bridge = BridgeOptions(
        robot=wanted.robot,
        host=host,
        port=int(port),
        mode=mode,
        overlap=wanted.overlap,
        horizon=wanted.horizon,
        latency_s=wanted.latency_ms / 1e3,
        requests=wanted.requests,
        speed=wanted.speed,
        labelled_by="simulator" if twin else "human",
        resume_s=_RESUME_S if twin else None,
    )
    options = TwinOptions(
        suite=wanted.suite,
        camera_latency_s=wanted.camera_latency_ms / 1e3,
        camera_drop=wanted.camera_drop,
        friction=wanted.friction,
        looks=tuple(wanted.looks),
        speed=wanted.speed,
    )
    words = () if wanted.detector is None else ("--detector", str(wanted.detector))
    server = None if wanted.server else ("embodied_rl", "serve", wanted.checkpoint or "shipped", *words)
    return LauncherConfig(environment=environment, server=server, bridge=bridge, twin=options if twin else None)


def _known(wanted: Any) -> Container[str] | None:
    """Instructions that the detector was calibrated for; None without one: all."""
    return None if wanted.detector is None else load_detector(wanted.detector).limits


def held_out(suite: str, episodes: int, known: Container[str] | None = None) -> list[tuple[str, int, float]]:
    """Task, state and horizon (s) of so many episodes: the tasks in turn, from their held-out states.

    Args:
        suite: The twin's.
        episodes: How many.
        known: Instructions of tasks that are run; None: all.

    Raises:
        UserError: There are not so many, or no task is known.
    """
    tasks = [task for task in load_suite(suite) if known is None or task.instruction in known]
    if not tasks:
        raise UserError(f"the detector was calibrated for no task of {suite}: name another --suite.")
    order = [
        (task.name, task.heldout_states[row], task.max_episode_steps / _CONTROL_HZ)
        for row in range(len(tasks[0].heldout_states))
        for task in tasks
    ]
    if episodes > len(order):
        what = "held-out states" if known is None else "held-out states of tasks that the detector knows"
        raise UserError(f"{suite} has {len(order)} {what}: --episodes {len(order)} at most.")
    return order[:episodes]


def _on_twin(wanted: Any, plan: Sequence[tuple[str, int, float]], launcher: Launcher, console: LastingConsole) -> int:
    assert launcher.twin is not None
    done: list[Episode] = []
    with Live(console=console, refresh_per_second=4, transient=True, get_renderable=lambda: _shown(launcher, done)):
        for task, state, horizon_s in plan:
            run = shadow_episode if wanted.shadow else run_episode
            done.append(run(launcher.bridge, launcher.twin, task, state, horizon_s))
            if problem := launcher.ended():
                raise UserError(problem)
    bridge = launcher.bridge
    bridge.wait(lambda: bridge.status["state"] == bridge.state, 1.0)
    console.print(dashboard(bridge.status, done, ""))
    words = summary(done, launcher.bridge.status)
    console.say(words["text"])
    if launcher.twin.state["behind_s"] >= 1.0:
        behind = f"{launcher.twin.state['behind_s']:.0f} s"
        console.say(f"this computer is too busy: the twin fell behind by {behind}; try --speed {wanted.speed / 3:.2g}")
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
    return 0


def summary(done: list[Episode], status: Mapping[str, Any]) -> dict[str, Any]:
    """Success with its interval, alarms of the failure detector, episodes, and the bridge's last status."""
    won = sum(episode.success for episode in done)
    low, high = wilson(won, len(done))
    holds = sum(episode.holds for episode in done)
    share = f"{won / len(done):.0%}, {low:.0%} to {high:.0%} at 95 %"
    text, alarms = f"{won} of {len(done)} episodes succeeded ({share}); {holds} holds", None
    if status.get("detector"):
        alarms = alarm_counts(done)
        text += f"; {counted(alarms['raised'], 'alarm')}: {alarms['before_failures']} before a failure, "
        text += f"{alarms['before_successes']} before a success"
    if status.get("mode") == "dry_run":
        decided = ", ".join(f"{count} {outcome}" for outcome, count in status["outcomes"].items()) or "none"
        text = f"dry run: set points decided in {len(done)} episodes: {decided}; none was sent; {holds} holds"
    if status.get("mode") == "shadow":
        text = f"shadow: {status['answers']} answers in {len(done)} episodes; the arm was {status['state']}"
    episodes = [asdict(episode) for episode in done]
    return {
        "text": text,
        "won": won,
        "episodes": len(done),
        "interval": [low, high],
        "alarms": alarms,
        "status": dict(status),
        "by_episode": episodes,
    }


def alarm_counts(done: Sequence[Episode]) -> dict[str, int]:
    """How many alarms were raised in all, in episodes that failed, and in those that succeeded."""
    won = sum(len(episode.alarms) for episode in done if episode.success)
    lost = sum(len(episode.alarms) for episode in done if not episode.success)
    return {"raised": won + lost, "before_failures": lost, "before_successes": won}


def _by_hand(launcher: Launcher, keys: Keys, console: LastingConsole) -> int:
    """Checks, then keys until the person leaves."""
    bridge = launcher.bridge
    checks = bridge.preflight()
    console.print(checklist(checks))
    if not may_go_on(checks) and bridge.status["mode"] != "shadow":
        console.say("not armed: mend what is marked, and start again")
        return 1
    calls, leaving, confirmed = ServiceCalls(bridge.call), False, False
    console.say(f"read the {LIMITS}, above: [{CONFIRM}] confirms them, and the arm can be armed")
    with keys, Live(console=console, auto_refresh=False) as live:
        while True:
            left = leaving and not calls.waiting  # the space bar is heard until the arm has come to rest
            live.update(
                dashboard(bridge.status, [], f"{_help()}   {calls.note}", bridge.subscriptions.ignored), refresh=True
            )
            if left:
                return 0
            key = keys.read(_REFRESH_S)
            if problem := launcher.ended():
                raise UserError(problem)
            if key == "q":
                leaving = calls.do("leaving", partial(_leave, bridge)) or leaving
            elif key == CONFIRM:
                confirmed = True
                calls.say(f"the {LIMITS} are confirmed")
            elif key in KEYS and KEYS[key] == "arm" and not confirmed:
                calls.say(f"not armed: read the {LIMITS}, above, and confirm them with [{CONFIRM}]")
            elif key in KEYS:
                calls.ask(KEYS[key])
            elif key in LABELS:
                bridge.outcome(LABELS[key])
                calls.say(f"labelled: {LABELS[key]}")


def _leave(bridge: BridgeRemote) -> str:
    if bridge.state in ("running", "armed", "holding"):
        to_idle(bridge)
    return ""


def may_go_on(checks: list[Check]) -> bool:
    """Whether no check failed but the emergency stop's: its button is pressed and reset while the bridge runs."""
    return all(check.passed for check in checks if check.name != STOP)


def _shown(launcher: Launcher, done: list[Episode]) -> Table:
    seconds = launcher.twin.state.get("seconds", 0.0) if launcher.twin is not None else 0.0
    return dashboard(
        launcher.bridge.status, done, f"episode {len(done) + 1}, {seconds:.1f} s", launcher.bridge.subscriptions.ignored
    )


def _help() -> str:
    named = {"space" if key == " " else key: name.replace("_", " ") for key, name in {**KEYS, **LABELS}.items()}
    return "  ".join(f"[{key}] {name}" for key, name in named.items()) + f"  [{CONFIRM}] confirm limits  [q] leave"

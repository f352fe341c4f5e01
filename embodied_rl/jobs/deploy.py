"""Starts what a deployment needs and runs it: episodes on the twin, or a person's keys on a real arm."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.live import Live
from rich.table import Table

from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import wilson
from embodied_rl.real_robot.deploy.dashboard import checklist, dashboard
from embodied_rl.real_robot.deploy.episodes import Episode, run_episode, to_idle
from embodied_rl.real_robot.deploy.fleet import Fleet, FleetConfig
from embodied_rl.real_robot.deploy.keys import KEYS, Keys
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.utils.console import LastingConsole

_REFRESH_S = 0.1
_RESUME_S = 0.3
_CONTROL_HZ = 20.0


def run(wanted: Any, environment: Mapping[str, str]) -> int:
    """Deploy until the twin's episodes or the person is done.

    Args:
        wanted: The command's options, `cli.deploy.DeployCommand`.
        environment: Of the processes.

    Returns:
        0, or 1 where the checks before arming fail.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes are ended on the way out
    console = LastingConsole()
    console.say("starting: a first time compiles for a minute or two")
    with Fleet(fleet_config(wanted, environment)) as fleet:
        if fleet.twin is None:
            return _by_hand(wanted, fleet, console)
        return _on_twin(wanted, fleet, console)


def fleet_config(wanted: Any, environment: Mapping[str, str]) -> FleetConfig:
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
    server = None if wanted.server else ("embodied_rl", "serve", wanted.checkpoint)
    return FleetConfig(environment=environment, server=server, bridge=bridge, twin=options if twin else None)


def held_out(suite: str, episodes: int) -> list[tuple[str, int, float]]:
    """Task, state and horizon (s) of so many episodes: the tasks in turn, from their held-out states."""
    tasks = load_suite(suite)
    order = [
        (task.name, task.heldout_states[row], task.max_episode_steps / _CONTROL_HZ)
        for row in range(len(tasks[0].heldout_states))
        for task in tasks
    ]
    if episodes > len(order):
        raise UserError(f"{suite} has {len(order)} held-out states: --episodes {len(order)} at most.")
    return order[:episodes]


def _on_twin(wanted: Any, fleet: Fleet, console: LastingConsole) -> int:
    assert fleet.twin is not None
    done: list[Episode] = []
    plan = held_out(wanted.suite, wanted.episodes)
    with Live(console=console, refresh_per_second=4, transient=True, get_renderable=lambda: _shown(fleet, done)):
        for task, state, horizon_s in plan:
            done.append(run_episode(fleet.bridge, fleet.twin, task, state, horizon_s))
            if problem := fleet.ended():
                raise UserError(problem)
    console.print(_shown(fleet, done))
    words = summary(done, fleet.bridge.status)
    console.say(words["text"])
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")
    return 0


def summary(done: list[Episode], status: Mapping[str, Any]) -> dict[str, Any]:
    """Success with its interval, episodes, and the bridge's last status."""
    won = sum(episode.success for episode in done)
    low, high = wilson(won, len(done))
    holds = sum(episode.holds for episode in done)
    share = f"{won / len(done):.0%}, {low:.0%} to {high:.0%} at 95 %"
    text = f"{won} of {len(done)} episodes succeeded ({share}); {holds} holds"
    episodes = [asdict(episode) for episode in done]
    return {
        "text": text,
        "won": won,
        "episodes": len(done),
        "interval": [low, high],
        "status": dict(status),
        "by_episode": episodes,
    }


def _by_hand(wanted: Any, fleet: Fleet, console: LastingConsole) -> int:
    """Checks, then keys until the person leaves."""
    bridge = fleet.bridge
    bridge.instruct(wanted.instruction)
    bridge.wait(lambda: bool(bridge.status.get("answers")), 30.0)
    checks = bridge.preflight()
    console.print(checklist(checks))
    if not all(check.passed for check in checks):
        console.say("not armed: mend what is marked, and start again")
        return 1
    note = ""
    with Keys() as keys, Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(dashboard(bridge.status, [], f"{_help()}   {note}"), refresh=True)
            key = keys.read(_REFRESH_S)
            if problem := fleet.ended():
                raise UserError(problem)
            if key == "q":
                break
            if key in KEYS:
                _, words = bridge.call(KEYS[key])
                note = words
    if bridge.state in ("running", "armed", "holding"):
        to_idle(bridge)
    return 0


def _shown(fleet: Fleet, done: list[Episode]) -> Table:
    seconds = fleet.twin.state.get("seconds", 0.0) if fleet.twin is not None else 0.0
    return dashboard(fleet.bridge.status, done, f"episode {len(done) + 1}, {seconds:.1f} s")


def _help() -> str:
    return "  ".join(f"[{key}] {name.replace('_', ' ')}" for key, name in KEYS.items()) + "  [q] leave"

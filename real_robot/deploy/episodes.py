"""Episodes on a twin, through the bridge, over ROS 2."""

from __future__ import annotations

import time
from dataclasses import dataclass

from embodied_rl.errors import UserError
from embodied_rl.real_robot.deploy.remote import BridgeRemote, TwinRemote

_READY_S, _PAUSE_S, _SILENCE_S = 30.0, 0.1, 10.0
_IDLE_S, _HEARD_S = 10.0, 1.0
_NOT_OURS = ("e-stopped", "human")


@dataclass(frozen=True)
class Episode:
    """How one episode went.

    Args:
        task: Its name.
        state: Number of its initial state.
        success: Whether the goal held at some control step.
        seconds: Simulated time from start to success or horizon.
        holds: How often a watchdog made the arm hold.
        note: What ended it otherwise; empty.
        alarms: Decisions at which the failure detector raised an alarm, counted from 1.
    """

    task: str
    state: int
    success: bool
    seconds: float
    holds: int
    note: str = ""
    alarms: tuple[int, ...] = ()


def run_episode(bridge: BridgeRemote, twin: TwinRemote, task: str, state: int, horizon_s: float) -> Episode:
    """Reset the twin, arm, start, and wait for success or the horizon.

    Args:
        bridge: Idle, or holding from the episode before.
        twin: Where the scene is.
        task: Its name.
        state: Number of the initial state.
        horizon_s: Simulated time that the policy has, s.
    """
    to_idle(bridge)
    bridge.instruct(twin.begin(task, state, seed=state))
    holds = int(bridge.status.get("holds", 0))
    patiently(bridge, "arm")
    patiently(bridge, "start")
    began_s = float(twin.state["seconds"])

    def over() -> bool:
        return bool(twin.state["success"]) or twin.state["seconds"] - began_s >= horizon_s

    note = ""
    last = -1.0
    while not twin.wait(over, _SILENCE_S):
        if twin.state["seconds"] == last or bridge.state not in ("running", "holding"):
            note = f"the twin stands still at {last:.2f} s, the bridge is {bridge.state}"
            break
        last = float(twin.state["seconds"])
    success, seconds = bool(twin.state["success"]), float(twin.state["seconds"]) - began_s
    if bridge.status.get("mode") == "live":  # what was not sent has no outcome
        bridge.outcome("success" if success else "failure")
    to_idle(bridge)
    if not bridge.wait(lambda: bridge.status.get("state") == "idle", _IDLE_S) and not note:  # it says all of it then
        note = f"the bridge says no more: its holds and alarms are those of {_IDLE_S:g} s before"
    held, detector = int(bridge.status.get("holds", 0)) - holds, bridge.status.get("detector") or {}
    return Episode(task, state, success, seconds, held, note, tuple(detector.get("alarms", ())))


def shadow_episode(bridge: BridgeRemote, twin: TwinRemote, task: str, state: int, horizon_s: float) -> Episode:
    """Reset the twin and let the policy be asked until the horizon; nothing moves the arm.

    Args:
        bridge: In shadow mode.
        twin: Where the scene is.
        task: Its name.
        state: Number of the initial state.
        horizon_s: Simulated time, s.
    """
    bridge.instruct(twin.begin(task, state, seed=state))
    began_s = float(twin.state["seconds"])

    def over() -> bool:
        return bool(twin.state["seconds"] - began_s >= horizon_s)

    note, last = "", -1.0
    while not twin.wait(over, _SILENCE_S):
        if twin.state["seconds"] == last:
            note = f"the twin stands still at {last:.2f} s"
            break
        last = float(twin.state["seconds"])
    return Episode(task, state, bool(twin.state["success"]), float(twin.state["seconds"]) - began_s, 0, note)


def to_idle(bridge: BridgeRemote) -> None:
    """Bring the arm to rest and disarm it; UserError where it is e-stopped or a human's."""
    if bridge.state == "running":
        bridge.call("hold")
    until = time.monotonic() + _IDLE_S
    while not bridge.wait_state("idle", _PAUSE_S):
        if time.monotonic() > until or not bridge.wait(lambda: bridge.state not in _NOT_OURS, _HEARD_S):
            raise UserError(f"the arm is {bridge.state}: bring it to rest first")
        bridge.call("disarm")  # refused while the arm brakes


def patiently(bridge: BridgeRemote, wish: str) -> None:
    """Call a service again until the watchdog is content: with a new scene, on a busy computer.

    Raises:
        UserError: It is still refused after half a minute; with what the preflight checks say.
    """
    words = ""
    for _ in range(int(_READY_S / _PAUSE_S)):
        done, words = bridge.call(wish)
        if done:
            return
        bridge.wait(lambda: False, _PAUSE_S)
    found = "; ".join(f"{check.name}: {check.detail}" for check in bridge.preflight() if not check.passed)
    raise UserError(f"{wish} was refused: {words}. {found}")

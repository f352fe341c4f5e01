"""A person's keys in `deploy`: the space bar stops the arm whatever the bridge has not answered yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.jobs.deploy import _by_hand
from embodied_rl.real_robot.deploy.service_calls import ServiceCalls
from embodied_rl.real_robot.deploy.subscriptions import Subscriptions
from embodied_rl.utils.console import LastingConsole

_WAIT_S = 900.0


class SlowBridge:
    """Answers nothing but the emergency stop until it was called."""

    def __init__(self, state: str = "running") -> None:
        self.state, self.status, self.subscriptions = state, {"mode": "live"}, Subscriptions()
        self.called: list[str] = []
        self.asked, self.stopped, self.answers = threading.Event(), threading.Event(), threading.Event()

    def preflight(self) -> list[Any]:
        return []

    def call(self, name: str) -> tuple[bool, str]:
        self.called.append(name)
        self.asked.set()
        if name == "emergency_stop":
            self.stopped.set()
            self.state = "e-stopped"
        else:
            assert self.answers.wait(_WAIT_S)
        return True, f"{name} done"

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    def wait_state(self, state: str, seconds: float) -> bool:
        return self.state == state


class Pressed:
    """Keys as they were pressed; then the bridge's answers come, then `q` again and again."""

    def __init__(self, bridge: SlowBridge, keys: str) -> None:
        self.bridge, self.left = bridge, list(keys)

    def read(self, seconds: float) -> str:
        if self.left:
            assert self.left[0] != " " or self.bridge.asked.wait(_WAIT_S)
            return self.left.pop(0)
        assert self.bridge.stopped.wait(_WAIT_S), "the emergency stop waits for another call"
        self.bridge.answers.set()
        return "q"

    def __enter__(self) -> Pressed:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to put back."""


def pressed(bridge: SlowBridge, keys: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("embodied_rl.jobs.deploy.dashboard", lambda *_: "")
    launcher: Any = SimpleNamespace(bridge=bridge, ended=lambda: "")
    return _by_hand(launcher, Pressed(bridge, keys), LastingConsole())  # type: ignore[arg-type]


def test_the_space_bar_does_not_queue_behind_a_call_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = SlowBridge()
    assert pressed(bridge, "rs ", monkeypatch) == 0
    assert bridge.called == ["resume", "emergency_stop"], "what was pressed meanwhile is not kept for later"


def test_the_space_bar_is_heard_while_the_arm_is_brought_to_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = SlowBridge()
    with pytest.raises(UserError, match="e-stopped"):
        pressed(bridge, "q ", monkeypatch)
    assert bridge.called[:2] == ["hold", "emergency_stop"]


def test_a_bridge_that_does_not_answer_ends_the_session() -> None:
    def silent(name: str) -> tuple[bool, str]:
        raise UserError(f"the bridge did not answer {name}")

    calls = ServiceCalls(silent)
    calls.ask("arm")
    while calls.waiting:
        time.sleep(0.01)
    with pytest.raises(UserError, match="did not answer arm"):
        _ = calls.note


def test_the_arm_is_armed_after_its_limits_were_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge = SlowBridge("idle")
    assert pressed(bridge, "aca ", monkeypatch) == 0
    assert bridge.called == ["arm", "emergency_stop"]
    without = SlowBridge("idle")
    assert pressed(without, "aa" + "s ", monkeypatch) == 0
    assert without.called == ["start", "emergency_stop"]

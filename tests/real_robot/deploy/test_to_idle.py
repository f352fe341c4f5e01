"""An arm is brought to rest before it is disarmed, however often the bridge refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.deploy.episodes import to_idle


class BrakingBridge:
    """Refuses to disarm an arm until it was asked so many times."""

    def __init__(self, state: str, refusals: int = 0) -> None:
        self.state, self.refusals, self.called = state, refusals, list[str]()

    def call(self, name: str) -> tuple[bool, str]:
        self.called.append(name)
        if name == "hold":
            self.state = "holding"
        elif self.refusals:
            self.refusals -= 1
            return False, "the arm still brakes"
        else:
            self.state = "idle"
        return True, ""

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        return condition()

    def wait_state(self, state: str, seconds: float) -> bool:
        return self.state == state


def idle(bridge: Any) -> None:
    to_idle(bridge)


def test_a_running_arm_is_held_and_disarmed_once_it_rests() -> None:
    bridge = BrakingBridge("running", refusals=3)
    idle(bridge)
    assert bridge.state == "idle"
    assert bridge.called == ["hold", *["disarm"] * 4]


@pytest.mark.parametrize("state", ["human", "e-stopped"])
def test_an_arm_that_is_somebody_elses_is_left_alone(state: str) -> None:
    bridge = BrakingBridge(state)
    with pytest.raises(UserError, match=f"the arm is {state}"):
        idle(bridge)
    assert bridge.called == []

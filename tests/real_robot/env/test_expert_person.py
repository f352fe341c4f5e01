"""When the twin's expert takes an arm over, and that it lets go: the arm and its bridge are a test's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.env.arm import ArmFailedError, ArmStep
from embodied_rl.real_robot.env.expert_person import ExpertPerson
from embodied_rl.types import Array, EpisodeSpec

SPEC = EpisodeSpec(0, "suite/task", 3, seed=1)


class Clock:
    """Its time is slept through at once; each look at it takes a tenth of a second."""

    now = 0

    def now_ns(self) -> int:
        self.now += 100_000_000
        return self.now

    def sleep_until(self, due_ns: int) -> None:
        self.now = max(self.now, due_ns)


class Arm:
    """An arm that a person has while a test says so.

    Attributes:
        obeys: Whether the bridge lets the person take it.
        rested_ns: When the person took it, after how long a rest.
    """

    def __init__(self) -> None:
        self.clock, self.obeys, self.said = Clock(), True, list[Any]()
        self.loop = SimpleNamespace(state=ArmState.RUNNING)
        self.bridge = SimpleNamespace(
            loop=self.loop, context=SimpleNamespace(clock=self.clock), release=lambda: self.said.append("release")
        )
        self.acted_ns, self.rested_ns = 0, 0

    def begin(self, episode: EpisodeSpec) -> str:
        self.loop.state = ArmState.RUNNING
        return "do it"

    def act(self, action: Array) -> ArmStep | None:
        self.acted_ns = self.clock.now
        return ArmStep(action, False)

    def follow(self) -> ArmStep | None:
        return None if "release" in self.said else ArmStep(np.ones(7), False)

    def end(self, success: bool | None) -> None:
        self.said.append(("end", success))

    def take_over(self, acts: bool = True) -> None:
        """As the twin's: told by `ExpertPerson`."""
        self.said.append(acts)
        if acts and self.obeys:
            self.loop.state, self.rested_ns = ArmState.HUMAN, self.clock.now - self.acted_ns


@pytest.fixture
def arm() -> Arm:
    return Arm()


def person(arm: Any, first: int | None, patience: int = 5) -> ExpertPerson:
    return ExpertPerson(arm, arm, lambda spec: first, {SPEC.task: patience})


def test_the_person_takes_the_arm_at_its_step_once_the_arm_rests(arm: Arm) -> None:
    helped = person(arm, first=2)
    helped.begin(SPEC)
    assert [helped.act(np.zeros(7)) is None for _ in range(3)] == [False, False, True]
    assert arm.said == [True]
    assert arm.rested_ns >= 400_000_000, "a motion that is cut off would be none of anybody's frames"
    assert helped.follow() is not None
    helped.end(True)
    assert arm.said == [True, ("end", True), False], "the switch is let go when the arm is disarmed"


def test_an_episode_may_be_the_policys(arm: Arm) -> None:
    helped = person(arm, first=None)
    helped.begin(SPEC)
    assert all(helped.act(np.zeros(7)) is not None for _ in range(200))
    assert arm.said == []


def test_each_episode_has_its_own_takeover(arm: Arm) -> None:
    helped = person(arm, first=1)
    for _ in range(2):
        helped.begin(SPEC)
        assert [helped.act(np.zeros(7)) is None for _ in range(2)] == [False, True]


def test_a_person_who_does_not_get_there_lets_go_and_ends_the_episode(arm: Arm) -> None:
    helped = person(arm, first=0, patience=3)
    helped.begin(SPEC)
    assert helped.act(np.zeros(7)) is None
    assert [helped.follow() is None for _ in range(3)] == [False, False, True]
    assert arm.said == [True, False, "release"]
    assert not helped.resume()


def test_a_bridge_that_lets_nobody_take_the_arm_fails_the_episode(arm: Arm) -> None:
    arm.obeys = False
    helped = person(arm, first=0)
    helped.begin(SPEC)
    with pytest.raises(ArmFailedError, match="did not take the arm"):
        helped.act(np.zeros(7))
    assert arm.said == [True, False]

"""Faults of two arms: whichever arm has one, both stop, and the reason says which arm it is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.runtime import ArmRuntime, Tick
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.core.two_arms import load_two_arms
from tests.real_robot.test_two_arms import NEAR

ALOHA = load_two_arms("aloha")
NAMES, HOME = ALOHA.limits.names, ALOHA.home


class Arms:
    """Both arms follow at once; what is measured, seen and asked can be spoilt."""

    def __init__(self) -> None:
        self.runtime, self.now, self.angles = ArmRuntime(ALOHA, ["top"]), 1_000_000_000, HOME.copy()
        self.camera, self.heard, self.stuck = True, NAMES, np.full(12, np.nan)
        for _ in range(3):
            self.tick()
        assert self.runtime.fire(Event.ARM, self.now).accepted
        assert self.runtime.fire(Event.START, self.now).accepted

    def tick(self, target: np.ndarray | None = None) -> Tick:
        self.now += self.runtime.gate.period_ns
        measured = dict(zip(NAMES, np.where(np.isnan(self.stuck), self.angles, self.stuck), strict=True))
        self.runtime.joint_states(self.heard, [measured[name] for name in self.heard], self.now)
        if self.camera:
            self.runtime.watchdog.observed("top", self.now)
        self.runtime.watchdog.heartbeat(self.now)
        done = self.runtime.tick(self.now, None if target is None else Command(self.now, NAMES, target))
        if done.setpoint is not None:
            self.angles = done.setpoint.positions
        return done

    def lead(self, target: np.ndarray, ticks: int) -> Tick:
        """In small steps towards a pose, for so many ticks or until both hold."""
        start = self.angles
        for tick in range(1, ticks + 1):
            done = self.tick(start + tick / ticks * (target - start))
            if done.held is not None:
                break
        return done


def test_arms_that_come_too_near_hold_until_somebody_resumes() -> None:
    arms = Arms()
    done = arms.lead(NEAR, 200)
    assert done.held is not None
    assert done.held.reason.startswith("distance: left ")
    assert " and right " in done.held.reason
    assert arms.runtime.machine.state is ArmState.HOLDING
    assert done.setpoint is not None
    for _ in range(30):
        done = arms.tick(HOME)
    assert arms.runtime.gate.at_rest
    assert done.decision is None, "no command counts"
    assert ALOHA.clearance.at(arms.angles) >= ALOHA.distance
    assert arms.runtime.fire(Event.RESUME, arms.now).accepted
    assert arms.lead(HOME, 150).held is None
    np.testing.assert_allclose(arms.angles, HOME, atol=1e-6)


def lose_right(arms: Arms) -> None:
    arms.heard = NAMES[:6]


def lose_left_joint(arms: Arms) -> None:
    arms.heard = NAMES[1:]


def block_right(arms: Arms) -> None:
    arms.stuck[8] = arms.angles[8]


def lose_camera(arms: Arms) -> None:
    arms.camera = False


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (lose_right, "joint_states"),
        (lose_left_joint, "joint_states"),
        (block_right, "tracking"),
        (lose_camera, "camera"),
    ],
)
def test_a_fault_of_one_arm_stops_both(fault: Callable[[Arms], None], kind: str) -> None:
    arms, wave = Arms(), HOME + np.array([0.4, 0, 0, 0, 0, 0.4] * 2)
    arms.lead(wave, 40)
    before = arms.angles
    fault(arms)
    start, held = arms.angles, None
    for tick in range(1, 60):
        done = arms.tick(start + 0.01 * tick)
        held = held or done.held
    assert held is not None
    assert kind in held.reason
    assert arms.runtime.machine.state is ArmState.HOLDING
    assert arms.runtime.gate.at_rest
    assert np.abs(arms.angles - before).max() < 0.4
    assert ALOHA.out_of_place(arms.angles[None]) == ()


def test_joints_of_one_arm_alone_are_none() -> None:
    runtime = ArmRuntime(ALOHA, [])
    refused = runtime.joint_states(NAMES[:6], HOME[:6].tolist(), 1)
    assert refused is not None
    assert refused.detail.startswith("no vx300s_right/waist")
    assert not runtime.fire(Event.ARM, 1).accepted


def test_an_emergency_stop_silences_both() -> None:
    arms = Arms()
    arms.lead(HOME + 0.1, 10)
    arms.runtime.button(True, arms.now)
    assert arms.tick(HOME).setpoint is None
    assert arms.runtime.machine.state is ArmState.ESTOPPED

"""LeRobot's follower behind the gate: what reaches its motors keeps every limit, whatever is asked, whatever fails."""

from __future__ import annotations

import ast
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.real_robot import lerobot_follower
from embodied_rl.real_robot.core.executor import Chunk, ChunkExecutor, ExecutorConfig
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.lerobot_follower import GatedFollower

ROBOT = load_robot("so101")
GRIP = ROBOT.gripper
assert GRIP is not None
MOTORS = ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
HOME = {f"{motor}.pos": 50.0 if motor == "gripper" else 0.0 for motor in MOTORS}
PERIOD = ROBOT.gate().period_ns
STEP_TICKS = 2
"""Ticks in one of LeRobot's 30 actions a second."""


class FakeFollower:
    """The surface of LeRobot's SO101Follower, whose motors are at once where they are sent."""

    def __init__(self, *, use_degrees: bool = True) -> None:
        self.config = SimpleNamespace(use_degrees=use_degrees)
        self.calibration = {motor: SimpleNamespace(range_min=1000, range_max=3000) for motor in MOTORS}
        self.at, self.sent, self.connected = dict(HOME), list[dict[str, float]](), False
        self.broken: Exception | None = None
        self.stuck, self.reads = False, threading.Semaphore(0)

    def connect(self, calibrate: bool = True) -> None:
        self.connected = True

    def get_observation(self) -> dict[str, Any]:
        self.reads.release()
        if self.broken is not None:
            raise self.broken
        return {**self.at, "wrist": np.zeros((4, 4, 3), np.uint8)}

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        assert self.connected
        self.sent.append(dict(action))
        if not self.stuck:
            self.at = dict(action)
        return action

    def disconnect(self) -> None:
        self.connected = False


class Bench:
    """A gated follower in a time of its own: its thread ends at once, and ticks are the test's."""

    def __init__(self, kind: type[GatedFollower] = GatedFollower, *, use_degrees: bool = True) -> None:
        self.follower = FakeFollower(use_degrees=use_degrees)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GatedFollower, "_run", lambda self: None)
            self.arm, self.now = kind(self.follower, ROBOT), PERIOD * 100
        self.arm.connect()

    def act(self, **goals: float) -> None:
        """An action, and the ticks until the next one is due."""
        self.arm.send_action(HOME | {f"{motor}.pos": goal for motor, goal in goals.items()}, self.now)
        self.wait(STEP_TICKS)

    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += PERIOD
            self.arm.tick(self.now)

    def fire(self, event: Event) -> bool:
        return self.arm.fire(event, self.now).accepted

    @property
    def state(self) -> ArmState:
        return self.arm.runtime.machine.state


def running(kind: type[GatedFollower] = GatedFollower, *, use_degrees: bool = True) -> Bench:
    bench = Bench(kind, use_degrees=use_degrees)
    bench.act()
    assert bench.fire(Event.ARM)
    bench.act()
    assert bench.fire(Event.START)
    return bench


def broken_limits(sent: list[dict[str, float]]) -> set[str]:
    """Which limits the goals break that reached the motors, one a tick from rest on."""
    angles = np.array([[math.radians(goals[f"{motor}.pos"]) for motor in MOTORS[:-1]] for goals in sent])
    assert GRIP is not None
    widths = np.array([[goals["gripper.pos"] / 100 * GRIP.upper[0]] for goals in sent])
    found = set()
    for values, limits in ((angles, ROBOT.limits), (widths, GRIP)):
        if ((values < limits.lower - 1e-9) | (values > limits.upper + 1e-9)).any():
            found.add("position")
        steps = np.vstack([values[:1], values[:1], values[:1], values])  # it was at rest before
        for name, most in (("velocity", limits.velocity), ("acceleration", limits.acceleration), ("jerk", limits.jerk)):
            steps = np.diff(steps, axis=0) * ROBOT.rate_hz
            if (np.abs(steps) > most * (1 + 1e-6)).any():
                found.add(name)
    if not ROBOT.workspace.inside(angles).all():
        found.add("workspace")
    return found


ANGLES = st.one_of(st.floats(-200, 200), st.sampled_from([float("nan"), float("inf"), 1e308]))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(ANGLES, ANGLES, ANGLES, ANGLES, ANGLES, ANGLES), min_size=3, max_size=12))
def test_whatever_is_asked_the_motors_are_sent_what_keeps_every_limit(actions: list[tuple[float, ...]]) -> None:
    bench = running()
    for action in actions:
        bench.act(**dict(zip(MOTORS, action, strict=True)))
    assert broken_limits(bench.follower.sent) == set()
    assert len(bench.follower.sent) >= STEP_TICKS * len(actions)


class Bypass(GatedFollower):
    """An adapter that forgets the gate."""

    def send_action(self, action: Any, now_ns: int | None = None) -> dict[str, float]:
        return self._follower.send_action(dict(action))


def test_an_adapter_that_bypasses_the_gate_is_found() -> None:
    bench = Bench(Bypass)
    bench.act(shoulder_pan=150.0)
    bench.act(shoulder_pan=-150.0)
    assert broken_limits(bench.follower.sent) >= {"position", "velocity", "acceleration", "jerk"}


def test_a_goal_within_the_limits_is_reached_to_the_last_bit_that_the_units_keep() -> None:
    bench = running()
    for _ in range(60):
        bench.act(shoulder_pan=10.0, wrist_roll=-20.0, gripper=80.0)
    wanted = HOME | {"shoulder_pan.pos": 10.0, "wrist_roll.pos": -20.0, "gripper.pos": 80.0}
    assert bench.follower.sent[-1] == pytest.approx(wanted, abs=1e-3)
    assert bench.arm.get_observation()["shoulder_pan.pos"] == pytest.approx(10.0, abs=1e-3)


def test_a_jump_of_a_radian_takes_as_long_as_the_arm_needs() -> None:
    bench = running()
    before = len(bench.follower.sent)
    bench.act(shoulder_pan=57.3)
    first = bench.follower.sent[before + STEP_TICKS - 1]["shoulder_pan.pos"]
    assert 0.0 < first < 1.0
    reasons = {reason.kind for reason in bench.arm.last.decision.reasons}  # type: ignore[union-attr]
    assert reasons & {"velocity", "acceleration", "jerk"}
    ticks = 0
    while bench.follower.sent[-1]["shoulder_pan.pos"] < 57.0:
        bench.act(shoulder_pan=57.3)
        ticks += STEP_TICKS
        assert ticks < 200
    assert ticks / ROBOT.rate_hz > math.radians(57.0) / ROBOT.limits.velocity[0]


def test_actions_of_a_small_step_each_are_followed_without_stop_and_go() -> None:
    """30 actions a second are approached along a line, not one tick in two."""
    bench = running()
    for number in range(60):
        bench.act(shoulder_pan=0.5 * number)
    pan = np.diff([goals["shoulder_pan.pos"] for goals in bench.follower.sent[-40:]])
    np.testing.assert_allclose(pan, 0.25, atol=0.02)


def test_a_normalised_follower_is_sent_the_same_angles() -> None:
    degrees, normalised = running(), running(use_degrees=False)
    half = 360 * 1000 / 4095  # degrees of half the calibrated range
    for _ in range(30):
        degrees.act(elbow_flex=12.0)
        normalised.act(elbow_flex=12.0 / half * 100)
    angles = [100 * goals["elbow_flex.pos"] / half for goals in degrees.follower.sent]
    np.testing.assert_allclose([goals["elbow_flex.pos"] for goals in normalised.follower.sent], angles, atol=1e-6)


def _silent(bench: Bench) -> None:
    bench.wait(1)


def _unplugged(bench: Bench) -> None:
    bench.follower.broken = ConnectionError("Failed to sync read 'Present_Position'")
    bench.act(shoulder_pan=30.0)


def _no_picture(bench: Bench) -> None:
    bench.follower.broken = TimeoutError("latest frame is too old")
    bench.act(shoulder_pan=30.0)


def _jammed(bench: Bench) -> None:
    bench.follower.stuck = True
    bench.act(shoulder_pan=100.0)


@pytest.mark.parametrize(
    ("fault", "kind"), [(_silent, "policy"), (_unplugged, "follower"), (_no_picture, "follower"), (_jammed, "tracking")]
)
def test_a_fault_makes_the_arm_hold_and_come_to_rest(fault: Callable[[Bench], None], kind: str) -> None:
    bench = running()
    for _ in range(15):
        bench.act(shoulder_pan=30.0)
    assert not bench.arm.runtime.gate.at_rest
    began = bench.now
    while bench.state is ArmState.RUNNING:
        fault(bench)
        assert bench.now - began < 10**9
    assert kind in {found.kind for found in bench.arm.last.faults}  # type: ignore[union-attr]
    for _ in range(60):
        fault(bench)
    assert bench.arm.runtime.gate.at_rest
    assert broken_limits(bench.follower.sent) == set()
    assert not bench.fire(Event.RESUME), "a fault that is still there"


def test_a_policy_that_speaks_again_goes_on_once_somebody_resumes() -> None:
    bench = running()
    bench.wait(60)
    assert bench.state is ArmState.HOLDING
    held = bench.follower.sent[-1]
    for _ in range(20):
        bench.act(shoulder_pan=20.0)
    assert bench.follower.sent[-1] == held, "it does not move by itself"
    assert bench.fire(Event.RESUME)
    for _ in range(60):
        bench.act(shoulder_pan=20.0)
    assert bench.follower.sent[-1]["shoulder_pan.pos"] == pytest.approx(20.0, abs=1e-3)


def test_after_the_emergency_stop_nothing_is_sent_until_it_is_reset_and_armed() -> None:
    bench = running()
    for _ in range(10):
        bench.act(shoulder_pan=30.0)
    sent = len(bench.follower.sent)
    assert bench.fire(Event.ESTOP)
    for _ in range(10):
        bench.act(shoulder_pan=30.0)
    assert not bench.fire(Event.START)
    assert bench.fire(Event.RESET)
    bench.act()
    assert len(bench.follower.sent) == sent
    assert bench.fire(Event.ARM)
    bench.act()
    assert bench.follower.sent[-1] == pytest.approx(bench.follower.sent[sent - 1], abs=1e-6), "it starts where it is"


def test_nothing_is_sent_before_the_arm_is_armed_and_no_old_action_moves_it() -> None:
    bench = Bench()
    for _ in range(5):
        bench.act(shoulder_pan=40.0)
    assert bench.follower.sent == []
    assert bench.fire(Event.ARM)
    assert bench.fire(Event.START)
    bench.wait(1)
    assert bench.follower.sent[-1] == pytest.approx(HOME)


def test_an_action_of_other_motors_is_refused_in_one_line() -> None:
    bench = running()
    with pytest.raises(UserError, match=r"the action has a\.pos; give shoulder_pan\.pos, .*gripper\.pos"):
        bench.arm.send_action({"a.pos": 0.0})


def test_arms_that_do_not_fit_are_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="name its gripper"):
        GatedFollower(FakeFollower(), replace(ROBOT, gripper=None))
    follower = FakeFollower()
    del follower.at["wrist_roll.pos"]
    with pytest.raises(UserError, match=r"the follower has no wrist_roll\.pos"):
        GatedFollower(follower, ROBOT).connect()


def test_chunks_come_by_way_of_the_executor() -> None:
    bench = running()
    executor = ChunkExecutor(ExecutorConfig(30, 6, round(1e9 / 30)), start_ns=bench.now)
    actions = np.tile([15.0, 0, 0, 0, 0, 50.0], (30, 1))
    executor.begin(bench.now, still=False)
    assert executor.add(Chunk(bench.now, actions), bench.now).accepted
    bench.now += 2 * PERIOD
    for _ in range(25):
        step = executor.action(bench.now)
        assert step is not None
        bench.act(**dict(zip(MOTORS, step.values.tolist(), strict=True)))
    assert bench.follower.sent[-1]["shoulder_pan.pos"] == pytest.approx(15.0, abs=0.1)
    assert broken_limits(bench.follower.sent) == set()


def test_its_own_thread_reads_sends_and_ends_in_order() -> None:
    follower = FakeFollower()
    arm = GatedFollower(follower, ROBOT)
    arm.connect()
    for _ in range(3):
        assert follower.reads.acquire(timeout=60)
    arm.send_action(HOME)
    armed = arm.fire(Event.ARM)
    assert armed.accepted or "faults" in armed.reason, "a busy computer's ticks are out of time"
    arm.disconnect()
    assert not follower.connected
    assert not arm.runtime.machine.sends


def test_what_ends_its_thread_is_said_to_whoever_acts(recwarn: pytest.WarningsRecorder) -> None:
    follower = FakeFollower()
    arm = GatedFollower(follower, ROBOT)
    arm.connect()
    follower.broken = ValueError("a defect")
    arm._thread.join(60)
    with pytest.raises(RuntimeError, match="control thread has ended") as caught:
        arm.send_action(HOME)
    assert isinstance(caught.value.__cause__, ValueError)


def test_lerobot_is_not_imported() -> None:
    tree = ast.parse(Path(lerobot_follower.__file__).read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not [name for name in names if name.split(".")[0] == "lerobot"]

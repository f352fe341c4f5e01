"""An arm's ticks as a whole: what is sent in every state, and how fast a fault makes it hold."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.runtime import ArmRuntime, Tick
from embodied_rl.real_robot.core.states import ArmState, Event

ROBOT = load_robot("fr3")
NAMES, HOME, TICK, MS = ROBOT.limits.names, ROBOT.home, 10_000_000, 1_000_000


class Bench:
    """A runtime on an arm that follows at once, with cameras and a policy that can be switched off."""

    def __init__(self) -> None:
        self.runtime, self.now, self.sent = ArmRuntime(ROBOT, ["wrist"]), 0, [HOME]
        self.camera = self.policy = self.follows = self.measures = True
        self.ticks: list[Tick] = []

    def step(self, target: np.ndarray | None = None) -> Tick:
        self.now += TICK
        if self.camera:
            self.runtime.watchdog.observed("wrist", self.now)
        if self.policy:
            self.runtime.watchdog.heartbeat(self.now)
        if self.measures:
            measured = self.sent[-1] if self.follows else HOME
            assert self.runtime.joint_states(("finger", *NAMES[::-1]), (0.0, *measured[::-1]), self.now) is None
        command = None if target is None else Command(self.now, NAMES, target)
        tick = self.runtime.tick(self.now, command)
        if tick.setpoint is not None:
            self.sent.append(tick.setpoint.positions)
        self.ticks.append(tick)
        json.dumps(tick.record(), allow_nan=False)
        return tick

    def fire(self, event: Event) -> bool:
        return self.runtime.fire(event, self.now).accepted


def running() -> Bench:
    bench = Bench()
    bench.step()
    assert bench.fire(Event.ARM)
    assert bench.fire(Event.START)
    return bench


def moving() -> Bench:
    bench = running()
    for _ in range(20):
        assert bench.step(HOME + 0.2).setpoint is not None
    assert not bench.runtime.gate.at_rest
    return bench


def test_nothing_is_sent_before_arming_and_the_pose_is_kept_after() -> None:
    bench = Bench()
    assert bench.step(HOME + 0.1).setpoint is None
    assert bench.fire(Event.ARM)
    tick = bench.step(HOME + 0.1)
    assert (tick.selection.source, tick.decision) == ("none", None)
    assert tick.setpoint is not None
    assert (tick.setpoint.positions == HOME).all()


@pytest.mark.parametrize(
    ("part", "kind", "limit_ms"),
    [("camera", "camera", 250), ("policy", "policy", 250), ("measures", "joint_states", 100)],
)
def test_a_missing_part_makes_the_arm_hold_in_time_and_recover(part: str, kind: str, limit_ms: int) -> None:
    bench = moving()
    setattr(bench, part, False)
    lost = bench.now
    while bench.step(HOME + 0.2).held is None:
        assert bench.now - lost < limit_ms * MS
    held = bench.ticks[-1].held
    assert held is not None
    assert held.reason.startswith(kind)
    assert bench.now - lost <= limit_ms * MS
    while not bench.runtime.gate.at_rest:
        assert bench.step(HOME + 0.2).decision is None
    assert bench.now - lost <= 500 * MS
    assert not bench.fire(Event.RESUME)
    setattr(bench, part, True)
    bench.step()
    assert bench.runtime.machine.state is ArmState.HOLDING, "it does not move by itself"
    assert bench.fire(Event.RESUME)
    assert bench.step(HOME + 0.2).decision is not None


def test_after_the_e_stop_nothing_is_sent_until_a_new_start() -> None:
    bench = moving()
    assert bench.fire(Event.ESTOP)
    for _ in range(5):
        tick = bench.step(HOME + 0.2)
        assert (tick.setpoint, tick.decision, tick.state) == (None, None, ArmState.ESTOPPED)
    assert not bench.fire(Event.RESUME)
    assert not bench.fire(Event.START)
    assert bench.fire(Event.RESET)
    assert bench.step(HOME + 0.2).setpoint is None
    assert bench.fire(Event.ARM)
    assert bench.fire(Event.START)
    again = bench.step(bench.sent[-1])
    assert again.setpoint is not None
    assert (again.setpoint.positions == bench.sent[-1]).all(), "it starts where the arm is, at rest"


def test_a_tick_out_of_time_holds() -> None:
    bench = moving()
    bench.now += 30 * MS
    assert bench.step(HOME + 0.2).held is not None
    assert {fault.kind for fault in bench.ticks[-1].faults} == {"jitter"}


def test_an_arm_that_is_stuck_is_not_pushed_on() -> None:
    bench = moving()
    bench.follows = False
    while bench.step(HOME + 1.0).held is None:
        assert np.abs(bench.sent[-1] - HOME).max() < 0.25
    while not bench.runtime.gate.at_rest:
        bench.step()
    bench.follows = True
    for _ in range(3):
        assert [fault.kind for fault in bench.step().faults] == ["tracking"], "it stays where the error is gone"
    refused = bench.runtime.fire(Event.RESUME, bench.now)
    assert (refused.accepted, refused.after) == (False, ArmState.HOLDING)
    assert refused.reason.startswith("the arm did not follow its set point (fr3_joint4 is measured where it was")
    assert refused.reason.endswith("): clear its way, then disarm and arm it")
    assert bench.runtime.fire(Event.START, bench.now).reason == "start is not possible while holding"
    bench.runtime.mux.human(Command(bench.now, NAMES, HOME, source="human"), bench.now, engaged=True)
    assert bench.step().state is ArmState.HOLDING, "nor does a human move on from that set point"
    assert bench.fire(Event.DISARM)
    bench.follows = False
    bench.step()
    assert bench.fire(Event.ARM)
    tick = bench.step()
    assert (tick.faults, tick.setpoint is not None and (tick.setpoint.positions == HOME).all()) == ((), True)
    assert bench.fire(Event.START), "from where the arm is"


class Controller(Bench):
    """An arm whose controller keeps the last set point that it heard; `hears` and `seen` can be switched off."""

    def __init__(self) -> None:
        super().__init__()
        self.hears = self.seen = True
        self.arm, self.measures = HOME, False

    def step(self, target: np.ndarray | None = None) -> Tick:
        if self.seen:
            self.runtime.joint_states(NAMES, self.arm.tolist(), self.now + TICK)
        tick = super().step(target)
        if self.hears and tick.setpoint is not None:
            self.arm = tick.setpoint.positions
        return tick

    @staticmethod
    def moving() -> Controller:
        bench = Controller()
        bench.step()
        assert bench.fire(Event.ARM)
        assert bench.fire(Event.START)
        for _ in range(20):
            bench.step(HOME + 0.2)
        assert not bench.runtime.gate.at_rest
        return bench


@pytest.mark.parametrize("deaf_ms", [400, 1200, 10_000])
@pytest.mark.parametrize("seen", [True, False])
def test_a_controller_that_listens_again_moves_the_arm_by_nothing(deaf_ms: int, seen: bool) -> None:
    """The broken variant goes on publishing the set point that was not followed, 0.3 rad off."""
    bench = Controller.moving()
    bench.hears, bench.seen = False, seen
    stood, began = bench.arm, bench.now
    for tick in range(deaf_ms // 10):
        bench.step(HOME + 0.2 + 0.01 * tick)
    assert bench.runtime.machine.state is ArmState.HOLDING
    assert np.abs(bench.ticks[-1].setpoint.positions - stood).max() < 1e-9 if bench.ticks[-1].setpoint else True
    bench.hears = bench.seen = True
    for _ in range(200):
        bench.step(HOME + 1.0)
        assert np.abs(bench.arm - stood).max() < 1e-9
    assert bench.runtime.machine.state is ArmState.HOLDING
    if seen:
        assert [fault.kind for fault in bench.ticks[-1].faults] == ["tracking"]
        assert bench.ticks[-1].setpoint is None, "nothing is sent until it is armed again"
        assert not bench.fire(Event.RESUME)
        assert bench.fire(Event.DISARM)
        assert bench.fire(Event.ARM)
    else:
        assert bench.ticks[-1].setpoint is not None
        assert bench.fire(Event.RESUME), f"after {bench.now - began} ns it goes on from where the arm is"
    tick = bench.step(HOME + 1.0)
    assert tick.setpoint is not None
    assert np.abs(tick.setpoint.positions - stood).max() < 0.01


@pytest.mark.parametrize("name", ["fr3", "ur5e", "twin"])
@pytest.mark.parametrize("deaf_ms", [200, 300, 400, 500, 1000])
@pytest.mark.parametrize("after_ms", [200, 600])
def test_no_arms_controller_finds_a_far_set_point_when_it_listens_again(name: str, deaf_ms: int, after_ms: int) -> None:
    """A stop from full speed takes longer than that on some arms. The broken variant goes on sending it."""
    robot = load_robot(name)
    runtime, arm, now = ArmRuntime(robot, [], stops=True), robot.home, 0
    period, names = runtime.gate.period_ns, robot.limits.names
    target = robot.home + np.eye(len(names))[0] * 3

    def step(ticks: int, *, hears: bool) -> None:
        nonlocal arm, now
        for _ in range(ticks):
            now += period
            runtime.watchdog.heartbeat(now)
            assert runtime.joint_states(names, arm.tolist(), now) is None
            tick = runtime.tick(now, Command(now, names, target))
            arm = tick.setpoint.positions if hears and tick.setpoint is not None else arm

    step(1, hears=True)
    assert runtime.fire(Event.ARM, now).accepted
    assert runtime.fire(Event.START, now).accepted
    step(after_ms * MS // period, hears=True)
    stood = arm
    step(deaf_ms * MS // period, hears=False)
    assert runtime.machine.state is ArmState.HOLDING
    step(2000 * MS // period, hears=True)
    assert np.abs(arm - stood).max() < 0.02
    assert runtime.machine.state is ArmState.HOLDING


@pytest.mark.parametrize("deaf_ms", [20, 50])
def test_an_arm_that_is_held_is_asked_to_stay_where_it_stands(deaf_ms: int) -> None:
    """However little its controller missed before somebody held it: that would be caught up with in a jump.

    After more it is held because it stands still.
    """
    bench = Controller.moving()
    bench.hears = False
    for _ in range(deaf_ms // 10):
        bench.step(HOME + 0.2)
    stood = bench.arm
    assert bench.runtime.machine.state is ArmState.RUNNING
    assert bench.fire(Event.HOLD)
    for tick in range(100):
        bench.hears = tick > 40
        bench.step()
    assert np.abs(bench.arm - stood).max() < 0.02
    assert bench.fire(Event.RESUME)
    tick = bench.step(stood)
    assert tick.setpoint is not None
    assert np.abs(tick.setpoint.positions - stood).max() < 0.02


def test_an_arm_that_falls_behind_brakes_from_where_it_is() -> None:
    """It moves at a third of what it is asked: its stop is its own, within the limits, not a jump to its set point."""
    bench = Controller.moving()
    bench.hears = False
    while bench.step(HOME + 2.0).held is None:
        bench.arm = bench.arm + 0.3 * (bench.sent[-1] - bench.sent[-2])
    speed = 0.3 * (bench.sent[-2] - bench.sent[-3]) / 0.01
    given_up = bench.ticks[-1].setpoint
    assert given_up is not None
    assert np.abs(given_up.positions - bench.arm).max() < 0.02
    path = [given_up.positions, *(tick.setpoint.positions for _ in range(60) if (tick := bench.step()).setpoint)]
    steps = np.diff(path, axis=0) / 0.01
    assert (np.abs(steps) <= np.abs(speed) + 0.1).all()
    assert (np.diff(np.abs(steps), axis=0) <= 1e-6).all(), "it only brakes"
    assert np.abs(np.diff(steps, axis=0) / 0.01).max() <= ROBOT.limits.acceleration.max() * 1.001
    assert not np.abs(steps[-1]).any()


def test_a_short_loss_of_joint_states_does_not_stop_a_moving_arm_short() -> None:
    """An arm that follows is left to its stop; where it rests, its set point is where it is measured."""
    bench = Controller.moving()
    bench.seen = False
    while bench.step(HOME + 2.0).held is None:
        pass
    bench.seen = True
    before = bench.sent[-1]
    while not bench.runtime.gate.at_rest:
        tick = bench.step()
        assert tick.setpoint is not None
        assert (tick.setpoint.positions >= before).all()
        before = tick.setpoint.positions
    assert np.abs(bench.arm - before).max() == 0


def test_an_arm_that_left_its_limits_unseen_is_not_resumed() -> None:
    bench = Controller.moving()
    bench.hears = bench.seen = False
    for _ in range(60):
        bench.step(HOME + 0.2)
    bench.seen, bench.arm = True, HOME + np.eye(7)[1]  # by hand, below the table
    for _ in range(60):
        bench.step()
    refused = bench.runtime.fire(Event.RESUME, bench.now)
    assert not refused.accepted
    assert "outside its limits where it is measured" in refused.reason
    assert bench.ticks[-1].setpoint is None


def test_an_arm_that_brakes_is_not_disarmed() -> None:
    bench = moving()
    assert "running" in bench.runtime.fire(Event.DISARM, bench.now).reason
    assert bench.fire(Event.HOLD)
    while not bench.runtime.gate.at_rest:
        refused = bench.runtime.fire(Event.DISARM, bench.now)
        assert (refused.accepted, refused.after) == (False, ArmState.HOLDING)
        assert "brakes" in refused.reason
        assert bench.step().setpoint is not None
    assert bench.fire(Event.DISARM)


def test_a_human_moves_the_arm_without_cameras_and_policy_but_not_blind() -> None:
    bench = running()
    bench.camera = bench.policy = False
    for _ in range(30):
        human = Command(bench.now + TICK, NAMES, HOME + 0.02, source="human")
        bench.runtime.mux.human(human, bench.now + TICK, engaged=True)
        tick = bench.step(HOME - 0.1)
        assert tick.selection.intervention
        assert tick.decision is not None
        assert tick.decision.command.source == "human"
    assert {fault.kind for fault in bench.ticks[-1].faults} == {"camera", "policy"}
    bench.measures = False
    for _ in range(6):
        bench.step()
    assert bench.runtime.machine.state is ArmState.HOLDING


def test_an_arm_outside_its_workspace_is_not_armed() -> None:
    bench = Bench()
    bench.sent = [HOME + np.eye(7)[1]]
    bench.step()
    refused = bench.runtime.fire(Event.ARM, bench.now)
    assert not refused.accepted
    assert "workspace" in refused.reason
    unmeasured = ArmRuntime(ROBOT, []).fire(Event.ARM, 0)
    assert "joint states" in unmeasured.reason


def test_joint_states_that_lack_a_joint_are_not_used() -> None:
    runtime = ArmRuntime(ROBOT, [])
    lacking = runtime.joint_states(NAMES[:6], HOME[:6].tolist(), 0)
    assert lacking is not None
    assert "fr3_joint7" in lacking.detail
    broken = runtime.joint_states(NAMES, [float("nan")] * 7, 0)
    assert broken is not None
    assert {fault.kind for fault in runtime.watchdog.faults(0)} == {"joint_states", "policy"}


@given(st.lists(st.sampled_from([*Event, "camera", "policy", "late", "human", *["step"] * 6]), max_size=60))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_whatever_happens_the_limits_hold_and_a_stopped_arm_gets_nothing(happenings: list[Event | str]) -> None:
    bench = running()
    last_ns: int | None = None
    for happening in happenings:
        if isinstance(happening, Event):
            bench.runtime.fire(happening, bench.now)
            if not bench.runtime.machine.sends:
                last_ns = None
        elif happening in ("camera", "policy"):
            setattr(bench, happening, not getattr(bench, happening))
        elif happening == "late":
            bench.now += 3 * TICK
        elif happening == "human":
            human = Command(bench.now + TICK, NAMES, HOME - 0.3, source="human")
            bench.runtime.mux.human(human, bench.now + TICK, engaged=True)
        sends, before = bench.runtime.machine.sends, bench.sent[-1]
        tick = bench.step(HOME + 0.3)
        assert (tick.setpoint is not None) == sends
        if tick.setpoint is not None:
            elapsed_s = 0.01 if last_ns is None else (tick.setpoint.stamp_ns - last_ns) / 1e9
            last_ns = tick.setpoint.stamp_ns
            speed = np.abs(tick.setpoint.positions - before) / elapsed_s
            assert (speed <= ROBOT.limits.velocity).all()
            assert ROBOT.workspace.inside(tick.setpoint.positions)


@pytest.mark.parametrize("frozen", [NAMES, NAMES[3:4]])
@pytest.mark.parametrize("noise", [0.0, 0.0005])
def test_joints_that_are_measured_where_they_were_while_asked_to_move_hold(
    frozen: tuple[str, ...], noise: float
) -> None:
    """A driver that repeats its last joint states with new stamps: all of them, or one encoder's."""
    bench, rng = moving(), np.random.default_rng(0)
    rows = [NAMES.index(name) for name in frozen]
    began, kept = bench.sent[-1].copy(), bench.sent[-1][rows].copy()
    while bench.step(HOME + np.array([0.5, 0.3, 0.5, 0.5, 0.5, 0.5, 0.5])).held is None:
        measured = bench.sent[-1].copy()
        measured[rows] = kept + rng.normal(0, noise, len(rows))
        bench.measures = False
        bench.runtime.joint_states(NAMES, list(measured), bench.now)
        assert np.abs(bench.sent[-1] - began)[rows].max() < 0.07
    held = bench.ticks[-1].held
    assert held is not None
    assert "is measured where it was, its set point 0.0" in held.reason
    assert bench.runtime.machine.state is ArmState.HOLDING
    assert not bench.fire(Event.RESUME)


def test_a_frozen_arm_is_sent_its_stop_and_then_nothing_until_it_is_armed_again() -> None:
    """Where it is nobody knows: neither the set point nor the frozen pose is sent on."""
    bench = moving()
    bench.follows, measured = True, bench.sent[-1].copy()
    bench.measures = False
    sent: list[np.ndarray] = []
    for _ in range(100):
        bench.runtime.joint_states(NAMES, list(measured), bench.now)
        tick = bench.step(HOME + 0.5)
        sent += [] if tick.setpoint is None else [tick.setpoint.positions]
    assert bench.ticks[-1].setpoint is None
    steps = np.abs(np.diff(sent, axis=0)).max()
    assert steps <= ROBOT.limits.velocity.max() / ROBOT.rate_hz
    assert [fault.kind for fault in bench.ticks[-1].faults] == ["tracking"]
    for state in (HOME, HOME + 0.01):
        bench.runtime.joint_states(NAMES, list(state), bench.now)
        bench.step()
    assert not bench.fire(Event.RESUME)
    assert bench.fire(Event.DISARM)
    bench.measures, bench.sent = True, [HOME]
    bench.step()
    assert bench.fire(Event.ARM)
    assert bench.fire(Event.START)


def test_a_joint_that_occurs_twice_is_refused() -> None:
    bench = Bench()
    reason = bench.runtime.joint_states((*NAMES, NAMES[2]), (*HOME, 1.0), bench.now)
    assert reason is not None
    assert (reason.kind, reason.detail) == ("names", f"{NAMES[2]} twice in a message: publish each joint once")
    bench.step()
    assert bench.runtime.joint_states((*NAMES, "wheel", "wheel"), (*HOME, 0.0, 0.0), bench.now) is None, "not the arm's"


def test_a_reset_knows_who_presses_now_though_names_come_after_messages() -> None:
    bench = running()
    bench.runtime.button(True, bench.now, b"a", "a button")
    assert bench.runtime.machine.state is ArmState.ESTOPPED
    bench.runtime.buttons.publish({b"a": "cell_button"}, bench.now)
    refused = bench.runtime.fire(Event.RESET, bench.now)
    assert (refused.accepted, refused.reason) == (False, "the emergency stop is still pressed: cell_button")
    bench.runtime.button(False, bench.now, b"a", "cell_button")
    assert bench.fire(Event.RESET)

"""The control loop without ROS: an action moves the tool as training's controller would, and every stop is a stop."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot.core.cartesian import ControlLaw, PoseReference
from embodied_rl.real_robot.core.executor import ExecutorConfig, Overlap
from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.runtime import ArmRuntime, first_tick
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2.bridge import Bridge
from embodied_rl.real_robot.ros2.events import (
    ActionTaken,
    ChunkDecided,
    CommandJudged,
    EpisodeMarked,
    Intervened,
    StateChanged,
)
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.proprio import Proprio
from embodied_rl.real_robot.ros2.target import Target
from tests.real_robot.ros2.bench import CONFIG, ROBOT, STEP, Bench


def test_an_action_moves_the_tool_as_the_control_law_says() -> None:
    bench = Bench().run()
    reference = PoseReference(ControlLaw(), *ROBOT.chain.pose(bench.angles))
    bench.plan(0, 0.2, 0.2, 0, 0, 0.05, -1)
    for _ in range(6):
        reference.act(np.array([0, 0.2, 0.2, 0, 0, 0.05, -1]))
        for _ in range(5):
            reference.advance(0.01)
    bench.step(15)
    assert np.linalg.norm(bench.tool - reference.position) < 0.004
    assert np.linalg.norm(bench.tool - ROBOT.chain.position(ROBOT.home)) > 0.02


def test_an_arm_on_a_turned_base_moves_the_way_that_its_proprio_shows() -> None:
    base = Origin((-0.66, 0.0, 0.912), (0.0, 0.0, np.pi / 2))
    bench, proprio = Bench(base=base).run(), Proprio(ROBOT.chain, base)
    before, tool = proprio(bench.angles, (0.0, 0.0))[:3], bench.tool
    bench.plan(0.3, 0, 0, 0, 0, 0, -1)
    bench.step(20)
    moved = proprio(bench.angles, (0.0, 0.0))[:3] - before
    assert moved[0] > 0.02
    assert np.abs(moved[1:]).max() < 0.2 * moved[0]
    assert bench.tool[1] - tool[1] < -0.02, "training's x is the base's -y"
    by_hand = bench.tool
    for _ in range(20):
        bench.loop.human(np.array([0, 0.1, 0, 0, 0, 0]), 0.0, bench.now, engaged=True)
        bench.step()
    assert bench.tool[1] - by_hand[1] > 0.02, "a human's twist is in the base frame"


def test_the_twins_actions_begin_every_50_ms_however_late_its_ticks_are() -> None:
    robot, rng = load_robot("twin"), np.random.default_rng(0)
    config = ExecutorConfig(8, 7, STEP, Overlap.NEWEST, execution_horizon=8, discrete=(6,))
    loop, began = ControlLoop(robot, [], config), list[int]()
    loop.events.subscribe(lambda event: began.append(event.time_ns) if isinstance(event, ActionTaken) else None)
    due = first_tick(123_456_789, loop.period_ns)
    assert due > 123_456_789
    for tick in range(200):
        now = due + tick * loop.period_ns + int(rng.integers(0, 5_000_000))
        loop.joint_states(robot.limits.names, robot.home, now)
        loop.heartbeat(now)
        loop.tick(now)
        if tick == 1:
            assert loop.fire(Event.ARM, now).accepted
            assert loop.fire(Event.START, now).accepted
    gaps = np.diff(began)
    assert len(gaps) > 90
    assert np.abs(gaps - STEP).max() <= 5_000_000, "a tick that is late makes no step a tick longer"


def test_the_arm_rests_where_no_chunk_reaches() -> None:
    bench = Bench().run()
    bench.plan(0, 0.5, 0, 0, 0, 0, -1)
    bench.step(40)
    before = bench.tool
    bench.step(10)
    assert np.linalg.norm(bench.tool - before) < 1e-3
    assert any(isinstance(event, ActionTaken) and event.action is None for event in bench.events)


@pytest.mark.parametrize("state", [ArmState.ARMED, ArmState.RUNNING, ArmState.HOLDING, ArmState.HUMAN])
def test_nothing_is_sent_after_an_emergency_stop(state: ArmState) -> None:
    bench = Bench()
    bench.step(3)
    assert bench.fire(Event.ARM)
    if state is not ArmState.ARMED:
        assert bench.fire(Event.START)
        bench.plan(0, 0.5, 0, 0, 0, 0, -1)
    if state is ArmState.HOLDING:
        assert bench.fire(Event.HOLD)
    if state is ArmState.HUMAN:
        assert bench.loop.human(np.zeros(6), 0.0, bench.now, engaged=True) is not None
    bench.step(5)
    assert bench.loop.state is state
    bench.loop.button(True, bench.now)
    for _ in range(30):
        bench.loop.human(np.ones(6), 0.0, bench.now, engaged=True)
        assert bench.step().tick.setpoint is None
    assert not bench.fire(Event.RESET)
    bench.loop.button(False, bench.now)
    assert bench.fire(Event.RESET)
    assert bench.step().tick.setpoint is None


def test_a_lost_camera_holds_the_arm_until_somebody_resumes() -> None:
    bench = Bench().run()
    bench.plan(0, 0.5, 0, 0, 0, 0, -1)
    bench.camera = False
    bench.step(20)
    assert bench.loop.state is ArmState.HOLDING
    assert not bench.fire(Event.RESUME)
    bench.camera = True
    bench.step(5)
    assert bench.loop.state is ArmState.HOLDING
    assert bench.fire(Event.RESUME)


def bridge_of(bench: Bench) -> Any:
    """A bridge whose control thread has died."""
    bridge: Any = Bridge.__new__(Bridge)
    clock = SimpleNamespace(now_ns=lambda: bench.now)
    bridge.context = SimpleNamespace(loop=bench.loop, clock=clock, inference=SimpleNamespace(pause=lambda: None))
    bridge._operator, bridge._thread, bridge._stopping = SimpleNamespace(), None, threading.Event()
    return bridge


def test_an_arm_at_rest_is_disarmed_with_its_bridge_and_one_that_cannot_brake_is_e_stopped() -> None:
    bench = Bench().run()
    bridge_of(bench).deactivate()
    assert bench.loop.state is ArmState.IDLE
    bench = Bench().run()
    bench.plan(0, 0.5, 0, 0, 0, 0, -1)
    bench.step(5)
    bridge_of(bench).deactivate()
    assert bench.loop.state is ArmState.ESTOPPED


@pytest.mark.parametrize("late", ["resume", "takeover"])
def test_nothing_gets_an_arm_going_again_whose_bridge_is_deactivated(late: str) -> None:
    """A callback's wish while the arm brakes; the broken variant goes on and ends in the middle of a motion."""
    bench = Bench().run()
    bench.plan(0, 0.5, 0, 0, 0, 0, -1)
    bench.step(5)
    bridge = bridge_of(bench)
    bridge._thread = SimpleNamespace(is_alive=lambda: True, join=lambda timeout: None)

    def meanwhile(seconds: float) -> None:
        if late == "resume":
            assert "deactivated" in bench.loop.fire(Event.RESUME, bench.now).reason
        else:
            assert bench.loop.human(np.ones(6), 0.0, bench.now, engaged=True) is None
        bench.step()

    bridge._stopping = SimpleNamespace(wait=meanwhile, set=lambda: None)
    bridge.deactivate()
    assert bench.loop.state is ArmState.IDLE
    assert bench.loop.runtime.gate.at_rest
    bench.loop.leaving = False  # activated again
    bench.step(10)
    assert bench.fire(Event.ARM)


def test_an_arm_that_moves_is_not_armed() -> None:
    bench = Bench()
    for _ in range(10):
        bench.angles = bench.angles + np.eye(7)[0] * 0.02  # 1 rad/s
        bench.step()
    refused = bench.loop.fire(Event.ARM, bench.now)
    assert (refused.accepted, bench.loop.state) == (False, ArmState.IDLE)
    assert refused.reason.startswith(f"{ROBOT.limits.names[0]} moved by 0.100 rad in 0.1 s")
    bench.step(6)
    assert bench.loop.moving() == ""
    assert bench.fire(Event.ARM)


@pytest.mark.parametrize("phase", [0, 25, 49, 50, 51, 52, 75, 99])
def test_ticks_are_each_decided_once_whenever_the_arm_was_armed(phase: int) -> None:
    """The broken variant counts ticks from the moment of arming: half a tick beside them, jitter makes two or none."""
    robot, rng = load_robot("fr3"), np.random.default_rng(0)
    runtime, period = ArmRuntime(robot, []), robot.gate().period_ns
    due = first_tick(123_456_789, period)
    armed = due + period * phase // 100
    runtime.joint_states(robot.limits.names, robot.home.tolist(), armed)
    runtime.watchdog.heartbeat(armed)
    assert runtime.fire(Event.ARM, armed).accepted
    kinds = set[str]()
    for tick in range(1, 300):
        now = due + tick * period + int(rng.integers(0, 200_000))
        runtime.joint_states(robot.limits.names, robot.home.tolist(), now)
        runtime.watchdog.heartbeat(now)
        target = robot.home + 0.01 * np.sin(tick * 0.01)
        decided = runtime.tick(now, Command(now, robot.limits.names, target)).decision
        if tick == 1:
            assert runtime.fire(Event.START, now).accepted
            continue
        assert decided is not None
        kinds |= {reason.kind for reason in decided.reasons}
    assert not kinds & {"late", "rate"}


def test_a_human_moves_the_arm_and_lets_go() -> None:
    bench = Bench().run()
    bench.plan(0, 0.5, 0, 0, 0, 0, -1)
    bench.step(5)
    start = bench.tool
    for _ in range(20):
        bench.loop.human(np.array([0, 0, 0.1, 0, 0, 0]), 0.0, bench.now, engaged=True)
        assert bench.step().tick.selection.intervention
    assert 0.02 < bench.tool[2] - start[2] < 0.05
    still = bench.step(30).tick.setpoint
    assert still is not None
    assert not still.velocities.any(), "a silent device moves nothing"
    assert bench.loop.release(bench.now).accepted
    assert bench.loop.state is ArmState.HOLDING
    assert [event.began for event in bench.events if isinstance(event, Intervened)] == [True, False]


def test_what_is_asked_beyond_the_arms_speed_is_not_caught_up() -> None:
    target, angles = Target(ROBOT, ControlLaw(), 0.02, CONFIG.base), ROBOT.home
    tools = []
    for asked, ticks in ((np.array([0, 1.5, 0, 0, 0, 0]), 25), (np.zeros(6), 60)):
        for tick in range(ticks):
            target.by_hand(asked, 0.0)
            command = target.command(tick, "human")
            assert command is not None
            angles = command.positions
            target.reached(angles, braked=False)
        tools.append(ROBOT.chain.position(angles))
    assert np.linalg.norm(tools[1] - tools[0]) < 0.15


def test_malformed_words_of_a_human_are_void() -> None:
    bench = Bench().run()
    for twist in (np.full(6, np.nan), np.zeros(3)):
        assert bench.loop.human(twist, 0.0, bench.now, engaged=True) is None
    assert bench.loop.human(np.zeros(6), np.inf, bench.now, engaged=True) is None
    assert bench.loop.state is ArmState.RUNNING


def test_a_chunk_closes_the_gripper_within_its_limits() -> None:
    bench = Bench().run()
    bench.plan(0, 0, 0, 0, 0, 0, 1)
    widths = [bench.step().width for _ in range(20)]
    assert widths[0] == pytest.approx(0.04, abs=5e-3)
    assert widths[-1] == pytest.approx(0.0, abs=1e-3)
    assert ROBOT.gripper is not None
    steps = np.abs(np.diff(np.array(widths, float))) / 0.02
    assert steps.max() <= ROBOT.gripper.velocity[0] * (1 + 1e-6)


def test_everything_is_told() -> None:
    bench = Bench().run()
    bench.plan(0, 0.1, 0, 0, 0, 0, -1)
    bench.step(3)
    kinds = {type(event) for event in bench.events}
    assert kinds == {StateChanged, ChunkDecided, ActionTaken, CommandJudged}
    assert EpisodeMarked not in kinds, "the bridge marks episodes"


def test_joints_of_a_gripper_may_come_on_their_own() -> None:
    bench = Bench()
    assert CONFIG.gripper is not None
    assert bench.loop.joint_states(CONFIG.gripper.fingers, [0.03, -0.01], 1) is None
    assert bench.loop.measured(1) is None
    assert bench.loop.joint_states(ROBOT.limits.names, ROBOT.home, 2) is None
    measured = bench.loop.measured(2)
    assert measured is not None
    assert measured.fingers == (0.03, -0.01)
    assert bench.loop.joint_states(ROBOT.limits.names[:3], ROBOT.home[:3], 3) is not None


def test_proprio_is_the_simulators() -> None:
    import mujoco

    from embodied_rl.real_robot.twin.plant import Plant

    plant = Plant("tabletop_object")
    plant.reset(plant.tasks[0], 0, 0)
    env, fingers, seen = plant._running(), (0.03, -0.01), np.zeros(8, np.float32)
    proprio, rng = Proprio(ROBOT.chain, CONFIG.base), np.random.default_rng(0)
    for _ in range(5):
        angles = ROBOT.home + rng.uniform(-0.4, 0.4, 7)
        env.data.qpos[plant._robot.qpos], env.data.qpos[plant._robot.finger_qpos] = angles, fingers
        mujoco.mj_forward(env.model, env.data)
        env.look()
        env.proprio(seen)
        assert np.allclose(proprio(angles, fingers), seen, atol=1e-6)

"""What a controller is sent, without ROS: messages are plain objects here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.ros2.adapters import arm_adapter, gripper_adapter
from embodied_rl.real_robot.ros2.adapters.position_array import PositionArrayAdapter
from embodied_rl.real_robot.ros2.adapters.stamps import nanoseconds
from embodied_rl.real_robot.ros2.config import ArmTopic, GripperTopic
from tests.real_robot.ros2.bench import ROBOT, Bench

ACTION = ArmTopic("joint_trajectory_action", "/joint_trajectory_controller/follow_joint_trajectory")

GRIPPER = GripperTopic("gripper_command", "/gripper_controller/gripper_cmd", 0.5, ("finger",), effort=20.0)


def stamp() -> SimpleNamespace:
    return SimpleNamespace(sec=0, nanosec=0)


def trajectory(joint_names: list[str]) -> SimpleNamespace:
    return SimpleNamespace(joint_names=joint_names, header=SimpleNamespace(stamp=stamp()), points=[])


def point(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values, time_from_start=stamp())


class Answer:
    """What a controller says to a goal, at once."""

    def add_done_callback(self, answered: Any) -> None:
        answered(SimpleNamespace(result=lambda: SimpleNamespace(accepted=Action.accepts)))


class Node:
    """A node of which only the log is used."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def get_logger(self) -> Any:
        return SimpleNamespace(error=lambda text, throttle_duration_sec: self.errors.append(text))


class Action:
    """An action server's client that keeps its goals."""

    goals: list[Any]
    accepts = True

    def __init__(self, node: object, kind: object, name: str) -> None:
        assert name in (ACTION.topic, GRIPPER.topic)
        Action.goals = []

    def send_goal_async(self, goal: Any) -> Answer:
        Action.goals.append(goal)
        return Answer()


def module(name: str, **values: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(values)
    return made


@pytest.fixture
def ros(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = SimpleNamespace(Goal=SimpleNamespace)
    command = SimpleNamespace(Goal=lambda: SimpleNamespace(command=SimpleNamespace()))
    for made in (
        module("trajectory_msgs"),
        module("trajectory_msgs.msg", JointTrajectory=trajectory, JointTrajectoryPoint=point),
        module("rclpy"),
        module("rclpy.action", ActionClient=Action),
        module("control_msgs"),
        module("control_msgs.action", FollowJointTrajectory=kind, GripperCommand=command),
    ):
        monkeypatch.setitem(sys.modules, made.__name__, made)


@pytest.mark.usefixtures("ros")
def test_each_goal_is_a_set_point_and_a_stop() -> None:
    bench = Bench().run()
    bench.plan(0, 0.8, 0, 0, 0, 0, -1)
    output = bench.step(12)
    node = Node()
    adapter = arm_adapter(node, ACTION, ROBOT)
    adapter.send(output, 5_250_000_000)
    assert node.errors == []
    (goal,) = Action.goals
    sent = goal.trajectory
    assert sent.joint_names == list(ROBOT.limits.names)
    assert nanoseconds(sent.header.stamp) == 5_250_000_000
    assert output.tick.setpoint is not None
    np.testing.assert_array_equal(sent.points[0].positions, output.tick.setpoint.positions)
    assert np.abs(sent.points[0].velocities).max() > 0.05, "it moves"
    assert np.abs(sent.points[-1].velocities).max() < 1e-9, "and comes to rest where nothing follows"
    times = [nanoseconds(one.time_from_start) for one in sent.points]
    assert times == sorted(set(times))
    assert times[0] > 0


@pytest.mark.usefixtures("ros")
def test_a_controller_that_refuses_goals_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Action, "accepts", False)
    bench, node = Bench().run(), Node()
    bench.plan(0, 0.8, 0, 0, 0, 0, -1)
    arm_adapter(node, ACTION, ROBOT).send(bench.step(12), 0)
    assert node.errors == [f"{ACTION.topic} refuses goals: is the controller active?"]


@pytest.mark.usefixtures("ros")
def test_a_gripper_that_refuses_a_goal_is_asked_again_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Action, "accepts", False)
    node = Node()
    gripper = gripper_adapter(node, GRIPPER)
    for ms in range(0, 500, 10):
        gripper.send(0.04, ms * 1_000_000)
    assert len(Action.goals) == 3, "five times a second"
    assert set(node.errors) == {f"{GRIPPER.topic} refuses goals: is the gripper's controller active?"}
    monkeypatch.setattr(Action, "accepts", True)
    for ms in range(600, 2000, 10):
        gripper.send(0.04, ms * 1_000_000)
    assert len(Action.goals) == 4, "it has moved"


@pytest.mark.usefixtures("ros")
def test_without_control_msgs_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "control_msgs.action", None)
    with pytest.raises(UserError, match=r"control-msgs, or take joint_trajectory"):
        arm_adapter(None, ACTION, ROBOT)


def kept(data: Any) -> np.ndarray:
    """A message that is its numbers."""
    return np.array(data)


def bare_positions(monkeypatch: pytest.MonkeyPatch, sent: list[np.ndarray], clock: list[int]) -> PositionArrayAdapter:
    """An adapter that sends to a list, at the times of a clock that is set by hand."""
    monkeypatch.setitem(sys.modules, "std_msgs", ModuleType("std_msgs"))
    messages: Any = ModuleType("std_msgs.msg")
    messages.Float64MultiArray = kept
    monkeypatch.setitem(sys.modules, "std_msgs.msg", messages)
    monkeypatch.setattr("embodied_rl.real_robot.ros2.qos.command", lambda: None)
    node: Any = SimpleNamespace(create_publisher=lambda *_: SimpleNamespace(publish=sent.append))
    return PositionArrayAdapter(node, "/commands", ROBOT, lambda: clock[0])


@pytest.mark.parametrize("seed", range(5))
def test_bare_positions_keep_the_limits_of_velocity_in_real_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks that come late and then on time: what is sent is never further apart than the time between two messages."""
    sent, rng = list[np.ndarray](), np.random.default_rng(seed)
    limits, period = ROBOT.limits, 1 / ROBOT.rate_hz
    clock = [0]
    adapter = bare_positions(monkeypatch, sent, clock)
    gate = ROBOT.gate()
    gate.start(ROBOT.home, 0)
    times, asked = list[float](), list[np.ndarray]()
    for tick in range(1, 200):
        now = tick * gate.period_ns
        target = ROBOT.home + (0.4 if tick < 60 else -0.4 if tick < 120 else 0.0)
        setpoint = gate.decide(Command(now, limits.names, target), now).setpoint
        assert setpoint is not None
        clock[0] = now + round(rng.choice([0.0, 0.9, 0.5]) * period * 1e9)
        output: Any = SimpleNamespace(tick=SimpleNamespace(setpoint=setpoint))
        adapter.send(output, 0)
        times.append(clock[0] / 1e9)
        asked.append(setpoint.positions)
    speed, unpaced = (np.abs(np.diff(rows, axis=0)) / np.diff(times)[:, None] for rows in (sent, asked))
    assert (speed <= limits.velocity * (1 + 1e-6)).all()
    assert (unpaced > 2 * limits.velocity).any(), "set points as they are would ask for more"
    np.testing.assert_allclose(sent[-1], gate.positions, atol=1e-12)


def test_bare_positions_begin_anew_where_the_arm_is_after_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, clock = list[np.ndarray](), [0]
    adapter = bare_positions(monkeypatch, sent, clock)
    for clock[0], offset in ((0, 0.0), (10**9, 1.0)):
        output: Any = SimpleNamespace(tick=SimpleNamespace(setpoint=SimpleNamespace(positions=ROBOT.home + offset)))
        adapter.send(output, 0)
    np.testing.assert_array_equal(sent[-1], ROBOT.home + 1.0)


def test_bare_positions_of_a_set_point_that_was_given_up_are_the_arms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arm did not follow. What leads from the far set point back to it would be jumped to by who listens again."""
    sent, clock, gate = list[np.ndarray](), [0], ROBOT.gate()
    adapter = bare_positions(monkeypatch, sent, clock)
    gate.start(ROBOT.home, 0)
    for tick in range(1, 60):
        clock[0] = now = tick * gate.period_ns
        if tick == 40:
            assert np.abs(gate.positions - ROBOT.home).max() > 0.2
            assert gate.brake_from(ROBOT.home, np.zeros(len(ROBOT.home)))
        command = Command(now, ROBOT.limits.names, ROBOT.home + 0.4)
        setpoint = gate.decide(command, now).setpoint if tick < 40 else gate.hold(now)
        output: Any = SimpleNamespace(tick=SimpleNamespace(setpoint=setpoint))
        adapter.send(output, 0)
        assert tick < 40 or np.abs(sent[-1] - ROBOT.home).max() < 1e-12

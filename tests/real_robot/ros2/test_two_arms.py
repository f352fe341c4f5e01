"""The bridge's loop on two arms, and their twin, without ROS."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.robot import ROBOTS
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.context import _executor_config
from embodied_rl.real_robot.ros2.events import StateChanged
from embodied_rl.real_robot.ros2.limits_table import limits_table
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.output import each_arms
from embodied_rl.real_robot.ros2.preflight import _two_arms
from embodied_rl.real_robot.ros2.publishers import nobody_listens, other_commanders
from embodied_rl.real_robot.ros2.two_arm_target import TwoArmProprio, axis_names
from embodied_rl.real_robot.twin import two_arm_plant
from embodied_rl.real_robot.twin.two_arm_plant import TwoArmPlant
from tests.real_robot.ros2.two_arm_bench import CONFIG, ROBOT, TICK, TwoArmBench
from tests.real_robot.test_two_arms import NEAR, NoAliases
from tests.real_robot.two_arms_model import TwoArmModel, scene_xml


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> TwoArmBench:
    return TwoArmBench(tmp_path_factory.mktemp("arms"))


def run(bench: TwoArmBench) -> None:
    bench.begin()
    for _ in range(4):
        bench.tick()
    assert bench.loop.fire(Event.ARM, bench.now).accepted
    assert bench.loop.fire(Event.START, bench.now).accepted


def action_of(angles: np.ndarray, left: float = 0.5, right: float = 0.5) -> np.ndarray:
    return np.concatenate([angles[:6], [left], angles[6:], [right]])


def test_an_action_moves_both_arms_and_their_grippers(bench: TwoArmBench) -> None:
    run(bench)
    target = ROBOT.home + np.array([0.3, -0.1, 0.1, 0.2, 0.2, 0.3, -0.2, 0.1, -0.1, -0.2, 0.1, -0.3])
    for _ in range(8):
        bench.plan(action_of(target, left=1.0, right=0.0))
        for _ in range(8):
            output = bench.tick()
    np.testing.assert_allclose(bench.measured[:12], target, atol=0.01)
    np.testing.assert_allclose(bench.seen, action_of(target, 1.0, 0.0), atol=0.05)
    assert output.position.shape == (2, 3)
    left, right = each_arms(output, ROBOT)
    assert left.width == pytest.approx(0.116, abs=1e-5)
    assert right.width == pytest.approx(0.03688, abs=1e-5)
    assert (right.position == output.position[1]).all()
    assert len(left.stop) == len(output.stop)


def test_episodes_of_a_policy_that_leads_the_arms_together(bench: TwoArmBench) -> None:
    """The set points by the file's figures; the arms as the physics has them, by MuJoCo."""
    model, rng, held = TwoArmModel(), np.random.default_rng(0), set[str]()
    low, high, nearest, sent = ROBOT.limits.lower, ROBOT.limits.upper, 9.0, 0
    for _ in range(8):
        run(bench)
        before = bench.loop.runtime.gate.positions
        target = np.clip(NEAR + rng.normal(size=12) * 0.25, low - 0.01, high + 0.01)
        for tick in range(24):
            if tick % 8 == 0 and bench.loop.state is ArmState.RUNNING:
                here = bench.measured[:12]
                wild = here + np.clip(target - here, -0.6, 0.6) * rng.uniform(0.3, 1.0)
                bench.plan(action_of(wild, *rng.uniform(-0.5, 1.5, 2)))
            output = bench.tick()
            setpoint = output.tick.setpoint
            assert setpoint is not None
            assert ((setpoint.positions >= low) & (setpoint.positions <= high)).all()
            speed = np.abs(setpoint.positions - before) / (TICK / 1e9)
            assert (speed <= ROBOT.limits.velocity).all()
            before, sent = setpoint.positions, sent + 1
            nearest = min(nearest, model.distance(bench.measured[:12]))
            assert model.outside(setpoint.positions) <= 0
        changes = [event.transition for event in bench.events if isinstance(event, StateChanged)]
        held |= {change.reason.partition(":")[0] for change in changes if change.event is Event.HOLD}
    assert "distance" in held
    assert sent == 8 * 24
    assert ROBOT.distance - 1e-3 <= nearest < ROBOT.distance + 0.1, nearest


def test_arms_that_come_too_near_hold_and_are_resumed(bench: TwoArmBench) -> None:
    run(bench)
    for tick in range(200):
        if tick % 8 == 0:
            here = bench.measured[:12]
            bench.plan(action_of(here + np.clip(NEAR - here, -0.15, 0.15)))
        bench.tick()
        if bench.loop.state is ArmState.HOLDING:
            break
    changes = [event.transition for event in bench.events if isinstance(event, StateChanged)]
    assert changes[-1].event is Event.HOLD
    assert re.match(r"distance: left \w+ and right \w+ 0\.\d+ m apart, at least 0\.05", changes[-1].reason)
    for _ in range(40):
        bench.tick()
    assert ROBOT.clearance.at(bench.measured[:12]) >= ROBOT.distance - 1e-3
    assert bench.loop.fire(Event.RESUME, bench.now).accepted
    for _ in range(12):
        here = bench.measured[:12]
        bench.plan(action_of(here + np.clip(ROBOT.home - here, -0.1, 0.1)))
        for _ in range(8):
            bench.tick()
    assert bench.loop.state is ArmState.RUNNING


def test_no_twist_takes_two_arms_over(bench: TwoArmBench) -> None:
    run(bench)
    assert bench.loop.human(np.zeros(6), 0.0, bench.now, engaged=True) is None
    assert bench.loop.state is ArmState.RUNNING


def test_proprio_and_actions_have_one_order() -> None:
    seen = TwoArmProprio(ROBOT)(np.arange(12.0), (0.03688, 0.116))
    np.testing.assert_allclose(seen, [0, 1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10, 11, 1], atol=1e-6)
    names = axis_names(ROBOT)
    assert (names[0], names[6], names[7], names[13]) == (
        "vx300s_left/waist",
        "left/gripper",
        "vx300s_right/waist",
        "right/gripper",
    )


METADATA = {"action_dim": 14, "proprio_dim": 14, "cameras": 0, "chunk_len": 8, "policy": "p"}


def test_a_policy_of_one_arm_is_refused_for_two() -> None:
    config = _executor_config(METADATA, BridgeOptions(), 0, ROBOT)
    assert (config.action_dim, config.period_ns, config.discrete) == (14, TICK, ())
    with pytest.raises(UserError, match=r"actions have 7 numbers; the bridge takes ALOHA .*'s 14: each arm's joints"):
        _executor_config(METADATA | {"action_dim": 7}, BridgeOptions(), 0, ROBOT)
    with pytest.raises(UserError, match=r"the policy reads 8 numbers; the bridge has ALOHA .*'s 14"):
        _executor_config(METADATA | {"proprio_dim": 8}, BridgeOptions(), 0, ROBOT)


def test_all_limits_of_two_arms_are_in_the_table() -> None:
    table = limits_table(ROBOT, CONFIG)
    for words in ("vx300s_left/waist -3.112", "right tool z 0.005 to 0.6 m in world", "keep 0.05 m between them"):
        assert words in table


def test_the_check_before_arming_sees_both() -> None:
    assert all(check.passed for check in _two_arms(ROBOT, ROBOT.home))
    near = {check.name: check for check in _two_arms(ROBOT, NEAR)}
    assert not near["distance"].passed
    assert re.match(r"left \w+ and right \w+ -?0\.\d+ m apart; move it by hand", near["distance"].detail)
    low = ROBOT.home.copy()
    low[7] += 1.2
    assert "right: vx300s_right/fingertips" in {one.name: one for one in _two_arms(ROBOT, low)}["workspace"].detail


def test_each_arms_controller_must_listen_and_have_one_commander(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rclpy.node", SimpleNamespace(NodeNameNonExistentError=LookupError))
    listeners, publishers = {arm.topic: 1 for arm in CONFIG.arms}, dict[str, list[Any]]()
    node: Any = SimpleNamespace(
        count_subscribers=lambda topic: listeners[topic],
        get_publishers_info_by_topic=lambda topic: publishers.get(topic, []),
        get_node_names_and_namespaces=list,
        get_name=lambda: "embodied_rl",
        get_namespace=lambda: "/",
    )
    assert nobody_listens(node, CONFIG) == other_commanders(node, CONFIG) == ""
    listeners[CONFIG.arms[1].topic] = 0
    assert "/right_arm_controller/joint_trajectory: is the controller active?" in nobody_listens(node, CONFIG)
    publishers[CONFIG.grippers[1].topic] = [SimpleNamespace(node_name="moveit", node_namespace="/")]
    assert other_commanders(node, CONFIG) == f"moveit also publishes {CONFIG.grippers[1].topic}: stop it"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ros: ros.pop("right"), "ros.right: missing"),
        (lambda ros: ros.update(arm={}), "ros.arm: unknown key"),
        (lambda ros: ros["right"].update(arm=ros["left"]["arm"]), "ros.right.arm.topic: /left_arm_controller"),
        (
            lambda ros: ros["right"]["gripper"].update(fingers=ros["left"]["gripper"]["fingers"]),
            "ros.right.gripper.fingers: vx300s_left/left_finger is another joint's name already",
        ),
        (lambda ros: ros["left"].pop("gripper"), "ros.left.gripper: missing"),
    ],
)
def test_topics_of_two_arms_are_checked(change: Any, message: str, tmp_path: Path) -> None:
    content, path = yaml.safe_load((ROBOTS / "aloha.yaml").read_text()), tmp_path / "arms.yaml"
    change(content["ros"])
    path.write_text(yaml.dump(content, sort_keys=False, Dumper=NoAliases))
    with pytest.raises(UserError, match=re.escape(f"arms.yaml: {message}")):
        load_ros_config(str(path))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('timestep="0.002"', 'timestep="0.005"', "its timestep is 0.005 s; the twin needs 0.002"),
        ("vx300s_right/elbow", "elbow", "no joint of the robot's file: "),
        ('<position joint="vx300s_left/waist" kp="50"/>', "", "0 actuators drive vx300s_left/waist"),
        ('name="top"', 'name="above"', "no camera of the robot's file: "),
        ("<worldbody>", "<world>", "the twin's suite is an MJCF's path for two arms"),
    ],
)
def test_an_mjcf_that_lacks_something_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "arms.xml"
    path.write_text(scene_xml(yaml.safe_load((ROBOTS / "aloha.yaml").read_text())).replace(old, new))
    with pytest.raises(UserError, match=re.escape(message)):
        TwoArmPlant(str(path), ROBOT, CONFIG)


def test_the_twin_draws_what_its_cameras_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renderer has tests of its own."""
    drawn = list[tuple[int, tuple[str, ...]]]()

    def render(scene: int, xpos: np.ndarray, xmat: np.ndarray, cameras: tuple[str, ...], out: np.ndarray) -> None:
        drawn.append((scene, cameras))
        out[:] = len(xpos)

    renderer = SimpleNamespace(add_scene=lambda model: 7, render=render)
    monkeypatch.setattr(two_arm_plant, "make_renderer", lambda *_: renderer)
    path = tmp_path / "arms.xml"
    path.write_text(scene_xml(yaml.safe_load((ROBOTS / "aloha.yaml").read_text())))
    plant = TwoArmPlant(str(path), ROBOT, CONFIG, image_size=32)
    plant.reset("arms", 0, 0)
    (image,) = plant.images()
    assert (image.shape, image.dtype, drawn) == ((32, 32, 3), np.uint8, [(7, ("top",))])
    with pytest.raises(UserError, match="initial states 0 to 0"):
        plant.reset("arms", 1, 0)

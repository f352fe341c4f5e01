"""The `ros` section of an arm's YAML: topics, controllers, cameras, and where the base stands in training's world."""

from __future__ import annotations

import re
from dataclasses import dataclass

from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.real_robot.core.robot import robot_path
from embodied_rl.real_robot.core.yaml_reader import Band, Section, read_yaml

ARM_ADAPTERS = (
    "joint_trajectory",
    "joint_trajectory_action",
    "position_array",
    "crisp_pose",
    "crisp_joint",
    "servo_twist",
)
GRIPPER_ADAPTERS = ("float64_array", "gripper_command")
_TOPIC = re.compile(r"/?[A-Za-z_]\w*(/[A-Za-z_]\w*)*", re.ASCII)
_BASE, _TURN, _SCALE, _EFFORT = (-20.0, 20.0), (-6.2832, 6.2832), (0.1, 20.0), (0.5, 250.0)
"""What is plausible, see core/robot.py: m, rad, what is sent per metre of width, N."""


@dataclass(frozen=True)
class CameraTopic:
    """A camera: `name` is for people, `compressed` says sensor_msgs/CompressedImage."""

    name: str
    topic: str
    compressed: bool


@dataclass(frozen=True)
class ArmTopic:
    """Where set points go, and in which controller's words (one of ARM_ADAPTERS)."""

    adapter: str
    topic: str

    @property
    def has_stops(self) -> bool:
        """Whether each set point comes with the stop after it."""
        return self.adapter in ("joint_trajectory", "joint_trajectory_action")

    @property
    def goals(self) -> str:
        """The service by which an action takes goals; empty for a topic."""
        return f"{self.topic}/_action/send_goal" if self.adapter == "joint_trajectory_action" else ""


@dataclass(frozen=True)
class GripperTopic:
    """Where the gripper's width goes.

    Args:
        adapter: One of GRIPPER_ADAPTERS.
        topic: The controller's topic or action.
        scale: What is sent for each metre of width: 0.5 for a controller that takes one finger's position.
        fingers: Names in the joint states whose absolute positions add up to the width.
        effort: The largest force of a `gripper_command`, N; None for others, which take none.
    """

    adapter: str
    topic: str
    scale: float
    fingers: tuple[str, ...]
    effort: float | None = None


@dataclass(frozen=True)
class RosConfig:
    """All that the bridge must know beyond the core's `Robot`.

    Attributes:
        joint_states: Topic of sensor_msgs/JointState.
        emergency_stop: Topic of std_msgs/Bool, the button.
        has_button: Whether there is one: then the arm is armed once it was heard.
        arm: Where set points go.
        gripper: The same for the gripper; None for an arm without.
        cameras: In the order in which the policy reads them.
        base: The base frame in the world in which the policy was trained; unused for two arms.
        second_arm: The second of two arms; None: there is one.
        second_gripper: The second arm's.
    """

    joint_states: str
    emergency_stop: str
    has_button: bool
    arm: ArmTopic
    gripper: GripperTopic | None
    cameras: tuple[CameraTopic, ...]
    base: Origin
    second_arm: ArmTopic | None = None
    second_gripper: GripperTopic | None = None

    @property
    def arms(self) -> tuple[ArmTopic, ...]:
        """One, or two in the order of the robot's file."""
        return tuple(one for one in (self.arm, self.second_arm) if one is not None)

    @property
    def grippers(self) -> tuple[GripperTopic, ...]:
        """The arms', where they have any."""
        return tuple(one for one in (self.gripper, self.second_gripper) if one is not None)

    @property
    def fingers(self) -> tuple[str, ...]:
        """All grippers' fingers in the joint states."""
        return tuple(name for gripper in self.grippers for name in gripper.fingers)


def load_ros_config(robot: str) -> RosConfig:
    """Read the `ros` section of a shipped arm or of a file.

    Raises:
        UserError: One line with the file, the key and what to do.
    """
    file = read_yaml(robot_path(robot))
    if not file.has("ros"):
        raise file.wrong("ros", "missing, so the bridge knows no topics: copy the section of robots/generic.yaml")
    ros = file.section("ros")
    if file.has("arms"):
        return _two_arms(file, ros)
    arm = ros.section("arm")
    base = ros.section("base_in_training")
    config = RosConfig(
        joint_states=_topic(ros, "joint_states"),
        emergency_stop=_topic(ros, "emergency_stop"),
        has_button=_has_button(ros),
        arm=_arm(arm),
        gripper=_gripper(ros.section("gripper")) if ros.has("gripper") else None,
        cameras=_cameras(ros.section("cameras")),
        base=Origin(_three(base, "xyz", "m", _BASE), _three(base, "rpy", "rad", _TURN)),
    )
    for section in (arm, base, ros):
        section.done()
    file.overrides_done(ros=True)
    _refuse_repeated(config, ros, file.section("joints").keys, ("",))
    return config


def _two_arms(file: Section, ros: Section) -> RosConfig:
    """The section of a robot of two arms: topics of each under its name."""
    sides = file.section("arms").keys
    parts = [ros.section(side) for side in sides]
    arms = [part.section("arm") for part in parts]
    topics, grippers = [_arm(arm) for arm in arms], [_gripper(part.section("gripper")) for part in parts]
    config = RosConfig(
        joint_states=_topic(ros, "joint_states"),
        emergency_stop=_topic(ros, "emergency_stop"),
        has_button=_has_button(ros),
        arm=topics[0],
        gripper=grippers[0],
        cameras=_cameras(ros.section("cameras")),
        base=Origin(),
        second_arm=topics[1],
        second_gripper=grippers[1],
    )
    for section in (*arms, *parts, ros):
        section.done()
    file.overrides_done(ros=True)
    joints = [joint for side in sides for joint in file.section("arms").section(side).section("joints").keys]
    _refuse_repeated(config, ros, joints, tuple(f"{side}." for side in sides))
    return config


def _has_button(ros: Section) -> bool:
    return ros.flag("emergency_stop_button") if ros.has("emergency_stop_button") else True


def _arm(section: Section) -> ArmTopic:
    return ArmTopic(_one_of(section, "adapter", ARM_ADAPTERS), _topic(section, "topic"))


def _refuse_repeated(config: RosConfig, ros: Section, joints: list[str], of: tuple[str, ...]) -> None:
    """One topic has one meaning, and a finger is a joint of its own; `of`: each arm's part of the keys."""
    topics = {"joint_states": config.joint_states, "emergency_stop": config.emergency_stop}
    topics |= {f"{part}arm.topic": arm.topic for part, arm in zip(of, config.arms, strict=True)}
    known = list(joints)
    for part, gripper in zip(of, config.grippers, strict=False):
        topics[f"{part}gripper.topic"] = gripper.topic
        for name in gripper.fingers:
            if name in known:
                raise ros.wrong(f"{part}gripper.fingers", f"{name:.80} is another joint's name already")
            known.append(name)
    topics |= {f"cameras.{camera.name}.topic": camera.topic for camera in config.cameras}
    seen = dict[str, str]()
    for key, topic in topics.items():
        whole = "/" + topic.removeprefix("/").removesuffix("/compressed")  # the same camera's in another form
        if whole in seen:
            raise ros.wrong(key, f"{topic:.80} is ros.{seen[whole]} already: give each its own topic")
        seen[whole] = key


def _gripper(section: Section) -> GripperTopic:
    adapter = _one_of(section, "adapter", GRIPPER_ADAPTERS)
    force = adapter == "gripper_command"
    if not force and section.has("effort"):
        raise section.wrong("effort", f"{adapter} sends none: remove it")
    found = GripperTopic(
        adapter=adapter,
        topic=_topic(section, "topic"),
        scale=section.number("scale", "what is sent per metre of width", _SCALE, positive=True),
        fingers=section.texts("fingers"),
        effort=section.number("effort", "N", _EFFORT, positive=True) if force else None,
    )
    section.done()
    return found


def _cameras(section: Section) -> tuple[CameraTopic, ...]:
    cameras = []
    for name in section.keys:
        camera = section.section(name)
        kind = _one_of(camera, "type", ("raw", "compressed"))
        cameras.append(CameraTopic(name, _topic(camera, "topic"), kind == "compressed"))
        camera.done()
    return tuple(cameras)


def _one_of(section: Section, key: str, known: tuple[str, ...]) -> str:
    value = section.text(key)
    if value not in known:
        raise section.wrong(key, f"'{value:.80}' is none of {', '.join(known)}")
    return value


def _topic(section: Section, key: str) -> str:
    topic = section.text(key)
    if not _TOPIC.fullmatch(topic):
        raise section.wrong(key, f"'{topic:.80}' is no name of a topic: such as /front/color/image_raw")
    return topic


def _three(section: Section, key: str, unit: str, band: Band) -> tuple[float, float, float]:
    x, y, z = section.numbers(key, 3, unit, band)
    return x, y, z

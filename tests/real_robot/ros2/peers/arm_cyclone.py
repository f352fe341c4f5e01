"""The peer's arm on Eclipse Cyclone DDS, without ROS: the message types are written here from ROS' definitions.

python -m tests.real_robot.ros2.peers.arm_cyclone DOMAIN
"""

# No `from __future__ import annotations`: cyclonedds reads the types of the fields.

import itertools
import sys
import threading
from dataclasses import dataclass

from cyclonedds.core import Policy, Qos
from cyclonedds.domain import Domain, DomainParticipant
from cyclonedds.idl import IdlStruct
from cyclonedds.idl.types import float64, int32, sequence, uint8, uint32
from cyclonedds.pub import DataWriter
from cyclonedds.sub import DataReader
from cyclonedds.topic import Topic
from cyclonedds.util import duration

from tests.real_robot.ros2.peers import arm as peer

CONFIG = """<CycloneDDS><Domain Id="any">
<General><Interfaces><NetworkInterface name="lo"/></Interfaces><AllowMulticast>false</AllowMulticast></General>
<Discovery><ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>40</MaxAutoParticipantIndex>
<Peers><Peer address="127.0.0.1"/></Peers></Discovery>
<Compatibility><IgnoreTypeInformation>1.15</IgnoreTypeInformation></Compatibility>
</Domain></CycloneDDS>"""
"""Types are compared by name: Cyclone's description of a type and Fast DDS' differ where the bytes do not."""


@dataclass
class Time(IdlStruct, typename="builtin_interfaces::msg::dds_::Time_"):
    sec: int32
    nanosec: uint32


@dataclass
class Duration(IdlStruct, typename="builtin_interfaces::msg::dds_::Duration_"):
    sec: int32
    nanosec: uint32


@dataclass
class Header(IdlStruct, typename="std_msgs::msg::dds_::Header_"):
    stamp: Time
    frame_id: str


@dataclass
class Bool(IdlStruct, typename="std_msgs::msg::dds_::Bool_"):
    data: bool


@dataclass
class JointState(IdlStruct, typename="sensor_msgs::msg::dds_::JointState_"):
    header: Header
    name: sequence[str]
    position: sequence[float64]
    velocity: sequence[float64]
    effort: sequence[float64]


@dataclass
class Image(IdlStruct, typename="sensor_msgs::msg::dds_::Image_"):
    header: Header
    height: uint32
    width: uint32
    encoding: str
    is_bigendian: uint8
    step: uint32
    data: sequence[uint8]


@dataclass
class JointTrajectoryPoint(IdlStruct, typename="trajectory_msgs::msg::dds_::JointTrajectoryPoint_"):
    positions: sequence[float64]
    velocities: sequence[float64]
    accelerations: sequence[float64]
    effort: sequence[float64]
    time_from_start: Duration


@dataclass
class JointTrajectory(IdlStruct, typename="trajectory_msgs::msg::dds_::JointTrajectory_"):
    header: Header
    joint_names: sequence[str]
    points: sequence[JointTrajectoryPoint]


@dataclass
class Dimension(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayDimension_"):
    label: str
    size: uint32
    stride: uint32


@dataclass
class Layout(IdlStruct, typename="std_msgs::msg::dds_::MultiArrayLayout_"):
    dim: sequence[Dimension]
    data_offset: uint32


@dataclass
class Float64MultiArray(IdlStruct, typename="std_msgs::msg::dds_::Float64MultiArray_"):
    layout: Layout
    data: sequence[float64]


SENSOR = Qos(Policy.Reliability.BestEffort, Policy.History.KeepLast(5))
SURE = Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepLast(50))


def main(domain_id: int) -> None:
    """Be an arm until told to end."""
    domain = Domain(domain_id, CONFIG)  # kept: the domain's settings end with it
    participant = DomainParticipant(domain_id)

    def topic(name: str, kind: type[IdlStruct], qos: Qos) -> Topic:
        return Topic(participant, f"rt/{name}", kind, qos=qos)

    states = DataWriter(participant, topic(peer.JOINT_STATES, JointState, SENSOR), qos=SENSOR)
    cameras = [DataWriter(participant, topic(name, Image, SENSOR), qos=SENSOR) for name in peer.CAMERAS]
    button = DataWriter(participant, topic(peer.BUTTON, Bool, SURE), qos=SURE)
    trajectories = DataReader(participant, topic(peer.TRAJECTORIES, JointTrajectory, SURE), qos=SURE)
    gripper = DataReader(participant, topic(peer.GRIPPER, Float64MultiArray, SURE), qos=SURE)
    arm = peer.Arm()

    def joints(arm: peer.Arm) -> None:
        for message in trajectories.take(N=50):
            arm.sent(message)
        for message in gripper.take(N=50):
            arm.width.extend(message.data)
        positions, velocities = [*arm.positions, 0.02, -0.02], [0.25] * 9
        states.write(JointState(now(), [*peer.JOINTS, *peer.FINGERS], positions, velocities, []))

    shown = itertools.count()

    def images() -> None:
        for number, camera in enumerate(cameras):
            data = list(peer.image(number, next(shown) // len(cameras)))
            camera.write(Image(now(), peer.SIDE, peer.SIDE, "rgb8", 0, 3 * peer.SIDE, data))

    arm.run(joints, images, lambda pressed: button.write(Bool(pressed)))
    del domain


def now() -> Header:
    """A header with the time of day."""
    return Header(Time(*peer.stamp()), "")


if __name__ == "__main__":
    threading.current_thread().name = "arm"
    main(int(sys.argv[1]))

"""What the bridge's parts share: the arm, the node, the loop and the client of the policy server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.cartesian import ControlLaw
from embodied_rl.real_robot.core.executor import ExecutorConfig, Overlap
from embodied_rl.real_robot.core.gate import NANOSECONDS
from embodied_rl.real_robot.core.robot import Robot
from embodied_rl.real_robot.core.two_arms import TwoArmRobot, load_arms
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.config import RosConfig, load_ros_config
from embodied_rl.real_robot.ros2.failure_alarm import FailureAlarm
from embodied_rl.real_robot.ros2.inference_client import Client, InferenceClient, InferenceConfig
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.metadata import wrong_metadata
from embodied_rl.real_robot.ros2.observations import Observations
from embodied_rl.real_robot.ros2.options import REALTIME, BridgeOptions
from embodied_rl.real_robot.ros2.proprio import Proprio
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.ros2.two_arm_target import TwoArmProprio, axis_names

ACTION_DIM, PROPRIO_DIM, STEP_NS = 7, 8, 50_000_000
GRIPPER_AXIS = 6
"""The action's number that opens or closes: never averaged."""


@dataclass(frozen=True)
class BridgeContext:
    """One arm, or two under one gate, with their policy.

    Attributes:
        options: How the bridge runs.
        robot: The arm.
        config: Its topics.
        session: The node.
        metadata: What the server says of its policy.
        clock: The control loop's.
        loop: Decides every set point.
        observations: What the policy is asked.
        inference: Asks the policy.
        alarm: Asks for a person where the server's failure detector raises an alarm.
    """

    options: BridgeOptions
    robot: Robot | TwoArmRobot
    config: RosConfig
    session: Session
    metadata: Mapping[str, Any]
    clock: Clock
    loop: ControlLoop
    observations: Observations
    inference: InferenceClient
    alarm: FailureAlarm


def make_context(
    session: Session, options: BridgeOptions, clients: Sequence[Client], metadata: Mapping[str, Any] | None = None
) -> BridgeContext:
    """Read the arm's file and check that the policy fits it.

    Args:
        session: The node.
        options: How the bridge runs.
        clients: Connections to the policy server.
        metadata: What is known of the policy; None: what its server says.

    Raises:
        UserError: The file is wrong, the server describes no policy, or one with other cameras, proprio or actions.
    """
    robot, config = load_arms(options.robot), load_ros_config(options.robot)
    metadata = clients[0].metadata if metadata is None else metadata
    if wrong := wrong_metadata(metadata):
        raise UserError(wrong)
    cameras = [camera.name for camera in config.cameras][: metadata["cameras"]]
    two = isinstance(robot, TwoArmRobot)
    loop = ControlLoop(
        robot,
        cameras,
        _executor_config(metadata, options, len(cameras), robot),
        law=ControlLaw(rate_hz=robot.rate_hz) if two else None,
        fingers=config.fingers,
        stops=all(arm.has_stops for arm in config.arms),
        base=config.base,
        split=len(config.grippers[0].fingers) if two else None,
    )
    clock = Clock(options.speed)
    if isinstance(robot, TwoArmRobot):
        proprio, moved = TwoArmProprio(robot), robot
    else:
        proprio, moved = Proprio(robot.chain, config.base), robot.chain
    # the joints of a dry run are those it asks for
    observations = Observations(loop, cameras, proprio, None if options.mode == "dry_run" else moved)
    ask = InferenceConfig(options.aligned, options.latency_s, continues=options.overlap == REALTIME)
    inference = InferenceClient(loop, observations, list(clients), clock, ask)
    alarm = FailureAlarm(loop, acts=options.mode == "live")
    return BridgeContext(options, robot, config, session, metadata, clock, loop, observations, inference, alarm)


def _executor_config(
    metadata: Mapping[str, Any], options: BridgeOptions, cameras: int, robot: Robot | TwoArmRobot
) -> ExecutorConfig:
    axes = axis_names(robot) if isinstance(robot, TwoArmRobot) else None
    action_dim, proprio_dim = (len(axes), len(axes)) if axes else (ACTION_DIM, PROPRIO_DIM)
    if metadata["action_dim"] != action_dim:
        meaning = (
            f"{robot.name}'s {action_dim}: each arm's joints and its gripper"
            if axes
            else f"LIBERO's {ACTION_DIM}: a change of position, a change of orientation, the gripper"
        )
        raise UserError(f"the policy's actions have {metadata['action_dim']} numbers; the bridge takes {meaning}")
    if cameras < metadata["cameras"]:
        raise UserError(f"the policy looks at {metadata['cameras']} cameras: name them under ros.cameras")
    if metadata["proprio_dim"] not in (0, proprio_dim):
        whose = f"{robot.name}'s" if axes else "LIBERO's"
        raise UserError(f"the policy reads {metadata['proprio_dim']} numbers; the bridge has {whose} {proprio_dim}")
    if options.overlap == REALTIME and not metadata.get("realtime_chunking"):
        raise UserError(
            f"{metadata['policy']} cannot go on from planned actions: --overlap realtime is for flow policies"
        )
    return ExecutorConfig(
        chunk_len=metadata["chunk_len"],
        action_dim=action_dim,
        period_ns=round(NANOSECONDS / robot.rate_hz) if axes else STEP_NS,
        overlap=Overlap.NEWEST if options.overlap == REALTIME else Overlap(options.overlap),
        blend_steps=options.blend_steps,
        discrete=() if axes else (GRIPPER_AXIS,),
        execution_horizon=min(options.horizon, metadata["chunk_len"]),
    )

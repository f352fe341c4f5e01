"""Two arms in lockstep: the control loop on the twin's physics, without ROS, in time that is counted by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml

from embodied_rl.real_robot.core.executor import Chunk, ExecutorConfig, Overlap
from embodied_rl.real_robot.core.robot import ROBOTS
from embodied_rl.real_robot.core.two_arms import load_two_arms
from embodied_rl.real_robot.ros2.adapters.joint_trajectory import waypoints
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.events import Event as BridgeEvent
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.output import Output, each_arms
from embodied_rl.real_robot.ros2.two_arm_target import TwoArmProprio
from embodied_rl.real_robot.twin.follower import Point, TrajectoryFollower
from embodied_rl.real_robot.twin.two_arm_plant import TwoArmPlant
from tests.real_robot.test_two_arms import START
from tests.real_robot.two_arms_model import scene_xml

ROBOT, CONFIG = load_two_arms("aloha"), load_ros_config("aloha")
TICK = round(1e9 / ROBOT.rate_hz)
STEPS = TICK // 2_000_000
NAMES = (*ROBOT.limits.names, *CONFIG.fingers)


class TwoArmBench:
    """Both arms, their controllers and the loop.

    Args:
        folder: Where the MJCF is written.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "arms.xml"
        path.write_text(scene_xml(yaml.safe_load((ROBOTS / "aloha.yaml").read_text()), START))
        self.plant = TwoArmPlant(str(path), ROBOT, CONFIG, image_size=0)
        self.now, self.proprio = 1_000_000_000, TwoArmProprio(ROBOT)
        self.begin()

    def begin(self) -> None:
        """A new episode: the arms where the scene's keyframe has them, idle."""
        config = ExecutorConfig(8, 14, TICK, Overlap.NEWEST, execution_horizon=8)
        split = len(CONFIG.grippers[0].fingers)
        self.loop = ControlLoop(ROBOT, [], config, fingers=CONFIG.fingers, split=split)
        self.events: list[BridgeEvent] = []
        self.loop.events.subscribe(self.events.append)
        self.plant.reset(self.plant.tasks[0], 0, 0)
        self.fingers = [float(self.measured[12]), float(self.measured[14])]
        self.followers = [TrajectoryFollower(one) for one in np.split(self.measured[:12], [6])]

    @property
    def measured(self) -> np.ndarray:
        """All joints and fingers."""
        return self.plant.joints()[0]

    @property
    def seen(self) -> np.ndarray:
        """What a policy reads."""
        reading = self.loop.measured(self.now)
        assert reading is not None
        return self.proprio(reading.angles, reading.fingers)

    def tick(self) -> Output:
        """Measure, decide, send, and let the arms follow for a tick."""
        self.now += TICK
        assert self.loop.joint_states(NAMES, self.measured, self.now) is None
        self.loop.heartbeat(self.now)
        output = self.loop.tick(self.now)
        if output.tick.setpoint is not None:
            for number, own in enumerate(each_arms(output, ROBOT)):
                points = [Point(self.now + due, one.positions, one.velocities) for due, one in waypoints(own, TICK)]
                self.followers[number].take(points, self.now)
                assert own.width is not None
                self.fingers[number] = own.width * 0.5
        for step in range(STEPS):
            at = [follower.at(self.now + step * TICK // STEPS) for follower in self.followers]
            angles, velocities = (np.concatenate(each) for each in zip(*at, strict=True))
            self.plant.advance(angles, velocities, self.fingers)
        return output

    def plan(self, action: np.ndarray) -> None:
        """A chunk of this action [14] from now on."""
        assert self.loop.chunk(Chunk(self.now, np.tile(action, (8, 1)), "v1"), self.now).accepted

"""Pictures beside the joints of their time: a simulator that puts the arm elsewhere is no camera that is stuck."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.real_robot.core.executor import ExecutorConfig, Overlap
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.observations import Observations
from embodied_rl.real_robot.ros2.proprio import Proprio

pytest.importorskip("mink")
ROBOT, ROS = load_robot("twin"), load_ros_config("twin")
STEP = 50_000_000
AWAY = ROBOT.home + np.array([0.6, 0, 0, 0, 0, 0, 0])


class Camera:
    """One picture again and again, beside joints that a test says."""

    def __init__(self) -> None:
        config = ExecutorConfig(1, 7, STEP, Overlap.NEWEST, 1, discrete=(6,), execution_horizon=1)
        self.loop = ControlLoop(ROBOT, ["front"], config, base=ROS.base)
        self.seen = Observations(self.loop, ["front"], Proprio(ROBOT.chain, ROS.base), ROBOT.chain)
        self.now, self.image = 0, np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)

    def look(self, angles: np.ndarray, pictures: int) -> str:
        """What is wrong after so many pictures."""
        problem = ""
        for _ in range(pictures):
            self.now += STEP
            self.loop.joint_states(ROBOT.limits.names, angles.tolist(), self.now)
            problem = self.seen.image("front", self.image, self.now, self.now)
        return problem

    @property
    def faults(self) -> list[str]:
        return [fault.detail for fault in self.loop.runtime.faults(self.now) if fault.kind == "camera"]


def test_the_same_pictures_elsewhere_are_a_fault_until_another_comes() -> None:
    camera = Camera()
    assert camera.look(ROBOT.home, 4) == ""
    assert "the same picture" in camera.look(AWAY, 4)
    assert "the same picture" in camera.look(ROBOT.home, 4), "an arm that may not move shows no other one"
    assert any("the same picture" in words for words in camera.faults)


def test_where_a_simulator_put_the_arm_elsewhere_pictures_are_compared_from_there_on() -> None:
    camera = Camera()
    camera.look(ROBOT.home, 4)
    camera.look(AWAY, 4)
    camera.seen.restart()
    assert camera.faults == []
    assert camera.look(ROBOT.home, 4) == ""
    assert camera.faults == []
    assert "the same picture" in camera.look(AWAY, 4), "a camera that is stuck is found again"

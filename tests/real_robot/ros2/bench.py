"""A control loop whose arm is wherever it is asked to be, in time that is counted by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embodied_rl.real_robot.core.executor import Chunk, ExecutorConfig, Overlap
from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.states import Event
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.events import Event as BridgeEvent
from embodied_rl.real_robot.ros2.loop import ControlLoop, Output

ROBOT, CONFIG = replace(load_robot("twin"), rate_hz=50.0), load_ros_config("twin")
"""Ticks of 20 ms, which tests count by hand."""
STEP = 50_000_000
assert CONFIG.gripper is not None
NAMES = (*ROBOT.limits.names, *CONFIG.gripper.fingers)


class Bench:
    """A loop, its clock, and all that it emitted."""

    def __init__(self, overlap: Overlap = Overlap.NEWEST, horizon: int = 8, base: Origin = CONFIG.base) -> None:
        assert CONFIG.gripper is not None
        config = ExecutorConfig(8, 7, STEP, overlap, execution_horizon=horizon, discrete=(6,))
        self.loop = ControlLoop(ROBOT, ["front"], config, fingers=CONFIG.gripper.fingers, base=base)
        self.events: list[BridgeEvent] = []
        self.loop.events.subscribe(self.events.append)
        self.now, self.angles, self.camera = 1_000_000_000, ROBOT.home.copy(), True
        self.outputs: list[Output] = []

    def step(self, ticks: int = 1) -> Output:
        """Measure, look, and run so many ticks."""
        for _ in range(ticks):
            self.now += self.loop.period_ns
            self.loop.joint_states(NAMES, [*self.angles, 0.02, -0.02], self.now)
            if self.camera:
                self.loop.image("front", self.now)
            self.loop.heartbeat(self.now)
            self.outputs.append(self.loop.tick(self.now))
            if (setpoint := self.outputs[-1].tick.setpoint) is not None:
                self.angles = setpoint.positions
        return self.outputs[-1]

    def fire(self, event: Event) -> bool:
        """Whether the event was accepted."""
        return self.loop.fire(event, self.now).accepted

    def run(self) -> Bench:
        """Armed and started."""
        self.step(3)
        assert self.fire(Event.ARM)
        assert self.fire(Event.START)
        return self

    def plan(self, *action: float) -> None:
        """A chunk of this action from now on."""
        assert self.loop.chunk(Chunk(self.now, np.tile(np.array(action), (8, 1)), "v1"), self.now).accepted

    @property
    def tool(self) -> np.ndarray:
        """Where the arm's tool is."""
        return ROBOT.chain.position(self.angles)

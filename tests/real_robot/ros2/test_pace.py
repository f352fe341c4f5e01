"""The check before arming and the arm itself agree on whether answers come in time, over what may come between."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot.core.executor import ExecutorConfig, Overlap
from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.events import ActionTaken
from embodied_rl.real_robot.ros2.inference_client import InferenceClient, InferenceConfig, InferenceRequest
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.observations import Observations
from embodied_rl.real_robot.ros2.policy_health import policy_problem
from embodied_rl.real_robot.ros2.proprio import Proprio

ROBOT, ROS = load_robot("twin"), load_ros_config("twin")
MS, STEP = 1_000_000, 50_000_000
assert ROS.gripper is not None
FINGERS = ROS.gripper.fingers
NAMES = (*ROBOT.limits.names, *FINGERS)


class Still:
    """A target that moves one joint with each action: what the arm does is not what is looked at here."""

    def __init__(self, angles: np.ndarray) -> None:
        self.angles, self.speed = angles.copy(), 0.0

    def act(self, action: np.ndarray | None) -> None:
        self.speed = 0.0 if action is None else float(action[0]) * 0.05

    def advance(self) -> None:
        self.angles[0] += self.speed * 0.025

    def command(self, now_ns: int, source: str) -> Command:
        return Command(now_ns, ROBOT.limits.names, self.angles, source=source)

    def rest(self, angles: np.ndarray) -> None:
        self.angles = angles.copy()

    def reached(self, angles: np.ndarray, *, braked: bool) -> None:
        if braked:
            self.angles = angles.copy()

    def start_gripper(self, width: float, now_ns: int) -> None:
        """There is none."""

    def width(self, now_ns: int) -> None:
        """There is none."""


class Line:
    """A loop and who asks its policy, in time that is counted by hand: 30 pictures and 40 ticks a second."""

    def __init__(self, chunk_len: int, horizon: int, answer_ms: int, age_ms: int, **ask: Any) -> None:
        config = ExecutorConfig(
            chunk_len, 7, STEP, Overlap.BLEND, 1, discrete=(6,), execution_horizon=min(horizon, chunk_len)
        )
        self.loop = ControlLoop(ROBOT, ["front"], config, fingers=FINGERS, base=ROS.base, stops=False)
        self.loop._target = Still(ROBOT.home)  # type: ignore[assignment]
        self.answer_ns, self.age_ns, self.shape = answer_ms * MS, age_ms * MS, (chunk_len, 7)
        self.now, self.angles = 1_000_000_000, ROBOT.home.copy()
        clock: Any = SimpleNamespace(now_ns=lambda: self.now, sleep_until=lambda due_ns: None)
        observations = Observations(self.loop, ["front"], Proprio(ROBOT.chain, ROS.base))
        observations.instruction = "open the drawer"
        metadata = {"cameras": 1, "proprio_dim": 8, "chunk_len": chunk_len, "action_dim": 7, "instruction": True}
        self.client: Any = SimpleNamespace(metadata={**metadata, "policy": "p", "weights": "w"})
        self.observations = observations
        self.inference = InferenceClient(self.loop, observations, [self.client], clock, InferenceConfig(**ask))
        self.images, self.asked = deque[int](), deque[tuple[int, InferenceRequest]]()
        self.events: list[Any] = []
        self.noise = np.random.default_rng(0)  # a picture that repeats itself is a fault
        self.loop.events.subscribe(self.events.append)

    def run(self, seconds: float) -> None:
        """Let everything happen for so long, a millisecond after the other."""
        until = self.now + round(seconds * 1e9)
        while self.now < until:
            self.now += MS
            if self.now // MS % 33 == 0:
                self.images.append(self.now)
            if self.asked and self.asked[0][0] <= self.now:
                self.inference._waiting -= 1
                self.inference._take(
                    {"actions": np.full(self.shape, 0.5)}, self.client.metadata, self.asked.popleft()[1]
                )
            if self.images and self.images[0] + self.age_ns <= self.now:
                stamp = self.images.popleft()
                self.observations.image("front", self.noise.integers(0, 256, (8, 8, 3), np.uint8), stamp, self.now)
                if not self.asked and (question := self.inference._question()) is not None:
                    self.asked.append((self.now + self.answer_ns, question))
            if self.now // MS % 25 == 0:
                self.loop.joint_states(NAMES, [*self.angles, 0.02, -0.02], self.now)
                setpoint = self.loop.tick(self.now).tick.setpoint
                self.angles = self.angles if setpoint is None else setpoint.positions

    def starts(self) -> bool:
        """Whether the arm is armed and started."""
        return all(self.loop.fire(event, self.now).accepted for event in (Event.ARM, Event.START))

    def acted(self) -> list[bool]:
        """Of each control step that the policy had: whether there was an action."""
        return [event.action is not None for event in self.events if isinstance(event, ActionTaken)]


def judged(line: Line) -> str:
    """What the check before arming finds."""
    return policy_problem(line.inference.report, line.loop, line.now)


@pytest.mark.parametrize("chunk_len", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("answer_ms", [12, 95, 160, 300])
@pytest.mark.parametrize("age_ms", [5, 40, 80])
def test_the_check_and_the_arm_agree(chunk_len: int, answer_ms: int, age_ms: int) -> None:
    """Before, a check of the median answer passed at (4, 95, 80) and at (1, 12, 40), and no step had an action."""
    line = Line(chunk_len, 2, answer_ms, age_ms)
    line.run(3.0)
    problem, started = judged(line), line.starts()
    line.run(2.0)
    acted, state = line.acted()[12:], line.loop.state
    if problem:
        assert not started or state is ArmState.HOLDING or np.mean(acted) < 0.9
    else:
        assert (started, state) == (True, ArmState.RUNNING)
        assert np.mean(acted) > 0.75
    assert state is not ArmState.RUNNING or np.mean(acted) > 0.4, "it says that it runs, and stands"


def test_an_answer_that_only_a_standstill_could_use_is_named() -> None:
    """A chunk of 4, answers of 95 ms, pictures 80 ms old: one that holds would use it."""
    line = Line(4, 2, 12, 5)
    line.run(1.0)
    assert line.starts()
    line.run(1.0)
    assert (line.inference.report.last_error, line.loop.state) == ("", ArmState.RUNNING)
    line.answer_ns, line.age_ns = 95 * MS, 80 * MS
    line.run(1.5)
    report = line.inference.report
    assert line.loop.state is ArmState.HOLDING
    assert report.last_error == "it came 4 steps after its observation"
    assert report.unused >= 5
    assert not line.loop.fire(Event.RESUME, line.now).accepted
    line.answer_ns, line.age_ns = 12 * MS, 5 * MS
    line.run(1.0)
    assert report.last_error == ""
    assert line.loop.fire(Event.RESUME, line.now).accepted

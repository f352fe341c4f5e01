"""python -m embodied_rl.benchmarks.twin_lockstep: success on the twin against the simulator, without ROS or real time.

Control loop, safety gate, inverse kinematics, trajectory follower and physics are those of `deploy`; messages become
calls, and time is counted by hand: episodes repeat to the last bit on any computer, however busy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.api import load_policy, make_vec_env
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.jobs.deploy import held_out
from embodied_rl.policy import Policy, action_array
from embodied_rl.real_robot.core.executor import Chunk, ExecutorConfig, Overlap
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2.adapters.joint_trajectory import waypoints
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.context import GRIPPER_AXIS, STEP_NS
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.observations import Observations
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.proprio import Proprio
from embodied_rl.real_robot.twin.follower import Point, TrajectoryFollower
from embodied_rl.real_robot.twin.node import TIMESTEP_NS
from embodied_rl.real_robot.twin.plant import CAMERAS, Difference, Plant
from embodied_rl.rng import DecisionRng
from embodied_rl.types import EpisodeSpec, Observation

MODULE = "embodied_rl.benchmarks.twin_lockstep"
_JOINTS_NS, _CAMERAS_NS = 10_000_000, 50_000_000
_SETTLED_NS, _PATIENCE_NS = 150_000_000, 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Twin:
    """What differs from training, beyond the controller.

    Args:
        friction: Factor on everything's.
        looks: What is redrawn in each episode.
        camera_latency_ms: From a picture to its arrival.
        answer_ms: From a question to its answer.
    """

    friction: float = 1.0
    looks: tuple[str, ...] = ()
    camera_latency_ms: float = 0.0
    answer_ms: float = 12.0


TWINS = {
    "the twin": Twin(),
    "friction x 0.5": Twin(friction=0.5),
    "light and texture": Twin(looks=("light", "texture")),
    "pictures 50 ms late": Twin(camera_latency_ms=50.0),
    "all three": Twin(friction=0.5, looks=("light", "texture"), camera_latency_ms=50.0),
}


class Lockstep:
    """One episode at a time through everything that `deploy` runs but the network.

    Args:
        policy: Asked as the bridge asks the server.
        suite: The twin's tasks.
        twin: How it differs.

    Example:
        >>> Lockstep(load_policy("shipped"), "tabletop_spatial", Twin()).run(task, state=50, horizon_s=7.5)
        True
    """

    def __init__(self, policy: Policy, suite: str, twin: Twin) -> None:
        self._policy, self._twin = policy, twin
        self.plant = Plant(suite, Difference(friction=twin.friction, looks=twin.looks))
        self._robot, self._ros = load_robot("twin"), load_ros_config("twin")
        assert self._ros.gripper is not None
        self._names = (*self._robot.limits.names, *self._ros.gripper.fingers)
        self.holds = 0

    def run(self, task: str, state: int, horizon_s: float) -> bool:
        """Whether the goal held at some control step.

        Args:
            task: Its name.
            state: Number of the initial state, and seed of the looks.
            horizon_s: Time from the start, s.
        """
        begins_ns = self.begin(task, state, state)
        now_ns = begins_ns
        while now_ns < begins_ns + round(horizon_s * 1e9):
            now_ns += TIMESTEP_NS
            self._advance(now_ns)
            if now_ns % STEP_NS == 0 and self.plant.succeeded():
                return True
        return False

    def begin(self, task: str, state: int, seed: int) -> int:
        """Reset the scene, arm and start; the time then, ns."""
        assert self._ros.gripper is not None
        options, chunk_len = BridgeOptions(), self._policy.chunk_len
        config = ExecutorConfig(
            chunk_len,
            self._policy.action_dim,
            STEP_NS,
            Overlap(options.overlap),
            options.blend_steps,
            discrete=(GRIPPER_AXIS,),
            execution_horizon=min(options.horizon, chunk_len),
        )
        self._loop = ControlLoop(self._robot, CAMERAS, config, fingers=self._ros.gripper.fingers, base=self._ros.base)
        self._observations = Observations(
            self._loop, CAMERAS, Proprio(self._robot.chain, self._ros.base), self._robot.chain
        )
        self._observations.instruction = self.plant.reset(task, state, seed)
        positions = self.plant.joints()[0]
        self._follower, self._finger = TrajectoryFollower(positions[:7]), float(positions[7])
        self._images: deque[tuple[int, int, np.ndarray]] = deque()
        self._answer: tuple[int, Chunk] | None = None
        self._asked_ns, self._decision, self._seed = -1, 0, seed
        return self._begin()

    def _begin(self) -> int:
        """Let the scene settle, arm and start; the time then, ns."""
        now_ns = 0
        while now_ns < _SETTLED_NS or self._loop.state is not ArmState.RUNNING:
            now_ns += TIMESTEP_NS
            self._advance(now_ns)
            if now_ns >= _SETTLED_NS and now_ns % _JOINTS_NS == 0:
                event = Event.START if self._loop.state is ArmState.ARMED else Event.ARM
                refused = self._loop.fire(event, now_ns).reason
                if now_ns > _PATIENCE_NS:
                    raise RuntimeError(f"the arm is {self._loop.state}: {refused}")
        return now_ns

    def _advance(self, now_ns: int) -> None:
        """Everything that happens up to a time, one physics step after the last."""
        self.plant.advance(*self._follower.at(now_ns), self._finger)
        if now_ns % _JOINTS_NS == 0:
            self._loop.joint_states(self._names, self.plant.joints()[0], now_ns)
        if now_ns % _CAMERAS_NS == 0:
            due_ns = now_ns + round(self._twin.camera_latency_ms * 1e6)
            self._images.append((due_ns, now_ns, self.plant.images()))
        looked = bool(self._images) and self._images[0][0] <= now_ns
        while self._images and self._images[0][0] <= now_ns:
            _, stamp_ns, images = self._images.popleft()
            for camera, image in zip(CAMERAS, images, strict=True):
                self._observations.image(camera, image, stamp_ns, now_ns)
        self._take(now_ns)
        if looked and self._answer is None and self._loop.due(now_ns):
            self._ask(now_ns)
        if now_ns // self._loop.period_ns > (now_ns - TIMESTEP_NS) // self._loop.period_ns:
            self._control(now_ns)

    def _take(self, now_ns: int) -> None:
        """Take the answer, if it is due."""
        if self._answer is not None and self._answer[0] <= now_ns:
            self._loop.chunk(self._answer[1], now_ns)
            self._answer = None

    def _ask(self, now_ns: int) -> None:
        """Ask for the next as `InferenceClient` does, when a picture comes."""
        seen = self._observations.take(now_ns)
        if seen is None or seen.stamp_ns <= self._asked_ns:
            return
        self._loop.request(seen.stamp_ns)
        images = np.stack(list(seen.images.values()))[None]
        obs = Observation.from_numpy(images, seen.proprio[None].astype(np.float32), [seen.instruction])
        rng = DecisionRng(np.array([self._seed]), np.array([self._decision]))
        actions = action_array(self._policy.act(obs, rng, "greedy").actions)[0].astype(np.float64)
        self._answer = (now_ns + round(self._twin.answer_ms * 1e6), Chunk(seen.stamp_ns, actions))
        self._asked_ns, self._decision = seen.stamp_ns, self._decision + 1

    def _control(self, now_ns: int) -> None:
        """One tick of the control loop, and what the controllers make of it."""
        output = self._loop.tick(now_ns)
        if output.tick.held is not None:
            self.holds += 1
        elif self._loop.state is ArmState.HOLDING:
            self._loop.fire(Event.RESUME, now_ns, "no faults any more")
        if output.tick.setpoint is not None:
            points = [
                Point(now_ns + due_ns, one.positions, one.velocities)
                for due_ns, one in waypoints(output, self._loop.period_ns)
            ]
            self._follower.take(points, now_ns)
        if output.tick.setpoint is not None and output.width is not None:
            assert self._ros.gripper is not None
            self._finger = float(np.clip(output.width * self._ros.gripper.scale, 0.0, 0.04))


def simulated(policy: Policy, suite: str, plan: Sequence[tuple[str, int, float]]) -> int:
    """Successes on the same initial states in training's simulator."""
    specs = [EpisodeSpec(number, task, state, seed=state) for number, (task, state, _) in enumerate(plan)]
    env = make_vec_env(suite, num_envs=min(8, len(specs)))
    try:
        return evaluate(env, policy, specs, "greedy").overall.successes
    finally:
        env.close()


def main() -> int:
    """Print a line for each policy and twin."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--checkpoints", nargs="+", default=["shipped"])
    parser.add_argument("--suite", default="tabletop_spatial")
    parser.add_argument("--episodes", type=int, default=20, help="of each policy on each twin")
    parser.add_argument("--twins", nargs="*", default=list(TWINS), choices=list(TWINS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    plan, found = held_out(options.suite, options.episodes), list[dict[str, Any]]()
    for checkpoint in options.checkpoints:
        policy = load_policy(checkpoint)
        found.append(_said(checkpoint, "training's simulator", simulated(policy, options.suite, plan), len(plan), 0))
        for name in options.twins:
            twin = Lockstep(policy, options.suite, TWINS[name])
            won = sum(twin.run(*episode) for episode in plan)
            found.append(_said(checkpoint, name, won, len(plan), twin.holds) | {"twin": asdict(TWINS[name])})
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def _said(checkpoint: str, name: str, won: int, episodes: int, holds: int) -> dict[str, Any]:
    low, high = wilson(won, episodes)
    print(f"{checkpoint}, {name}: {won} of {episodes} ({low:.0%} to {high:.0%} at 95 %), {holds} holds", flush=True)
    return {"checkpoint": checkpoint, "name": name, "won": won, "episodes": episodes, "holds": holds}


if __name__ == "__main__":
    sys.exit(main())

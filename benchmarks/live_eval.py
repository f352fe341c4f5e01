"""python -m embodied_rl.benchmarks.live_eval: the evaluator on an arm, through ROS 2: here its twin.

The twin is a process of its own; the bridge runs in this one, behind `LiveVecEnv`, and the policy beside it. On a real
arm the same lines take `HumanStep` in place of `TwinScene`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import closing

from embodied_rl.api import load_policy
from embodied_rl.evaluation.evaluate import EvalReport, evaluate
from embodied_rl.jobs.deploy import held_out
from embodied_rl.policy import Policy
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.deploy.remote import TwinRemote
from embodied_rl.real_robot.env.bridge import BridgeArm, TwinScene
from embodied_rl.real_robot.env.vec_env import LiveVecEnv
from embodied_rl.real_robot.ros2.alone import alone
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.environment import enter, ros_environment
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.ros2.station import ACTION_DIM, PROPRIO_DIM, STEP_NS
from embodied_rl.real_robot.twin.options import TwinOptions
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import EnvInfo

MODULE = "embodied_rl.benchmarks.live_eval"
_READY_S = 300.0


def main() -> int:
    """Evaluate and print the score."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--checkpoint", default="shipped")
    parser.add_argument("--suite", default="tabletop_spatial")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--steps", type=int, help="control steps of an episode (left out: the tasks' own)")
    parser.add_argument("--speed", type=float, default=1.0, help="the twin's seconds in one of the wall clock")
    options = parser.parse_args()
    environment = ros_environment(domain=1 + os.getpid() % 100, loopback=True)
    enter(MODULE, sys.argv[1:], environment)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the twin is ended on the way out
    plan = held_out(options.suite, options.episodes)
    specs = [EpisodeSpec(number, task, state, seed=number) for number, (task, state, _) in enumerate(plan)]
    steps = options.steps or round(max(horizon_s for _, _, horizon_s in plan) * 1e9 / STEP_NS)
    twin = TwinOptions(suite=options.suite, speed=options.speed)
    report = run(load_policy(options.checkpoint), specs, twin, steps, environment)
    for result in report.results:
        print(f"{result.spec.task}: {'success' if result.success else 'no success'}, {result.num_steps} steps")
    score = report.overall
    print(f"{score.successes} of {score.episodes} succeeded, {score.low:.0%} to {score.high:.0%} at 95 %")
    return 0


def run(
    policy: Policy, specs: list[EpisodeSpec], options: TwinOptions, steps: int, environment: dict[str, str]
) -> EvalReport:
    """Evaluate `policy` on a twin.

    Args:
        policy: With pictures of the twin's size.
        specs: Episodes of its suite.
        options: The twin's.
        steps: Control steps of an episode.
        environment: Of the twin's process: `ros_environment`.
    """
    arguments = [options.to_json()]
    with (
        Process("twin", "embodied_rl.real_robot.twin", arguments, environment, "twin ready") as process,
        alone("embodied_rl"),
        Session("embodied_rl") as session,
    ):
        process.wait_ready(_READY_S)
        arm = BridgeArm(session, BridgeOptions(robot="twin", speed=options.speed), TwinScene(TwinRemote(session)))
        with closing(LiveVecEnv([arm], twin_info(options, steps))) as env:
            return evaluate(env, policy, specs, "greedy")


def twin_info(options: TwinOptions, steps: int) -> EnvInfo:
    """The twin as the environment that `LiveVecEnv` is; `steps`: control steps of an episode."""
    return EnvInfo(
        backend="live",
        suite=options.suite,
        simulator="twin",
        renderer="twin",
        cameras=tuple(camera.name for camera in load_ros_config("twin").cameras),
        image_shape=(options.image_size, options.image_size),
        proprio_dim=PROPRIO_DIM,
        action_dim=ACTION_DIM,
        action_low=(-1.0,) * ACTION_DIM,
        action_high=(1.0,) * ACTION_DIM,
        control_hz=1e9 / STEP_NS,
        max_episode_steps=steps,
    )


if __name__ == "__main__":
    sys.exit(main())

"""The arm that a run trains on, the twin, with its expert as the person, as a process that has rclpy: one JSON line.

python -m tests.real_robot.ros2.trained SPEED FOLDER: the recording goes into the folder.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import torch
from rich.console import Console

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.factory.suites import load
from embodied_rl.factory.view import View
from embodied_rl.jobs.train_robot import OpenArm, open_robot
from embodied_rl.real_robot.deploy.remote import BridgeRemote
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.rollout.recording import RecordingVecEnv
from embodied_rl.types import EpisodeSpec

SUITE, TASK = "tabletop_goal", "turn_on_the_stove"
SPEC = EpisodeSpec(4, f"{SUITE}/{TASK}", 51, seed=2**62 + 9)
PUSH = torch.tensor([0, 0.3, 0, 0, 0, 0, -1.0]).expand(1, 4, 7)
AFTER = 8


def main(speed: float, folder: str) -> dict[str, Any]:
    """An episode that the person ends, and one that is e-stopped and run again."""
    config = TrainConfig(
        suite=SUITE,
        tasks=(TASK,),
        output=folder,
        algorithm=ImitateConfig(),
        env=MujocoConfig(num_envs=1),
        robot="twin",
        robot_speed=speed,
        people="expert",
        people_after=AFTER,
    )
    robot = open_robot(config, load(SUITE, (TASK,), config.env), View(image_size=32), Console(stderr=True))
    with robot.env, Session("observer") as session:
        remote = BridgeRemote(session)
        session.start()
        return {"helped": _helped(robot, remote), "stopped": _stopped(robot, remote)}


def _helped(robot: OpenArm, remote: BridgeRemote) -> dict[str, Any]:
    env = RecordingVecEnv(robot.people)
    env.reset([0], [SPEC])
    obs, ended, human = env.new_observation(1), False, 0
    while not ended:
        assert not env.observe([0], obs)
        result = env.step([0], PUSH)
        human += int(result.human)
        ended = bool(result.terminated | result.truncated | result.failed)
    episode = env.take(SPEC)
    return {
        "ended": [bool(result.terminated), bool(result.success), bool(result.failed)],
        "steps": human,
        "human": episode.human,
        "actions": [action.tolist() for action in episode.action],
        "decisions": episode.decision,
        "proprio": [proprio.tolist() for proprio in episode.proprio],
        "rests": remote.wait_state("idle", 120.0),
    }


def _stopped(robot: OpenArm, remote: BridgeRemote) -> dict[str, Any]:
    """Lost where the emergency stop is pressed; the next episode waits until it is reset."""
    env = robot.env
    env.reset([0], [SPEC])
    assert env.observe([0], env.new_observation(1)) is None
    assert remote.call("emergency_stop")[0]
    lost = env.step([0], PUSH)
    again = threading.Thread(target=env.reset, args=([0], [SPEC]))
    again.start()
    again.join(1.0)
    waits = again.is_alive() and remote.state == "e-stopped"
    assert remote.call("reset")[0]
    again.join(120.0)
    assert env.observe([0], env.new_observation(1)) is None
    on = env.step([0], PUSH)
    return {
        "lost": [bool(lost.failed), bool(lost.lost), bool(lost.terminated)],
        "waits": waits,
        "goes_on": [bool(on.failed), int(on.steps_taken)],
    }


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), sys.argv[2])))

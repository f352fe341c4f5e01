"""Opens the arm that a run trains on (`train --robot`): a real one with a person's keys, or the twin as a process."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from embodied_rl.config.robot import STATES, SUITE, is_real
from embodied_rl.config.sft import weighted_data
from embodied_rl.config.suites import Suite
from embodied_rl.config.train import TrainConfig
from embodied_rl.data.metadata import read_metadata
from embodied_rl.errors import UserError
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.suites import Tasks
from embodied_rl.factory.view import View
from embodied_rl.jobs.run_folder import RECORDINGS
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.policies.preprocessing.fit import fit_image
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.deploy.keys import Keys
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.deploy.remote import TwinRemote
from embodied_rl.real_robot.env.arm import LiveArm
from embodied_rl.real_robot.env.bridge import BridgeArm, TwinScene
from embodied_rl.real_robot.env.expert_person import ExpertPerson
from embodied_rl.real_robot.env.operator import ArmOperator
from embodied_rl.real_robot.env.vec_env import LiveVecEnv
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.context import ACTION_DIM, PROPRIO_DIM, STEP_NS
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.ros2.single_instance import single_instance
from embodied_rl.real_robot.twin.options import TwinOptions
from embodied_rl.sim.wrappers.takeover import TakeoverRule
from embodied_rl.vec_env import EnvInfo, VecEnv

NODE = "embodied_rl"
_READY_S = 300.0
_SWITCH_S = 0.0005
"""How soon the thread of the emergency stop gets its turn beside those that decode pictures and act."""
_LONGER = 2
"""A real arm's episode may take so many times the control steps of the longest demonstration."""


@dataclass(frozen=True, slots=True)
class OpenArm:
    """env: of evaluations, which nobody helps; closing it brings the arm to rest. people: of training's episodes."""

    env: SuiteEnv
    people: VecEnv


def real_tasks(config: TrainConfig) -> Tasks:
    """What a real arm shall do, in words, from initial states that a person sets up."""
    train, heldout = ({f"{SUITE}/{words}": list(rows) for words in config.tasks} for rows in STATES)
    suite = Suite(SUITE, ("custom",), "any", is_custom=True)
    return Tasks(suite, config.tasks, train_states=train, heldout_states=heldout)


def open_robot(config: TrainConfig, tasks: Tasks, view: View, console: Console) -> OpenArm:
    """Start the bridge in this process, recorded in the run's folder, and the twin beside it.

    Raises:
        UserError: the arm's file is wrong or has fewer cameras than the policy, there is no ROS 2 or no mcap, a bridge
            runs already, or a check before arming fails.
    """
    if importlib.util.find_spec("mcap") is None:
        raise UserError("what an arm does is recorded, which needs mcap: pip install 'embodied-rl[record]'.")
    sys.setswitchinterval(_SWITCH_S)
    with ExitStack() as stack:
        steps = _horizon(config, tasks)
        info = _info(config, tasks, view, steps)
        record = Path(config.output) / RECORDINGS / time.strftime("%Y%m%d-%H%M%S.mcap")
        record.parent.mkdir(exist_ok=True)
        stack.enter_context(single_instance(NODE))
        options = BridgeOptions(
            robot=config.robot,
            speed=config.robot_speed,
            record=str(record),
            labelled_by="human" if is_real(config.robot) else "simulator",
        )
        opened = partial(_bridge_arm, stack=stack, options=options, view=view, cameras=len(info.cameras))
        acts: LiveArm
        if is_real(config.robot):
            arm = acts = _real_arm(config, opened, stack, console)
        else:
            arm, acts = _twin_arm(config, tasks, view, opened, stack, steps)
        env = SuiteEnv(LiveVecEnv([arm], info), tasks.train_states, tasks.heldout_states, stack.pop_all())
    return OpenArm(env, LiveVecEnv([acts], info))


def _bridge_arm(
    session: Session, scene: Any, *, stack: ExitStack, options: BridgeOptions, view: View, cameras: int
) -> BridgeArm:
    fit = None if view.fit is None else partial(fit_image, size=view.image_size, how=view.fit)
    arm = BridgeArm(session, options, scene, cameras, fit)
    stack.callback(arm.close)
    return arm


def _twin_arm(
    config: TrainConfig, tasks: Tasks, view: View, opened: Any, stack: ExitStack, steps: int
) -> tuple[BridgeArm, LiveArm]:
    """The twin's arm, and the same with the person that --people names."""
    options = TwinOptions(suite=tasks.suite.name, image_size=view.image_size, speed=config.robot_speed)
    module = "embodied_rl.real_robot.twin"
    twin = stack.enter_context(Process("twin", module, [options.to_json()], dict(os.environ), "twin ready"))
    twin.wait_ready(_READY_S)
    session = stack.enter_context(Session(NODE))
    remote = TwinRemote(session)
    arm: BridgeArm = opened(session, TwinScene(remote))
    if config.people == "none":
        return arm, arm
    patience = dict.fromkeys(tasks.train_states, steps)
    return arm, ExpertPerson(arm, remote, TakeoverRule(*config.takeover_rule).first_step, patience)


def _real_arm(config: TrainConfig, opened: Any, stack: ExitStack, console: Console) -> BridgeArm:
    """A real arm that a person has checked, with the person's keys."""
    keys = Keys()
    session = stack.enter_context(Session(NODE))
    operator = ArmOperator({f"{SUITE}/{words}": words for words in config.tasks}, keys, console)
    arm: BridgeArm = opened(session, operator)
    stack.enter_context(operator.watching(arm.bridge))
    operator.confirm()
    return arm


def _horizon(config: TrainConfig, tasks: Tasks) -> int:
    """Control steps of an episode."""
    if tasks.scenes:
        return max(task.max_episode_steps for task in tasks.scenes)
    folders = [resolve(name, "dataset") for name, _ in weighted_data(config.demos)]
    return _LONGER * max(row.length for folder in folders for row in read_metadata(folder).episodes)


def _info(config: TrainConfig, tasks: Tasks, view: View, steps: int) -> EnvInfo:
    cameras = load_ros_config(config.robot).cameras
    return EnvInfo(
        backend="live",
        suite=tasks.suite.name,
        simulator=load_robot(config.robot).name,
        renderer="cameras",
        cameras=tuple(camera.name for camera in cameras[: view.cameras]),
        image_shape=(view.image_size, view.image_size),
        proprio_dim=PROPRIO_DIM,
        action_dim=ACTION_DIM,
        action_low=(-1.0,) * ACTION_DIM,
        action_high=(1.0,) * ACTION_DIM,
        control_hz=1e9 / STEP_NS,
        max_episode_steps=steps,
        repeatable=False,
    )

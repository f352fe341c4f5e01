"""LIBERO-plus' tasks, made of LIBERO's as the official code makes them: same scene, one thing changed, one start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.bddl import parse_bddl
from embodied_rl.sim.libero.plus import noise
from embodied_rl.sim.libero.plus.camera import Pose, put_camera, viewpoint_pose
from embodied_rl.sim.libero.plus.catalogue import Catalogue
from embodied_rl.sim.libero.plus.names import HOME, PlusName
from embodied_rl.sim.libero.tasks import LiberoTask
from embodied_rl.sim.mujoco.env import GRIP_SITE, find_robot
from embodied_rl.sim.perturb import Variant
from embodied_rl.types import Array
from embodied_rl.utils.suites import LIBERO_PLUS

_FINGERS = (0.020833, -0.020833)
"""Where robosuite's env.reset puts the gripper's fingers, m."""


class PlusTasks:
    """Makes LIBERO-plus' tasks of one task of LIBERO.

    Args:
        base: with its official initial states; LIBERO-plus uses the first.
        catalogue: what the package says.
        official_words: instructions as the official code has them, see `Catalogue.instruction`.

    Example:
        >>> made = PlusTasks(load_task(root, "libero_goal/turn_on_the_stove"), read_catalogue(root))
        >>> made.variant(parse_name("turn_on_the_stove_view_15_0_100_0_0_initstate_0"), number=3).task.name
        'libero_goal/turn_on_the_stove#3'
    """

    def __init__(self, base: LiberoTask, catalogue: Catalogue, *, official_words: bool = True) -> None:
        self._base, self._catalogue, self._official_words = base, catalogue, official_words
        problem = parse_bddl(base.bddl, base.name).name.lower()
        if problem not in catalogue.cameras or base.start is None:
            raise UserError(f"LIBERO-plus knows no scene of task '{base.name}' ({problem}).")
        self._home: Pose = catalogue.cameras[problem]
        self._starts = catalogue.starts[catalogue.robots[problem]]
        self._start: Mapping[str, Array] = base.start
        self._physics: mujoco.MjModel | None = None

    def unperturbed(self, number: int) -> Variant:
        """LIBERO's own task from its first initial state; number: of the episode."""
        return Variant(_one_state(self._base, number), {LIBERO_PLUS: {"dimension": None}})

    def variant(self, name: PlusName, number: int) -> Variant:
        """A task of LIBERO-plus.

        Args:
            name: what its name says.
            number: of the episode, which makes its own name unique.
        """
        base, drawn = self._base, {"dimension": name.dimension, "name": name.name}
        start = self._start
        if name.view != HOME:
            drawn |= {"viewpoint": asdict(name.view)}
        if name.start:
            joints = self._starts[name.start - 1]
            start, drawn = self._started(joints), drawn | {"start": name.start, "joints": joints}
        if name.noise:
            kind, strength = noise.describe(name.noise)
            drawn |= {"noise": kind, "strength": strength}
        words = self._catalogue.instruction(base.suite, name, base.instruction, official=self._official_words)
        task = replace(
            _one_state(base, number),
            instruction=words,
            start=start,
            build_visual=partial(_seen_from, base, viewpoint_pose(self._home, name.view)),
        )
        return Variant(task, {LIBERO_PLUS: drawn | {"instruction": words}})

    def layout(self, moved: LiberoTask, name: PlusName, number: int) -> Variant:
        """A layout, which is a scene of its own.

        moved: as it was exported, with its only state. The other arguments are those of `variant`.
        """
        words = self._catalogue.instruction(
            self._base.suite, name, self._base.instruction, official=self._official_words
        )
        task = replace(
            _one_state(moved, number),
            name=f"{self._base.name}#{number}",
            suite=self._base.suite,
            instruction=words,
            max_episode_steps=self._base.max_episode_steps,
            build_visual=partial(_seen_from, moved, viewpoint_pose(self._home, HOME)),
        )
        return Variant(task, {LIBERO_PLUS: {"dimension": name.dimension, "name": name.name, "instruction": words}})

    def _started(self, joints: list[float]) -> dict[str, Array]:
        """What env.reset leaves behind where the robot begins in another pose.

        The initial state is LIBERO's own all the same: the official code writes it over the pose. What stays of the
        pose is the controller's, which turns the hand to that pose's orientation and draws the arm towards its joints.
        """
        if self._physics is None:
            self._physics = self._base.build_physics()
        return {**self._start, **reset_in_pose(self._physics, self._base.init_states[0], joints)}


def reset_in_pose(model: mujoco.MjModel, state: Array, joints: list[float]) -> dict[str, Array]:
    """The controller after robosuite's env.reset with the arm in a pose, by the golden data's names.

    Args:
        model: of a scene's physics.
        state: float64 [1 + nq + nv], where everything else stands, which the controller does not see.
        joints: angles of the seven joints, rad.
    """
    robot, data = find_robot(model), mujoco.MjData(model)
    data.qpos[:] = state[1 : 1 + model.nq]
    data.qpos[robot.qpos], data.qpos[robot.finger_qpos] = joints, _FINGERS
    mujoco.mj_forward(model, data)
    site = model.site(GRIP_SITE).id
    jac, mass = np.zeros((6, model.nv)), np.zeros((model.nv, model.nv))
    mujoco.mj_jacSite(model, data, jac[:3], jac[3:], site)
    mujoco.mj_fullM(model, data, mass)
    pos, ori = data.site_xpos[site].copy(), data.site_xmat[site].reshape(3, 3).copy()
    pose = np.array(joints, np.float64)
    return {
        "ctl_initial_joint": pose,
        "ctl_goal_pos0": pos,
        "ctl_goal_ori0": ori,
        "stale_ee_pos": pos,
        "stale_ee_ori_mat": ori,
        "stale_joint_pos": pose,
        "stale_J_full": jac[:, robot.dof],
        "stale_mass_matrix": mass[np.ix_(robot.dof, robot.dof)],
    }


def noise_number(drawn: Mapping[str, Any]) -> int:
    """Of an episode's changes, as `Variant.drawn`: the number of its sensor noise, 0 where there is none."""
    changes = drawn.get(LIBERO_PLUS, {})
    if "noise" not in changes:
        return 0
    return noise.KINDS.index(changes["noise"]) * noise.STRENGTHS + changes["strength"]


def _one_state(base: LiberoTask, number: int) -> LiberoTask:
    return replace(
        base,
        name=f"{base.name}#{number}",
        init_states=base.init_states[:1],
        train_states=range(0),
        heldout_states=range(1),
        left_out=None,
    )


def _seen_from(base: LiberoTask, pose: Pose) -> mujoco.MjModel:
    model = base.build_visual()
    put_camera(model, pose)
    return model

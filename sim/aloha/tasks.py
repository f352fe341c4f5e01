"""gym-aloha's two tasks: models, initial states as it draws them, and its staged rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import mujoco
import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.aloha.robot import HOME, ROBOT
from embodied_rl.sim.mujoco.task import MujocoTask, Stage, Touch
from embodied_rl.sim.pinned_wheel import ALOHA
from embodied_rl.sim.task import SEEDED_HELDOUT, SEEDED_TRAIN
from embodied_rl.types import Array
from embodied_rl.utils.suites import as_names

HORIZON = 400
"""Control steps of an episode: LeRobot's (8 s). gym-aloha itself registers 300."""
_LEFT, _RIGHT = (("vx300s_left/10_left_gripper_finger",), ("vx300s_right/10_right_gripper_finger",))
"""The finger of each arm that gym-aloha's rewards look at."""
_TABLE = ("table",)
_CUBE, _PEG, _PIN = ("red_box",), ("red_peg",), ("pin",)
_SOCKET = tuple(f"socket-{i}" for i in range(1, 5))
_Range = tuple[tuple[float, float], tuple[float, float], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class _Design:
    """Args: where: x, y and z (m) between which each object begins, drawn in the order of the objects' joints."""

    suite: str
    name: str
    scene: str
    instruction: str
    where: tuple[_Range, ...]
    stages: tuple[Stage, ...]


_DESIGNS = {
    design.suite: design
    for design in (
        _Design(
            suite="aloha_transfer_cube",
            name="transfer_cube",
            scene="bimanual_viperx_transfer_cube.xml",
            instruction="Pick up the cube with the right arm and transfer it to the left arm.",
            where=(((0.0, 0.2), (0.4, 0.6), (0.05, 0.05)),),
            stages=(
                Stage((Touch(_CUBE, _RIGHT),)),
                Stage((Touch(_CUBE, _RIGHT),), (Touch(_CUBE, _TABLE),)),
                Stage((Touch(_CUBE, _LEFT),)),
                Stage((Touch(_CUBE, _LEFT),), (Touch(_CUBE, _TABLE),)),
            ),
        ),
        _Design(
            suite="aloha_insertion",
            name="insertion",
            scene="bimanual_viperx_insertion.xml",
            instruction="Insert the peg into the socket.",
            where=(((0.1, 0.2), (0.4, 0.6), (0.05, 0.05)), ((-0.2, -0.1), (0.4, 0.6), (0.05, 0.05))),
            stages=(
                Stage((Touch(_SOCKET, _LEFT), Touch(_PEG, _RIGHT))),
                Stage((Touch(_SOCKET, _LEFT), Touch(_PEG, _RIGHT)), (Touch(_PEG, _TABLE), Touch(_SOCKET, _TABLE))),
                Stage((Touch(_PEG, _SOCKET),), (Touch(_PEG, _TABLE), Touch(_SOCKET, _TABLE))),
                Stage((Touch(_PEG, _PIN),)),
            ),
        ),
    )
}


def load_tasks(suite: str, names: str | Sequence[str] = ()) -> list[MujocoTask]:
    """The one task of an ALOHA suite. Row i of its initial states is the official one of seed i.

    Raises:
        UserError: There is no such suite or task, or gym-aloha is not installed.
    """
    if suite not in _DESIGNS:
        raise UserError(f"unknown ALOHA suite '{suite}'.{suggest(suite, _DESIGNS)}")
    design = _DESIGNS[suite]
    for name in as_names(names):
        if name != design.name:
            raise UserError(f"suite '{suite}' has no task '{name}'.{suggest(name, (design.name,))}")
    scene = ALOHA.require() / "gym_aloha" / "assets" / design.scene
    return [
        MujocoTask(
            name=f"{suite}/{design.name}",
            suite=suite,
            instruction=design.instruction,
            max_episode_steps=HORIZON,
            init_states=initial_states(suite),
            train_states=SEEDED_TRAIN,
            heldout_states=SEEDED_HELDOUT,
            goal=(),
            build_physics=partial(_build, scene),
            build_visual=partial(_build, scene),
            robot=ROBOT,
            stages=design.stages,
        )
    ]


def num_objects(suite: str) -> int:
    """How many objects lie on the table."""
    return len(_DESIGNS[suite].where)


def _build(scene: Path) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(scene))


@cache
def initial_states(suite: str) -> Array:
    """What gym-aloha's reset(seed=i) begins with, float64 [4196, 1 + nq + nv]: time, qpos, qvel in row i."""
    bounds = np.array(_DESIGNS[suite].where)
    objects = len(bounds)
    rows = np.zeros((SEEDED_HELDOUT.stop, 1 + len(HOME) + 7 * objects + len(HOME) + 6 * objects))
    rows[:, 1 : 1 + len(HOME)] = HOME
    draws = np.random.RandomState()
    for seed, row in enumerate(rows):
        draws.seed(seed)
        for number, ends in enumerate(bounds):
            at = 1 + len(HOME) + 7 * number
            row[at : at + 3] = draws.uniform(ends[:, 0], ends[:, 1])
            row[at + 3] = 1.0
    rows.flags.writeable = False
    return rows

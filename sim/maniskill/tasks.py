"""ManiSkill's tasks by name. What needs an environment to be known (states, actions, success) is not in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.rng import FixedSeed, philox
from embodied_rl.sim.maniskill.load import check_assets, registered
from embodied_rl.sim.task import SEEDED_HELDOUT, SEEDED_TRAIN, TaskSpec
from embodied_rl.utils.suites import as_names

SUITE = "maniskill"
_DRAWN = 10_100
_LONG = 1_000
INSTRUCTIONS = {
    "PickCube-v1": "pick up the red cube and hold it at the green goal",
    "PushCube-v1": "push the blue cube to the target",
    "PullCube-v1": "pull the blue cube to the target",
    "PullCubeTool-v1": "pull the cube closer with the tool",
    "PokeCube-v1": "poke the cube with the peg",
    "StackCube-v1": "put the red cube on the green cube",
    "StackPyramid-v1": "build a pyramid of the three cubes",
    "PlaceSphere-v1": "put the ball into the bin",
    "LiftPegUpright-v1": "stand the peg upright",
    "PegInsertionSide-v1": "put the peg into the hole of the box",
    "PlugCharger-v1": "plug the charger into the socket",
    "RollBall-v1": "roll the ball to the target",
    "PushT-v1": "push the T onto its outline",
}
"""What policies are told; of other tasks the words of their ids."""


@dataclass(frozen=True, kw_only=True)
class ManiSkillTask(TaskSpec):
    """A task of ManiSkill; `init_states` are seeds of its `reset`, int64 [S].

    Example:
        >>> load_tasks(["PushCube-v1"])[0].env_id
        'PushCube-v1'
    """

    env_id: str


def load_tasks(names: str | Sequence[str]) -> list[ManiSkillTask]:
    """The tasks with these ids; UserError for unknown ones, and for those whose files are not here."""
    known, names = registered(), as_names(names)
    if not names:
        raise UserError("ManiSkill's tasks differ too much to be trained together: name one, as --task PushCube-v1.")
    for name in names:
        if name not in known:
            raise UserError(f"ManiSkill has no task '{name}'.{suggest(name, known)}")
        check_assets(name)
    return [_task(name, known[name].max_episode_steps) for name in names]


def _task(env_id: str, horizon: int | None) -> ManiSkillTask:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", re.sub(r"-v\d+$", "", env_id))
    return ManiSkillTask(
        name=f"{SUITE}/{env_id}",
        suite=SUITE,
        instruction=INSTRUCTIONS.get(env_id) or re.sub(r"[-_]", " ", words).lower(),
        max_episode_steps=min(horizon or _LONG, _LONG),
        init_states=seeds(),
        train_states=SEEDED_TRAIN,
        heldout_states=SEEDED_HELDOUT,
        env_id=env_id,
    )


@cache
def seeds() -> np.ndarray[Any, np.dtype[np.int64]]:
    """The seed of every initial state, int64 [S], all different."""
    drawn = philox(FixedSeed.MANISKILL_STATES).choice(
        2**31 - 1, _DRAWN, replace=False
    )  # another count would draw others
    return drawn[: SEEDED_HELDOUT.stop]

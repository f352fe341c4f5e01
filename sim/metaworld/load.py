"""Imports MetaWorld, and makes its tasks' environments for this project's MuJoCo."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.pinned_wheel import METAWORLD

_WELD = 1
"""mjtEq of a weld."""
_WELD_DATA = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 5.0)


@cache
def load_metaworld() -> str:
    """Import MetaWorld once in this process; its version. UserError where it is not installed."""
    if importlib.util.find_spec("metaworld") is None:
        sys.path.append(str(METAWORLD.require()))
    try:
        base = import_module("metaworld.sawyer_xyz_env")
    except ImportError as error:
        raise UserError(f"MetaWorld can't be imported ({error}); run: {METAWORLD.command}") from None
    base.SawyerMocapBase.reset_mocap_welds = _reset_mocap_welds
    return version("metaworld")


def _reset_mocap_welds(env: Any) -> None:
    """As MetaWorld's own, whose rows are one number too short for MuJoCo 4.0."""
    model: mujoco.MjModel = env.model
    for row in np.flatnonzero(model.eq_type == _WELD):
        model.eq_data[row, : len(_WELD_DATA)] = _WELD_DATA


def environments() -> dict[str, Any]:
    """MetaWorld's environment classes by task name, such as 'reach-v3'."""
    load_metaworld()
    return dict(import_module("metaworld.env_dict").ALL_V3_ENVIRONMENTS)


def make(name: str) -> Any:
    """MetaWorld's environment of a task, whose state shows the goal and whose `seed` decides where things are."""
    env = environments()[name]()
    env._partially_observable = False
    del env.sawyer_observation_space  # it was made, and kept, for a hidden goal
    env._freeze_rand_vec, env.seeded_rand_vec, env._set_task_called = False, True, True
    return env


def scripted_expert(name: str) -> Any:
    """MetaWorld's published policy of a task: `get_action(state float64 [39])` gives its action, float32 [4]."""
    load_metaworld()
    return import_module("metaworld.policies").ENV_POLICY_MAP[name]()

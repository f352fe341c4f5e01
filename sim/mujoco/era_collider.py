"""Contacts between two boxes as older MuJoCo versions found them, called by the running one.

Nothing of MuJoCo is copied: the collider is that of an official old libmujoco. It reads three fields of mjModel and
mjData, so two addresses are enough to stand for the old structs: one that is shifted so that the field lies where the
old library looks, and one of a small array of pointers. What the old library's caller did with the points afterwards
(engine_collision_driver.c of MuJoCo 3.3.2, restated here) is done by `clean_up`.
"""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, njit, types  # pyright: ignore[reportPrivateImportUsage]
from numba.extending import intrinsic

from embodied_rl.sim.mujoco.mjlib import load_int32, load_int64
from embodied_rl.sim.mujoco.sources import source_digest
from embodied_rl.types import Array

OLD_COLLIDER = "embodied_rl_era_box_box"
NEW_COLLIDER = "embodied_rl_current_box_box"
"""Symbols under which `era` announces the two functions to LLVM, so that the machine code can be kept on disk."""
MARK_3_3, MARK_2_3_7 = 1 << 28, 1 << 29
"""Bits of mjModel.opt.disableflags that say how a model's boxes collide; MuJoCo itself uses the lowest 20."""
KEPT = 8
"""Contacts of a pair that MuJoCo 4.0 has room for; the old collider was never seen to find more that are apart."""
FOUND = 58
"""Contacts that the old collider may write."""
_GROWN = 1.01
_PRE_CONTACT = 10
"""Doubles of an mjPreContact: dist, pos, normal, tangent."""


class OldLayout(NamedTuple):
    """Bytes: offsets of mjModel.geom_size and mjData.geom_xpos (geom_xmat is the next field), and sizeof(mjContact)."""

    geom_size: int
    geom_xpos: int
    contact: int


class NewLayout(NamedTuple):
    """Bytes: offsets of mjModel.geom_size, mjModel.opt.disableflags, mjData.geom_xpos and geom_xmat."""

    geom_size: int
    disableflags: int
    geom_xpos: int
    geom_xmat: int


MUJOCO_3_3_2 = OldLayout(geom_size=1984, geom_xpos=161840, contact=576)
MUJOCO_4_0 = NewLayout(geom_size=2552, disableflags=1072, geom_xpos=160912, geom_xmat=160928)

_SIGNATURE = types.intc(types.intp, types.intp, types.intp, types.intc, types.intc, types.float64)
_old_collider = types.ExternalFunction(OLD_COLLIDER, _SIGNATURE)
_new_collider = types.ExternalFunction(NEW_COLLIDER, _SIGNATURE)


@intrinsic
def _doubles(typing_context: Any, address: Any) -> Any:
    """The address as a pointer to doubles."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.PointerType(ir.DoubleType()))

    return types.CPointer(types.float64)(types.intp), codegen


@njit(nogil=True)
def _side(point: Array, center: Array, axes: Array, size: Array, margin: float) -> int:
    """1: outside the box grown by 1 %, -1: inside the box shrunk by 1 %, 0: near its surface."""
    inside = True
    for k in range(3):
        along = 0.0
        for i in range(3):
            along += (point[i] - center[i]) * axes[3 * i + k]
        along, reach = abs(along), size[k] + margin
        if along > _GROWN * reach:
            return 1
        if along >= reach / _GROWN:
            inside = False
    return -1 if inside else 0


@njit(nogil=True)
def clean_up(
    contacts: Array, center: Array, axes: Array, size: Array, margin: float, drop_outside: bool, dropped: Array
) -> None:
    """Find which contacts the old driver removed: outside one box and not deep in the other, and repeated points.

    contacts: [n, 72]; center, axes, size: [2, 3], [2, 9], [2, 3] of the two boxes; dropped: bool, receives the answer.
    """
    count = contacts.shape[0]
    for i in range(count):
        dropped[i] = False
        if drop_outside:
            point = contacts[i, 1:4]
            a = _side(point, center[0], axes[0], size[0], margin)
            b = _side(point, center[1], axes[1], size[1], margin)
            dropped[i] = (a == 1 and b != -1) or (b == 1 and a != -1)
    for i in range(count - 1):
        for j in range(i + 1, count):
            if not dropped[i] and not dropped[j]:
                dropped[i] = (
                    contacts[i, 1] == contacts[j, 1]
                    and contacts[i, 2] == contacts[j, 2]
                    and contacts[i, 3] == contacts[j, 3]
                )


def make_collider(old: OldLayout, new: NewLayout) -> Any:
    """The function for mjCOLLISIONFUNC[box][box]: models without a mark get MuJoCo's own, untouched.

    The two colliders must have been announced to LLVM under their symbols before.
    """
    old_size, old_xpos, stride = old.geom_size, old.geom_xpos, old.contact // 8
    new_size, flags, new_xpos, new_xmat = new.geom_size, new.disableflags, new.geom_xpos, new.geom_xmat
    sources = source_digest()

    @cfunc(_SIGNATURE, cache=True)
    def collide(model: int, data: int, out: int, first: int, second: int, margin: float) -> int:
        mark = load_int32(model + flags) & (MARK_3_3 | MARK_2_3_7)
        if mark == 0:
            return _new_collider(model, data, out, first, second, margin)
        _ = sources
        sizes = load_int64(model + new_size)
        fields = np.empty(2, np.int64)
        fields[0], fields[1] = load_int64(data + new_xpos), load_int64(data + new_xmat)
        contacts = np.empty((FOUND, stride))
        count = _old_collider(
            model + new_size - old_size, fields.ctypes.data - old_xpos, contacts.ctypes.data, first, second, margin
        )
        if count == 0:
            return 0
        center, axes, size = np.empty((2, 3)), np.empty((2, 9)), np.empty((2, 3))
        for row, geom in enumerate((first, second)):
            center[row] = carray(_doubles(fields[0] + 24 * geom), 3)
            axes[row] = carray(_doubles(fields[1] + 72 * geom), 9)
            size[row] = carray(_doubles(sizes + 24 * geom), 3)
        dropped = np.empty(FOUND, np.bool_)
        clean_up(contacts[:count], center, axes, size, margin, mark == MARK_3_3, dropped)
        kept = 0
        result = carray(_doubles(out), (KEPT, _PRE_CONTACT))
        for i in range(count):
            if not dropped[i] and kept < KEPT:
                result[kept, :7] = contacts[i, :7]
                result[kept, 7:] = 0.0
                kept += 1
        return kept

    return collide

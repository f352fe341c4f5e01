"""Lets chosen models collide their boxes as an older MuJoCo did, in a process where others keep the running one's way.

MuJoCo's public table mjCOLLISIONFUNC holds one function for all models of a process. `mark` puts that of `era_collider`
in its place, once, and sets a bit in the model that it looks for; models without one get MuJoCo's own function. The bit
goes with copies of the model, so there is nothing to keep track of between threads, and nothing to undo.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

import mujoco
import numpy as np
from llvmlite import binding

from embodied_rl.errors import UserError
from embodied_rl.sim.eras import CURRENT, Era
from embodied_rl.sim.mujoco import era_collider
from embodied_rl.sim.mujoco.era_collider import MARK_2_3_7, MARK_3_3, MUJOCO_3_3_2, MUJOCO_4_0, NewLayout, OldLayout
from embodied_rl.sim.mujoco.mjlib import check_layout, libmujoco
from embodied_rl.types import Array
from embodied_rl.utils.cache_dir import cache_dir

LIBRARY = "libmujoco.so.3.3.2"
LIBRARY_SHA256 = "baa61a1215eaad20178faba899c6c8d2f530c408de55b5a9e1ba1c658716a10c"
"""The shared library in mujoco 3.3.2's official wheels for Linux on x86-64, the same for every Python."""
INSTALL = "embodied-rl assets install era"
_MARKS: dict[Era, int] = {CURRENT: 0, "mujoco-3.3": MARK_3_3, "mujoco-2.3.7": MARK_2_3_7}
_BOX = int(mujoco.mjtGeom.mjGEOM_BOX)
_OLD_TYPES = 9
"""Geom types in the table of the old library (box has the same number in both)."""
_TOLERANCE = 1e-9
"""Metres and units of the normal; the recorded contacts are those of this very library."""
_APART = 2.0
"""Metres between the pairs of boxes of the probe scene."""
_lock = threading.Lock()
_in_use: list[Any] = []
"""Once the collider is in place: MuJoCo's own function (its address), the compiled one and the old library."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A pair of boxes and what old versions find: rows of distance (m), position (m) and normal.

    sizes: [2, 3], half lengths; pos, quat: of the second box, the first is at the origin.
    """

    sizes: tuple[tuple[float, ...], tuple[float, ...]]
    pos: tuple[float, ...]
    quat: tuple[float, ...]
    contacts: dict[Era, Array]


def library_path() -> Path:
    """Where `embodied-rl assets install` puts the old library."""
    return cache_dir() / "era" / LIBRARY


def wrong_platform() -> str | None:
    """Why no older era can ever run on this machine, or None."""
    if sys.platform == "linux" and platform.machine() == "x86_64" and sys.maxsize > 2**32:
        return None
    return (
        f"LIBERO's published eras need MuJoCo 3.3.2's library for Linux on x86-64, and this is {platform.system()} on "
        f"{platform.machine()}: use --env.physics-version current"
    )


def unavailable() -> str | None:
    """Why the older eras can't run here, as one line that says what to do; None if nothing speaks against it."""
    if reason := wrong_platform():
        return reason
    if not library_path().is_file():
        return (
            f"LIBERO's published eras need MuJoCo 3.3.2's library, which is not in {library_path().parent}; run: "
            f"{INSTALL} (or use --env.physics-version current)"
        )
    return None


def require() -> None:
    """UserError, in one line, where the older eras can't run; costs nothing else."""
    if reason := unavailable():
        raise UserError(reason)


def mark(model: mujoco.MjModel, era: Era) -> mujoco.MjModel:
    """Make `model` collide as in `era`, in this process and in every copy; returns it.

    Raises:
        UserError: The era can't run here (see `unavailable`), or the library is not the one that is expected.
    """
    if era != CURRENT:
        install()
    model.opt.disableflags = (model.opt.disableflags & ~(MARK_3_3 | MARK_2_3_7)) | _MARKS[era]
    return model


def era_of(model: mujoco.MjModel) -> Era:
    """The era that `model` was marked with."""
    found = model.opt.disableflags & (MARK_3_3 | MARK_2_3_7)
    return next(era for era, bits in _MARKS.items() if bits == found)


def install() -> None:
    """Put the collider into MuJoCo's table, unless this process has done it; `mark` calls it."""
    with _lock:
        if _in_use:
            return
        require()
        check_layout()
        _in_use.extend(_put_in_place(library_path(), MUJOCO_3_3_2, MUJOCO_4_0))


def _put_in_place(path: Path, old: OldLayout, new: NewLayout) -> list[Any]:
    """Check library and layouts, and replace the table's entry; UserError leaves the table as it was."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != LIBRARY_SHA256:
        raise UserError(f"{path} is not the library of MuJoCo 3.3.2's official wheel: remove it and run: {INSTALL}")
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0))
    old_address = int((ctypes.c_void_p * _OLD_TYPES**2).in_dll(library, "mjCOLLISIONFUNC")[_BOX * _OLD_TYPES + _BOX])
    table, entry = _table()
    current = int(table[entry])
    _check_new(new)
    if not _answers_alone(old_address, old):
        raise _refusal("the old library")
    binding.add_symbol(era_collider.OLD_COLLIDER, old_address)
    binding.add_symbol(era_collider.NEW_COLLIDER, current)
    collider = era_collider.make_collider(old, new)
    before = probe_contacts(CURRENT)
    table[entry] = collider.address
    if not _answers_in_place(before):
        table[entry] = current
        raise _refusal(f"MuJoCo {mujoco.__version__}")
    return [current, collider, library]


def _answers_in_place(before: Sequence[Array]) -> bool:
    """Whether models without a mark get the contacts of `before`, and marked ones the recorded ones."""
    try:
        found: dict[Era, list[Array]] = {era: probe_contacts(era) for era in _MARKS}
    except mujoco.FatalError:  # contacts that no scene can have
        return False
    same = all(np.array_equal(a, b) for a, b in zip(before, found[CURRENT], strict=True))
    return same and all(_agree(rows, era) for era, rows in found.items() if era != CURRENT)


def _refusal(what: str) -> UserError:
    return UserError(
        f"{what} does not find the recorded contacts of MuJoCo 3.3.2 on this machine: please report this platform, and "
        "use --env.physics-version current"
    )


def _table() -> tuple[Any, int]:
    """MuJoCo's table of colliders, and the index of the one for two boxes."""
    size = int(mujoco.mjtGeom.mjGEOM_SDF) + 1
    return (ctypes.c_void_p * size**2).in_dll(libmujoco(), "mjCOLLISIONFUNC"), _BOX * size + _BOX


def _check_new(new: NewLayout) -> None:
    """UserError unless the running MuJoCo's fields lie where `new` says."""
    model = _scene()
    data = mujoco.MjData(model)
    fields = (
        (model._address + new.geom_size, model.geom_size),
        (data._address + new.geom_xpos, data.geom_xpos),
        (data._address + new.geom_xmat, data.geom_xmat),
    )
    found = all(ctypes.c_int64.from_address(at).value == array.ctypes.data for at, array in fields)
    flags = ctypes.c_int32.from_address(model._address + new.disableflags)
    for bits in (0, MARK_3_3, MARK_2_3_7):
        model.opt.disableflags = bits
        found = found and flags.value == bits
    if not found or int(mujoco.mjtDisableBit.mjNDISABLE) > 27:
        raise UserError(
            f"MuJoCo {mujoco.__version__} on this platform lays out mjModel otherwise than the published eras expect: "
            "please report this platform, and use --env.physics-version current"
        )


@cache
def probes() -> Sequence[Probe]:
    """Pairs of boxes (faces, edges, corners) with the contacts that MuJoCo 3.3.2 and 2.3.7 find."""
    rows = json.loads((files("embodied_rl.assets") / "era_contacts.json").read_text())
    return [
        Probe(**{key: value for key, value in row.items() if key != "contacts"}, contacts=_arrays(row["contacts"]))
        for row in rows
    ]


def _arrays(contacts: dict[str, Any]) -> dict[Era, Array]:
    return {cast("Era", era): np.array(rows, dtype=np.float64).reshape(-1, 7) for era, rows in contacts.items()}


@cache
def _scene_xml() -> str:
    pairs = []
    for i, probe in enumerate(probes()):
        first, second, pos, quat = (" ".join(map(repr, x)) for x in (*probe.sizes, probe.pos, probe.quat))
        pairs.append(
            f'<body pos="{_APART * i} 0 0"><geom type="box" size="{first}"/></body>'
            f'<body pos="{_APART * i} 0 0"><body pos="{pos}" quat="{quat}"><joint/>'
            f'<geom type="box" size="{second}"/></body></body>'
        )
    return f"<mujoco><worldbody>{''.join(pairs)}</worldbody></mujoco>"


def _scene() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(_scene_xml())


def probe_contacts(era: Era) -> list[Array]:
    """What this process finds for each probe, [n, 7] rows as in `Probe`, in a model that is marked with `era`."""
    model = _scene()
    model.opt.disableflags |= _MARKS[era]
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    contact = data.contact
    rows = np.column_stack([contact.dist, contact.pos, contact.frame[:, :3]])
    pair = contact.geom.min(axis=1) // 2
    rows[:, 1] -= _APART * pair
    return [rows[pair == i] for i in range(len(probes()))]


def _agree(found: Sequence[Array], era: Era) -> bool:
    wanted = [probe.contacts[era] for probe in probes()]
    return all(a.shape == b.shape and np.allclose(a, b, 0, _TOLERANCE) for a, b in zip(found, wanted, strict=True))


def _answers_alone(address: int, old: OldLayout) -> bool:
    """Whether the old library itself, called with arrays that stand for its structs, finds what was recorded.

    Every other field of the arrays points to zeros: a wrong offset finds another contact and breaks nothing.
    """
    kinds = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_double)
    collide = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(address)
    zeros = np.zeros(64)
    for probe in probes():
        size, center, axes = np.array(probe.sizes), np.zeros((2, 3)), np.zeros((2, 9))
        center[1], axes[0] = probe.pos, np.eye(3).ravel()
        mujoco.mju_quat2Mat(axes[1], np.array(probe.quat) / np.linalg.norm(probe.quat))
        model = np.full(1024, zeros.ctypes.data, np.int64)
        data = np.full(1 << 15, zeros.ctypes.data, np.int64)
        model[old.geom_size // 8] = size.ctypes.data
        data[old.geom_xpos // 8], data[old.geom_xpos // 8 + 1] = center.ctypes.data, axes.ctypes.data
        contacts = np.zeros((era_collider.FOUND + 6, old.contact // 8))
        count = collide(model.ctypes.data, data.ctypes.data, contacts.ctypes.data, 0, 1, 0.0)
        wanted = probe.contacts["mujoco-3.3"]  # more are found, and then removed by those who call the old library
        gaps = np.abs(contacts[:count, None, :7] - wanted[None]).max(axis=2)
        if count < len(wanted) or (len(wanted) and not (gaps.min(axis=0) <= _TOLERANCE).all()):  # false of a NaN too
            return False
    return True

"""Where the large parts of a binary model begin: models share them. Runs inside the isolated environment too."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import mujoco
import numpy as np

_OWN_BLOB = 1 << 16
"""A texture or mesh part of at least this many bytes gets a blob of its own."""
_PARTS = {
    "tex_adr": ("tex_data",),
    "mesh_vertadr": ("mesh_vert", "mesh_polymapnum", "mesh_polymapadr"),
    "mesh_normaladr": ("mesh_normal",),
    "mesh_texcoordadr": ("mesh_texcoord",),
    "mesh_faceadr": ("mesh_face", "mesh_facenormal", "mesh_facetexcoord"),
    "mesh_bvhadr": ("bvh_aabb", "bvh_child", "bvh_nodeid", "bvh_depth"),
}
"""Large arrays of a model, by the field that says where each mesh or texture begins in them (in rows)."""
_PROBE, _PROBES = 256, 64
"""Bytes of an array that are searched for first, and how many such pieces are looked at to choose the most varied."""
_VARIED = 32
"""Different bytes that a piece needs: one of a plain texture would be found everywhere."""


def saved(model: mujoco.MjModel) -> bytes:
    """The model as MJB."""
    buffer = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, buffer)
    return buffer.tobytes()


def cuts(model: mujoco.MjModel, binary: bytes) -> list[int]:
    """Byte offsets in `binary`, the MJB of `model`, where large textures and mesh parts begin and end."""
    found: list[int] = []
    for field, names in _PARTS.items():
        for name in names:
            values = np.ascontiguousarray(getattr(model, name))
            if values.nbytes < _OWN_BLOB:
                continue
            begin = _find(binary, values.tobytes())
            row = values.itemsize * (values.shape[1] if values.ndim > 1 else 1)
            for first, last in _spans(np.asarray(getattr(model, field)), len(values)):
                if (last - first) * row >= _OWN_BLOB:
                    found += [begin + first * row, begin + last * row]
    return found


def _find(binary: bytes, values: bytes) -> int:
    """Where `values`, of _OWN_BLOB bytes or more, stand first.

    bytes.find takes a second to prepare for a needle of 100 MB, so a short, varied piece of it is searched for.
    ValueError where they do not stand.
    """
    starts = range(0, len(values) - _PROBE, (len(values) - _PROBE) // _PROBES)
    at = max(starts, key=lambda start: len(set(values[start : start + _PROBE])))
    if len(set(values[at : at + _PROBE])) < _VARIED:
        return binary.index(values)
    probe = values[at : at + _PROBE]
    found = binary.find(probe, at)
    while found >= 0 and not binary.startswith(values, found - at):
        found = binary.find(probe, found + 1)
    if found < 0:
        raise ValueError("the binary model lacks an array of the model")
    return found - at


def _spans(addresses: np.ndarray[Any, Any], rows: int) -> Iterator[tuple[int, int]]:
    """First and last row of each part; parts without rows have address -1 or share an address."""
    borders = sorted({int(a) for a in addresses if a >= 0} | {rows})
    yield from pairwise(borders)

"""Ladders of decimated meshes, kept in a folder by the mesh's content: each is made once on a machine.

A file is 32 bytes of SHA-256 over the rest, then the rest compressed: the number of triangles of each rung as uint32,
then the rungs, uint32 [T, 3]. A rung that equals the one before it is SAME and has no triangles in the file.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from pathlib import Path

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.render.mesh.decimate import ERRORS, VERSION, decimate
from embodied_rl.types import Array

_DIGEST = 32
_SAME = 0xFFFFFFFF


def mesh_key(points: Array, normals: Array, coords: Array | None) -> str:
    """Hexadecimal SHA-256 of what a ladder depends on: the corners, the rungs and the method."""
    digest = hashlib.sha256(repr((VERSION, ERRORS, coords is not None)).encode())
    for part in (points, normals) if coords is None else (points, normals, coords):
        digest.update(np.ascontiguousarray(part, "<f4").tobytes())
    return digest.hexdigest()


class Ladders:
    """Ladders by mesh.

    Args:
        folder: where they are kept, made when the first is written; None: in memory only. A folder that may not be
            written is read, and what it lacks stays in memory.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._known: dict[str, list[Array]] = {}

    def get(self, points: Array, normals: Array, coords: Array | None) -> list[Array]:
        """The ladder of a mesh (see `decimate`), made where it is not known. UserError for a damaged file."""
        key = mesh_key(points, normals, coords)
        if key in self._known:
            return self._known[key]
        path = self._folder / key[:2] / key if self._folder is not None else None
        if path is not None and path.is_file():
            ladder = _unpack(path)
        else:
            ladder = decimate(points, normals, coords)
            if path is not None and self._folder is not None and _may_write(self._folder):
                _write(path, _pack(ladder))
        self._known[key] = ladder
        return ladder


def _pack(ladder: list[Array]) -> bytes:
    same = [k > 0 and np.array_equal(rung, ladder[k - 1]) for k, rung in enumerate(ladder)]
    counts = [_SAME if skip else len(rung) for skip, rung in zip(same, ladder, strict=True)]
    rungs = [rung.astype("<u4").tobytes() for skip, rung in zip(same, ladder, strict=True) if not skip]
    data = zlib.compress(np.array(counts, "<u4").tobytes() + b"".join(rungs), 6)
    return hashlib.sha256(data).digest() + data


def _unpack(path: Path) -> list[Array]:
    content = path.read_bytes()
    if hashlib.sha256(content[_DIGEST:]).digest() != content[:_DIGEST]:
        raise UserError(f"{path} is damaged; delete it: it is made again when it is needed")
    values = np.frombuffer(zlib.decompress(content[_DIGEST:]), "<u4")
    ladder: list[Array] = []
    at = len(ERRORS)
    for count in values[: len(ERRORS)].tolist():
        if count == _SAME:
            ladder.append(ladder[-1])
            continue
        ladder.append(values[at : at + 3 * count].astype(np.int32).reshape(-1, 3))
        at += 3 * count
    return ladder


def _may_write(folder: Path) -> bool:
    """Whether the folder, or the nearest one above it that exists, may be written."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK)


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all; two processes that make the same ladder write the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)

"""Plain replacements for missing asset files: a grey picture, a small box. Runs inside the isolated environment."""

from __future__ import annotations

import hashlib
import os
import struct
import xml.etree.ElementTree as ET
import zlib
from collections.abc import Collection
from pathlib import Path

_GREY, _SIZE = 128, 8
_BOX_HALF = 0.02
"""Metres, before a mesh's scale."""
_FACES = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))


def missing_files(xml: str, altered: Collection[str] = ()) -> list[str]:
    """Paths of the asset files that a scene names and that do not exist or are `altered`, as the XML spells them.

    altered: real paths of files that count as missing.
    """
    found = [element.get("file") for assets in ET.fromstring(xml).iter("asset") for element in assets]
    return sorted({path for path in found if path and (not Path(path).is_file() or os.path.realpath(path) in altered)})


def make(path: str, folder: Path) -> Path:
    """Write the stand-in for the file at `path` into `folder`. ValueError when it is neither picture nor mesh.

    Exporting processes share the folder: a stand-in is there whole or not at all while another one makes it again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    image = Path(path).suffix.lower() == ".png"
    if not image and Path(path).suffix.lower() not in (".msh", ".obj", ".stl"):
        raise ValueError(f"no stand-in can be made for {path}")
    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    target = folder / f"{name}{'.png' if image else '.obj'}"
    part = folder / f"{target.name}.{os.getpid()}.part"
    part.write_bytes(_png() if image else _box().encode())
    os.replace(part, target)
    return target


def _png() -> bytes:
    rows = (b"\0" + bytes([_GREY] * 3 * _SIZE)) * _SIZE
    header = struct.pack(">IIBBBBB", _SIZE, _SIZE, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _box() -> str:
    half = (-_BOX_HALF, _BOX_HALF)
    corners = [(x, y, z) for x in half for y in half for z in half]
    lines = [f"v {x} {y} {z}" for x, y, z in corners] + ["vt 0 0"]
    for a, b, c, d in _FACES:
        lines += [f"f {a + 1}/1 {b + 1}/1 {c + 1}/1", f"f {a + 1}/1 {c + 1}/1 {d + 1}/1"]
    return "\n".join(lines) + "\n"

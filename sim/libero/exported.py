"""The file format of exported LIBERO tasks: content-addressed blobs, one JSON file a task; see docs/libero.md.

Only this module reads or writes the files, so that an exported task is either whole or refused with one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.errors import UserError, did_you_mean
from embodied_rl.types import Array
from embodied_rl.utils.suites import LAYOUT_SUITES, PRO_SUITES, base_suite

FORMAT = 1
INSTALL = "embodied-rl assets install libero"
_COMPRESSION = 6


def install_command(name: str) -> str:
    """What makes the exported tasks of a suite, or of a task 'suite/short_name'."""
    return INSTALL.replace("libero", _benchmark(name)) + _suite_words(name)


def _benchmark(name: str) -> str:
    """What `assets` calls the benchmark of a suite or a task."""
    suite = name.partition("/")[0]
    return "libero-pro" if suite in PRO_SUITES else "libero-plus" if suite in LAYOUT_SUITES else "libero"


def _suite_words(name: str) -> str:
    suite = name.partition("/")[0]
    return f" --suites {base_suite(suite) if suite in LAYOUT_SUITES else suite}" if _benchmark(name) != "libero" else ""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also when the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


class BlobStore:
    """Bytes by the SHA-256 of their content, compressed: what several tasks share is stored once.

    Args:
        root: the installation.
        name: of the task or suite that needs the blobs: complaints name the commands that mend it.
    """

    def __init__(self, root: Path, name: str = "") -> None:
        self.folder = root / "blobs"
        self._name = name

    def path(self, digest: str) -> Path:
        """Where the blob with this hexadecimal digest lies."""
        return self.folder / digest[:2] / digest

    def put(self, data: bytes) -> str:
        """Store `data`, unless it is there already; return its digest."""
        digest = hashlib.sha256(data).hexdigest()
        if not self.path(digest).is_file():
            write_atomically(self.path(digest), zlib.compress(data, _COMPRESSION))
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes of a blob. UserError when the file is missing or is not what its name says."""
        path = self.path(digest)
        try:
            data = zlib.decompress(path.read_bytes())
        except FileNotFoundError:
            raise UserError(f"{path} is missing; run: {install_command(self._name)}") from None
        except zlib.error:
            data = b""
        if hashlib.sha256(data).hexdigest() != digest:
            raise UserError(
                f"{path} is damaged; run: embodied-rl assets verify {_benchmark(self._name)}, "
                f"then {install_command(self._name)}"
            )
        return data

    def intact(self, digest: str) -> bool:
        """Whether the blob is there and is what its name says."""
        try:
            self.get(digest)
        except UserError:
            return False
        return True


def sweep(root: Path) -> None:
    """Delete what a killed writer left; nobody may be writing under `root` now."""
    for leftover in root.rglob("*.tmp"):
        leftover.unlink()


def pack_array(store: BlobStore, values: Array) -> dict[str, Any]:
    """Store a float64 array; returns its description for the JSON file."""
    values = np.ascontiguousarray(values, dtype="<f8")
    return {"blob": store.put(values.tobytes()), "shape": list(values.shape)}


def unpack_array(store: BlobStore, packed: dict[str, Any]) -> Array:
    """The array that `pack_array` stored, float64, read-only."""
    return np.frombuffer(store.get(packed["blob"]), dtype="<f8").reshape(packed["shape"])


def pack_model(store: BlobStore, binary: bytes, cuts: Iterable[int]) -> list[str]:
    """Store an MJB in pieces that begin at `cuts` (byte offsets); returns their digests, in order."""
    borders = sorted({0, len(binary), *cuts})
    return [store.put(binary[a:b]) for a, b in pairwise(borders)]


def unpack_model(store: BlobStore, pieces: Sequence[str]) -> bytes:
    """The MJB that `pack_model` stored."""
    return b"".join(store.get(digest) for digest in pieces)


def exported_path(root: Path, name: str) -> Path:
    """The JSON file of task 'suite/short_name'."""
    return root / "tasks" / f"{name}.json"


def write_exported(root: Path, exported: dict[str, Any]) -> None:
    """Write a task's JSON file; its blobs must be stored before, for the file says that the task is complete."""
    text = json.dumps({"format": FORMAT, **exported}, indent=1, sort_keys=True) + "\n"
    write_atomically(exported_path(root, exported["name"]), text.encode())


def installed(root: Path) -> list[str]:
    """Full names of the tasks that are installed under `root`, sorted."""
    return sorted(str(p.relative_to(root / "tasks").with_suffix("")) for p in (root / "tasks").glob("*/*.json"))


def read_exported(root: Path, name: str) -> dict[str, Any]:
    """A task's JSON file, checked for format; the MuJoCo version is checked where a model is loaded.

    UserError when the task is not installed, when the file is damaged, or when another version wrote it.
    """
    path = exported_path(root, name)
    try:
        exported = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = did_you_mean(name, installed(root)) or f" Run: {install_command(name)}"
        raise UserError(f"no LIBERO task '{name}' in {root}.{hint}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path}: {error}; run: {install_command(name)}") from None
    if not isinstance(exported, dict) or exported.get("name") != name:
        raise UserError(f"{path} is not the exported task '{name}'; remove it and run: {install_command(name)}")
    if exported.get("format") != FORMAT:
        raise UserError(
            f"{path} has format {exported.get('format')}, this version reads {FORMAT}; run: {install_command(name)}"
        )
    return exported


def blobs_of(exported: dict[str, Any]) -> list[str]:
    """Digests of every blob that an exported task needs."""
    arrays = [exported["init_states"], *exported["start"].values()]
    return [*exported["visual"], *exported["physics"], *(array["blob"] for array in arrays)]


def is_whole(root: Path, name: str) -> bool:
    """Whether the exported task is of this format and has all its blobs; their content is not read."""
    try:
        digests = blobs_of(read_exported(root, name))
    except (UserError, KeyError, TypeError, AttributeError):
        return False
    store = BlobStore(root)
    return all(store.path(digest).is_file() for digest in digests)


def fingerprint(exported: dict[str, Any]) -> str:
    """SHA-256 of all that an exported task says; arrays and models count through their digests."""
    return hashlib.sha256(json.dumps(exported, sort_keys=True).encode()).hexdigest()

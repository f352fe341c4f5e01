"""Which files a policy was read from, whether they are unchanged, and whether their numbers are finite."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from torch import Tensor

from embodied_rl.errors import UserError

CHECKSUMS = "checksums.json"
_read: ContextVar[dict[Path, None] | None] = ContextVar("files read by a loader", default=None)


@contextmanager
def recorded_files() -> Iterator[dict[Path, None]]:
    """Collect, in order, every file that a checkpoint loader reads inside the `with` block."""
    files: dict[Path, None] = {}
    token = _read.set(files)
    try:
        yield files
    finally:
        _read.reset(token)


def record(path: Path) -> None:
    """Called by every reader of checkpoint files with the file that it is about to read."""
    files = _read.get()
    if files is not None:
        files[Path(os.path.abspath(path))] = None  # links stay: the hub's cache names its files by content


def file_sha256(path: Path) -> str:
    """SHA-256 of one file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(files: Iterable[Path], folder: Path) -> str:
    """SHA-256 over names and contents of `files`; names are relative to `folder` where they lie in it.

    A moved or renamed checkpoint folder keeps its digest.
    """
    root = Path(os.path.abspath(folder))
    parts = [
        (path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name, file_sha256(path))
        for path in map(Path, map(os.path.abspath, files))
    ]
    return hashlib.sha256("\n".join(f"{sha} {name}" for name, sha in sorted(parts)).encode()).hexdigest()


def require_finite(tensors: Mapping[str, Tensor], source: Path) -> None:
    """UserError naming the first tensor of `source` that holds NaN or infinity."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel() and not _finite(tensor):
            raise UserError(
                f"{source}: tensor {name} has numbers that are not finite: restore the file from the checkpoint's "
                "source, or use an earlier checkpoint"
            )


def _finite(tensor: Tensor) -> bool:
    if tensor.element_size() == 1:  # the 8-bit formats have no reductions
        tensor = tensor.float()
    return all(bool(end.isfinite()) for end in tensor.aminmax())  # NaN goes through, and no copy is made

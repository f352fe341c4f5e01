"""Checkpoints of a run: whole or not there, verified when read.

checkpoints/latest               name of the newest checkpoint
checkpoints/iter-000010/         policy/ (written by the policy's own code), trainer.pt (optimiser, RNG; the newest
                                 weights where policy/ has their mean), state.json (iteration, sampler, metrics
                                 position, SHA-256 of every other file)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from embodied_rl.errors import UserError

POLICY, TRAINER, STATE, LATEST = "policy", "trainer.pt", "state.json", "latest"
_PARTIAL = ".partial-"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint. trainer: tensors and plain values; state: what was passed to `save`."""

    path: Path
    policy: Path
    trainer: dict[str, Any]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints in `folder`, of which the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def save(
        self, iteration: int, save_policy: Callable[[Path], None], trainer: dict[str, Any], state: dict[str, Any]
    ) -> Path:
        """Write a checkpoint, point `latest` at it, delete old ones; return its path.

        state must be JSON. Raises UserError, with the previous checkpoint untouched, if it cannot be written.
        """
        final = self.folder / f"iter-{iteration:06d}"
        partial = self.folder / f"{_PARTIAL}{final.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear_partial()
            partial.mkdir()
            save_policy(partial / POLICY)
            with open(partial / TRAINER, "wb") as file:  # torch reports a full disk as OSError only through a handle
                torch.save(trainer, file)
            hashes = {str(path.relative_to(partial)): _sha256(path) for path in _files(partial)}
            content = {"iteration": iteration, "sha256": hashes, "state": state}
            (partial / STATE).write_text(json.dumps(content, indent=1))
            _sync_tree(partial)
            partial.rename(final)
            self._point_latest(final.name)
        except (OSError, UserError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise UserError(self._cannot_write(final, error)) from error
        for name in self.names()[: -self.keep]:
            shutil.rmtree(self.folder / name)
        return final

    def load_latest(self) -> Loaded:
        """Read and verify the checkpoint that `latest` names; raise UserError if there is none or it is damaged."""
        pointer = self.folder / LATEST
        if not pointer.is_file():
            raise UserError(f"there is no checkpoint in {self.folder}; start the run anew, without --resume.")
        return load(self.folder / pointer.read_text().strip())

    def newest(self) -> int:
        """The iteration of the newest complete checkpoint, 0 without one."""
        names = self.names()
        return int(names[-1].removeprefix("iter-")) if names else 0

    def continue_from(self, loaded: Loaded) -> None:
        """Delete the checkpoints after `loaded`: the run goes on from there, and they belong to an abandoned future."""
        self._point_latest(loaded.path.name)
        for name in self.names():
            if name > loaded.path.name:
                shutil.rmtree(self.folder / name)

    def names(self) -> list[str]:
        """Complete checkpoints, oldest first."""
        return sorted(path.parent.name for path in self.folder.glob(f"iter-*/{STATE}"))

    def _point_latest(self, name: str) -> None:
        partial = self.folder / f"{_PARTIAL}{LATEST}"
        partial.write_text(name + "\n")
        _sync(partial)
        partial.rename(self.folder / LATEST)
        _sync(self.folder)

    def _clear_partial(self) -> None:
        """Remove what a killed save left behind."""
        for path in self.folder.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _cannot_write(self, final: Path, error: OSError | UserError) -> str:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
        pointer = self.folder / LATEST
        intact = f"checkpoint {pointer.read_text().strip()} is intact" if pointer.is_file() else "no older one exists"
        return f"cannot write checkpoint {final} ({reason}); {intact}: free some space there and resume the run."


def load(path: Path) -> Loaded:
    """Read the checkpoint folder `path`; raise UserError if a file is missing or does not match its SHA-256."""
    others = Checkpoints(path.parent, 1).names()
    hint = f"use another one of {path.parent}: {', '.join(n for n in others if n != path.name) or 'there is none'}."
    try:
        content = json.loads((path / STATE).read_text())
        hashes: dict[str, str] = content["sha256"]
        for name, expected in hashes.items():
            if _sha256(path / name) != expected:
                raise UserError(f"checkpoint {path} is corrupt ({name} has changed); {hint}")
        trainer = torch.load(path / TRAINER, map_location="cpu", weights_only=True)
        return Loaded(path, path / POLICY, trainer, content["state"] | {"iteration": int(content["iteration"])})
    except (OSError, ValueError, KeyError, TypeError) as error:  # TypeError: JSON, but not of our shape
        raise UserError(f"cannot read checkpoint {path} ({error}); {hint}") from error


def rng_state() -> dict[str, Any]:
    """The state of torch's global generators, for policies that use them (the rest of the project is counter-based)."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore_rng(state: dict[str, Any]) -> None:
    """Set the global generators to what `rng_state` returned."""
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_tree(folder: Path) -> None:
    """Flush every file and folder to the disk, so that the rename cannot become durable before them."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)

"""Checkpoints of a run: whole or not there, verified when read.

checkpoints/latest               name of the newest checkpoint
checkpoints/iter-000010/         policy/ (written by the policy's own code), trainer.pt (optimiser, RNG; the newest
                                 weights where policy/ has their mean), state.json (iteration, sampler, metrics
                                 position, SHA-256 of every other file and of itself)
checkpoints/.partial-*           what is being written or deleted; no checkpoint
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from embodied_rl.errors import UserError

POLICY, TRAINER, STATE, LATEST = "policy", "trainer.pt", "state.json", "latest"
_PARTIAL = ".partial-"
_NAME = re.compile(r"iter-(\d{6,})")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint. trainer: tensors and plain values; state: what was passed to `save`."""

    path: Path
    policy: Path
    trainer: dict[str, Any]
    state: dict[str, Any]

    @property
    def iteration(self) -> int:
        """How many updates it has behind it."""
        return iteration_of(self.path)


class Checkpoints:
    """The checkpoints in `folder`, of which the newest `keep` are kept.

    Whoever calls `save` or `continue_from` holds the run's lock: both remove what an earlier process left half done.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep
        self.protected: str | None = None
        """Name of a checkpoint that is kept whatever its age; None: there is none."""

    def save(
        self, iteration: int, save_policy: Callable[[Path], None], trainer: dict[str, Any], state: dict[str, Any]
    ) -> Path:
        """Write a checkpoint, point `latest` at it, delete old ones; return its path.

        Args:
            iteration: updates done.
            save_policy: writes the policy into the folder that it is given, and makes that folder.
            trainer: tensors and plain values, for `torch.save`.
            state: values that JSON can hold.

        Raises:
            UserError: it can't be written; the previous checkpoint is untouched.
        """
        final = self.folder / f"iter-{iteration:06d}"
        partial = self.folder / f"{_PARTIAL}{final.name}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear()
            partial.mkdir()
            save_policy(partial / POLICY)
            with open(partial / TRAINER, "wb") as file:  # torch reports a full disk as OSError only through a handle
                torch.save(trainer, file)
            hashes = {str(path.relative_to(partial)): _sha256(path) for path in _files(partial)}
            content = {"iteration": iteration, "sha256": hashes, "state": state}
            (partial / STATE).write_text(json.dumps(content | {"own_sha256": _digest(content)}, indent=1))
            _sync_tree(partial)
            partial.rename(final)
            self.point_latest(final.name)
            self._delete(self._old())  # last: until `latest` names the new one, a resume needs an old one
        except (OSError, UserError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise UserError(self._cannot_write(final, error)) from error
        return final

    def find(self, name: str | None = None) -> Path | None:
        """The folder of checkpoint `name`, or of the one that `latest` names; None if the run has none yet.

        Raises:
            UserError: there is no such checkpoint, or `latest` names none.
        """
        name = name or self.latest()
        if name is None:
            return None
        if name not in self.names():
            raise UserError(f"there is no checkpoint {self.folder / name}; {_hint(self.folder / name)}")
        return self.folder / name

    def latest(self) -> str | None:
        """What `latest` names; the newest complete checkpoint where a kill came before it was written, None without.

        Raises:
            UserError: it names something that is no checkpoint of this run.
        """
        pointer = self.folder / LATEST
        if not pointer.is_file():
            return next(reversed(self.names()), None)
        name = pointer.read_text(errors="replace").strip()
        if not _NAME.fullmatch(name):
            raise UserError(f"{pointer} must name a checkpoint beside it, and has {name[:40]!r}; {_hint(pointer)}")
        return name

    def continue_from(self, loaded: Loaded | None) -> None:
        """Delete the checkpoints after `loaded` (None: all), since the run goes on from there and saves them anew."""
        first = -1 if loaded is None else loaded.iteration
        try:
            self._clear()
            if loaded is not None:
                self.point_latest(loaded.path.name)
            self._delete([name for name in self.names() if _number(name) > first])
            self._delete(self._old())
        except OSError as error:
            raise UserError(f"cannot change {self.folder} ({error.strerror}): check its permissions.") from error

    def point_latest(self, name: str) -> None:
        """Make `name` the checkpoint that a resume goes on from."""
        partial = self.folder / f"{_PARTIAL}{LATEST}"
        partial.write_text(name + "\n")
        _sync(partial)
        partial.rename(self.folder / LATEST)
        _sync(self.folder)

    def names(self) -> list[str]:
        """Complete checkpoints, oldest first."""
        found = (path.parent.name for path in self.folder.glob(f"iter-*/{STATE}"))
        return sorted((name for name in found if _NAME.fullmatch(name)), key=_number)

    def _old(self) -> list[str]:
        return [name for name in self.names()[: -self.keep] if name != self.protected]

    def _delete(self, names: list[str]) -> None:
        """Under another name first: a kill in between must not leave half a checkpoint."""
        for name in names:
            partial = self.folder / f"{_PARTIAL}{name}"
            (self.folder / name).rename(partial)
            shutil.rmtree(partial)

    def _clear(self) -> None:
        """Remove what a kill left half written or half deleted."""
        complete = self.names()
        halves = [
            path for path in self.folder.glob("iter-*") if _NAME.fullmatch(path.name) and path.name not in complete
        ]
        for path in [*self.folder.glob(f"{_PARTIAL}*"), *halves]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _cannot_write(self, final: Path, error: OSError | UserError) -> str:
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
        newest = next(reversed(self.names()), None)
        intact = f"checkpoint {newest} is intact" if newest else "there is no older one, so it begins anew"
        return f"cannot write checkpoint {final} ({reason}): free some space there and resume the run; {intact}."


def load(path: Path) -> Loaded:
    """Read the checkpoint folder `path`; UserError if a file is missing or does not match its SHA-256."""
    content = verify(path)
    try:
        trainer = torch.load(path / TRAINER, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's message advises to load it unsafely
        kind = type(error).__name__
        raise UserError(f"cannot read checkpoint {path} ({TRAINER}: {kind}); {_hint(path)}") from error
    return Loaded(path, path / POLICY, trainer, content["state"])


def iteration_of(path: Path) -> int:
    """How many updates the checkpoint folder `path` has behind it."""
    return _number(path.name)


def verify(path: Path, part: str = "") -> dict[str, Any]:
    """Compare the files of the checkpoint folder `path` with the SHA-256 in its state.json; return what that holds.

    Args:
        path: a folder such as RUN/checkpoints/iter-000010.
        part: compare only files whose path in the folder begins so: `POLICY` leaves the large trainer.pt unread.

    Raises:
        UserError: a file is missing or has changed, or state.json is damaged.
    """
    try:
        content = json.loads((path / STATE).read_text(encoding="utf-8"))
        own = content.pop("own_sha256")
        hashes: dict[str, str] = content["sha256"]
        changed = [name for name, digest in hashes.items() if name.startswith(part) and _sha256(path / name) != digest]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:  # the last three: JSON of another shape
        reason = error.strerror if isinstance(error, OSError) else f"{STATE} is damaged"
        raise UserError(f"cannot read checkpoint {path} ({reason}); {_hint(path)}") from error
    if own != _digest(content):
        changed.append(STATE)
    if changed:
        raise UserError(f"checkpoint {path} is corrupt ({', '.join(changed)} changed); {_hint(path)}")
    return content


def _hint(path: Path) -> str:
    """How to go on without the checkpoint `path`."""
    folder = path.parent
    others = [name for name in Checkpoints(folder, 1).names() if name != path.name]
    if not others:
        return f"there is no other one: delete {folder}, and --resume begins the run anew."
    run = shlex.quote(str(folder.parent))
    return f"go on from another one with --resume {run} --from {others[-1]} (there is {', '.join(others)})."


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


def _number(name: str) -> int:
    return int(name.removeprefix("iter-"))


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


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

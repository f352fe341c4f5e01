"""The state of an installation: what is there, whether it is intact, and its removal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mujoco

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import (
    BlobStore,
    blobs_of,
    exported_path,
    fingerprint,
    installed,
    is_whole,
    read_exported,
)
from embodied_rl.sim.libero.install.benchmarks import INSTALLABLE, LIBERO, Benchmark
from embodied_rl.sim.libero.install.folder import TRASH, WORK, alone
from embodied_rl.sim.libero.install.install import OFFICIAL
from embodied_rl.sim.libero.install.manifest import known_tasks, read_manifest
from embodied_rl.sim.libero.premise_files import FOLDER
from embodied_rl.utils.output import folder_bytes

_OURS = {
    *(name for benchmark in INSTALLABLE.values() for name in benchmark.files),
    "licenses",
    "tasks",
    "blobs",
    "ladders",
    FOLDER,
    WORK,
    TRASH,
    OFFICIAL,
    ".lock",
}
"""What an installation writes; a folder with anything else in it is not removed."""


@dataclass(frozen=True, slots=True)
class SuiteState:
    """One suite. total: official tasks, 0 when not known yet; stale: made by another MuJoCo version,
    or not whole."""

    suite: str
    installed: int
    total: int
    approximate: int
    stale: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A file of an installation that is not as it should be."""

    path: Path
    what: str


def installed_of(root: Path, benchmark: Benchmark) -> list[str]:
    """Full names of the benchmark's tasks that are installed."""
    return [name for name in installed(root) if name.partition("/")[0] in benchmark.suites]


def status(root: Path, benchmark: Benchmark) -> list[SuiteState]:
    """The state of every suite under `root`; quick, without reading the blobs."""
    official = known_tasks(root, benchmark)
    rows = []
    for suite in benchmark.suites:
        there = [name for name in installed(root) if name.startswith(f"{suite}/")]
        whole = [name for name in there if is_whole(root, name)]
        tasks = [read_exported(root, name) for name in whole]
        rows.append(
            SuiteState(
                suite=suite,
                installed=len(tasks),
                total=sum(name.startswith(f"{suite}/") for name in official),
                approximate=sum(bool(exported["approximate"]) for exported in tasks),
                stale=sum(exported["mujoco"] != mujoco.__version__ for exported in tasks) + len(there) - len(whole),
            )
        )
    return rows


def missing_assets(root: Path, benchmark: Benchmark) -> list[str]:
    """Asset files that the last installation did not find, and those that stand-ins replace in an exported task."""
    manifest = read_manifest(root, benchmark)
    found = set(manifest["missing"]) if manifest else set()
    for name in installed_of(root, benchmark):
        if is_whole(root, name):  # `verify` names the others
            found.update(read_exported(root, name)["approximate"])
    return sorted(found)


def verify(root: Path, benchmark: Benchmark, progress: Callable[[int, int], None]) -> list[Problem]:
    """Read every file and compare it with its checksum; what is damaged is deleted, so that `install` makes it again.

    progress(done, total) counts blobs. UserError when nothing is installed, or an installation is running.
    """
    names = installed_of(root, benchmark)
    if not names:
        raise UserError(f"{benchmark.title} is not installed in {root}; run: {benchmark.install}")
    known = (read_manifest(root, benchmark) or {}).get("fingerprints", {})
    problems: list[Problem] = []
    needed: set[str] = set()
    for name in names:
        path = exported_path(root, name)
        try:
            exported = read_exported(root, name)
            needed.update(blobs_of(exported))
        except UserError as error:
            problems.append(Problem(path, str(error)))
        except (KeyError, TypeError, AttributeError):
            problems.append(_deleted(root, path, "damaged"))
        else:
            if known.get(name) not in (None, fingerprint(exported)):
                problems.append(_deleted(root, path, "altered"))
    return problems + _damaged_blobs(root, needed, progress)


def _deleted(root: Path, path: Path, what: str) -> Problem:
    with alone(root):  # a running installation counts on what it has seen
        path.unlink()
    return Problem(path, f"{what}, deleted")


def _damaged_blobs(root: Path, needed: set[str], progress: Callable[[int, int], None]) -> list[Problem]:
    """The blobs that are missing or damaged; damaged ones are deleted."""
    problems: list[Problem] = []
    store = BlobStore(root)
    for done, digest in enumerate(sorted(needed), 1):
        path = store.path(digest)
        if not path.is_file():
            problems.append(Problem(path, "missing"))
        elif not store.intact(digest):
            problems.append(_deleted(root, path, "damaged"))
        progress(done, len(needed))
    return problems


def remove(root: Path, benchmark: Benchmark) -> int:
    """Delete the benchmark's tasks, and everything when nothing of another's is there; returns the bytes freed.

    UserError when it is not installed, the folder holds something that no installation wrote, or one is running.
    """
    absent = UserError(f"{benchmark.title} is not installed in {root}")
    if not root.is_dir():
        raise absent
    others = sorted(path.name for path in root.iterdir() if path.name not in _OURS)
    if others:
        raise UserError(
            f"{root} also holds {others[0]}, which no installation wrote; move it or delete the folder yourself"
        )
    own = installed_of(root, benchmark)
    kept = [name for name in installed(root) if name not in own]
    with alone(root):
        before = folder_bytes(root)
        if not kept and not any(_has_files(root, other) for other in _others(benchmark)):
            shutil.rmtree(root.resolve())
            if root.is_symlink():
                root.unlink()
            return before
        if not own and not _has_files(root, benchmark):
            raise absent
        _remove_own(root, benchmark, kept)
        return before - folder_bytes(root)


def _has_files(root: Path, benchmark: Benchmark) -> bool:
    return any((root / name).is_file() for name in benchmark.files)


def _others(benchmark: Benchmark) -> list[Benchmark]:
    return [other for other in INSTALLABLE.values() if other != benchmark]


def _remove_own(root: Path, benchmark: Benchmark, kept: list[str]) -> None:
    """Delete what belongs to the benchmark and to none of the tasks that are kept."""
    tasks = [read_exported(root, name) for name in kept]
    needed = {digest for exported in tasks for digest in blobs_of(exported)}
    prints = {fingerprint(exported) for exported in tasks}
    for suite in benchmark.suites:
        shutil.rmtree(root / "tasks" / suite, ignore_errors=True)
    for name in benchmark.files:
        (root / name).unlink(missing_ok=True)
    if benchmark is LIBERO:
        shutil.rmtree(root / OFFICIAL, ignore_errors=True)
    for path in (*BlobStore(root).folder.glob("*/*"), *(root / FOLDER).glob("*/*.json")):
        if path.name not in needed and path.stem not in prints:
            path.unlink()

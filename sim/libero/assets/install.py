"""`embodied-rl assets install libero`, step by step; it can be interrupted and run again at any time."""

from __future__ import annotations

import ast
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import mujoco

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.libero.assets import hub
from embodied_rl.sim.libero.assets.environment import Environment, packages
from embodied_rl.sim.libero.assets.era import install_era_library
from embodied_rl.sim.libero.assets.export import Official, Outcome, count_jobs, export_tasks
from embodied_rl.sim.libero.bundle import FORMAT, is_whole, read_bundle, sweep, write_atomically
from embodied_rl.sim.libero.tasks import suites

NEEDED_GB = 5.0
"""Free disk space at the start: environment 1.5, downloads 0.5, scenes in work 0.2 each, bundles 1."""
WORK = "work"
"""Folder of what is needed only while installing."""
OFFICIAL = "official"
"""Folder of the official packages, and of assets that were downloaded for them, that `bench libero` runs and keeps."""
_ASSET_FOLDERS = (
    "articulated_objects",
    "scenes",
    "stable_hope_objects",
    "stable_scanned_objects",
    "textures",
    "turbosquid_objects",
)
LICENCES = {
    "LIBERO's code, BDDL files and initial states": "MIT; see licenses/. LIBERO's data sets are CC BY 4.0.",
    "robot models (robosuite)": "MIT; see licenses/.",
    "meshes and textures": "LIBERO states no licence for them, and several come from third parties. They are on this "
    "machine for its user; do not pass them on.",
}


class Reporter(Protocol):
    """What shows the user how far an installation is."""

    def step(self, text: str) -> None:
        """A new step begins."""
        ...

    def progress(self, done: int, total: int) -> None:
        """How much of the present step is done."""
        ...


def install(
    root: Path, source: Path | None, *, fill_missing: bool, jobs: int | None, wanted: Sequence[str], report: Reporter
) -> int:
    """Make the bundles of the suites `wanted` (all when empty) that are not there yet; returns how many were made.

    source: a checkout of LIBERO's repository or its assets folder; without one the hub's are downloaded. fill_missing:
    replace missing asset files by stand-ins and stamp the bundle. jobs: exporting processes; by default what cores and
    memory allow. UserError when anything is left undone, with all that was done kept.
    """
    for suite in wanted:
        if suite not in suites():
            raise UserError(f"unknown LIBERO suite '{suite}'.{suggest(suite, suites())}")
    given = find_assets(source) if source is not None else None
    install_era_library(root.parent)
    with _alone(root):
        for folder in ("blobs", "tasks"):
            sweep(root / folder)
        environment = Environment(root / WORK / "environment")
        names = known_tasks(root)
        todo = _todo(root, names, wanted, fill_missing) if names else None
        if todo == {}:
            return 0
        _check_space(root)
        assets, origin = (given, str(given)) if given is not None else _download(root, report)
        report.step("building the isolated environment")
        environment.build()
        names = official_tasks(environment)
        todo = _todo(root, names, wanted, fill_missing)
        official = Official(environment, assets, fill_missing, root / WORK / "scratch")
        try:
            outcome = _export(root, official, todo, jobs, report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("what is exported is kept; run the command again to continue") from None
        _write_manifest(root, environment, names, origin, outcome)
        environment.remove()
        if len(outcome.done) == len(todo):
            shutil.rmtree(root / WORK, ignore_errors=True)
    _complain(outcome, len(todo), origin, root / WORK / "scratch" / "export.log")
    return len(outcome.done)


def find_assets(source: Path) -> Path:
    """The assets folder in a checkout of LIBERO's repository, or `source` itself. UserError when it is neither."""
    for folder in (source, source / "assets", source / "libero" / "assets", source / "libero" / "libero" / "assets"):
        if all((folder / name).is_dir() for name in _ASSET_FOLDERS):
            return folder.resolve()
    raise UserError(
        f"{source} is neither LIBERO's assets folder nor a checkout of its repository: it should hold the folders "
        f"{', '.join(_ASSET_FOLDERS)}"
    )


def known_tasks(root: Path) -> dict[str, int]:
    """Full name -> index in its suite, of every official task, as the last installation found them; empty before."""
    manifest = read_manifest(root)
    if manifest is None or manifest["format"] != FORMAT:
        return {}
    return {name: index for names in manifest["suites"].values() for index, name in enumerate(names)}


def official_tasks(environment: Environment) -> dict[str, int]:
    """Full name -> index in its suite, from the official package, whose list is a literal in a file of its own."""
    path = environment.site_packages() / "libero" / "libero" / "benchmark" / "libero_suite_task_map.py"
    table = ast.literal_eval(ast.parse(path.read_text(encoding="utf-8")).body[0].value)  # type: ignore[attr-defined]
    return {f"{suite}/{short}": index for suite in suites() for index, short in enumerate(table[suite])}


def read_manifest(root: Path) -> dict[str, Any] | None:
    """manifest.json, or None before the first installation. UserError when it can't be read."""
    path = root / "manifest.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path}: {error}; remove it and run: embodied-rl assets install libero") from None


def _todo(root: Path, names: Mapping[str, int], wanted: Sequence[str], fill_missing: bool) -> dict[str, int]:
    """The wanted tasks that have no whole bundle of this MuJoCo version, or only an approximate one."""
    return {
        name: index
        for name, index in names.items()
        if (not wanted or name.partition("/")[0] in wanted) and not _usable(root, name, fill_missing)
    }


def _usable(root: Path, name: str, fill_missing: bool) -> bool:
    if not is_whole(root, name):
        return False
    bundle = read_bundle(root, name)
    return bundle["mujoco"] == mujoco.__version__ and (fill_missing or not bundle["approximate"])


def _download(root: Path, report: Reporter) -> tuple[Path, str]:
    report.step(f"downloading {hub.LIBERO_ASSETS}")
    folder = root / WORK / "assets"
    origin = hub.download(hub.LIBERO_ASSETS, folder)
    return find_assets(folder), origin


def _export(root: Path, official: Official, todo: Mapping[str, int], jobs: int | None, report: Reporter) -> Outcome:
    report.step("exporting tasks")
    shutil.rmtree(official.scratch, ignore_errors=True)
    official.scratch.mkdir(parents=True)
    count = 0

    def tell(_: str) -> None:
        nonlocal count
        count += 1
        report.progress(count, len(todo))

    return export_tasks(official, todo, root, jobs or count_jobs(), tell)


def _write_manifest(
    root: Path, environment: Environment, names: Mapping[str, int], origin: str, outcome: Outcome
) -> None:
    grouped: dict[str, list[str]] = {suite: [] for suite in suites()}
    for name in sorted(names, key=lambda name: names[name]):
        grouped[name.partition("/")[0]].append(name)
    manifest = {
        "format": FORMAT,
        "mujoco": mujoco.__version__,
        "packages": packages(),
        "assets": origin,
        "suites": grouped,
        "missing": {path: len(tasks) for path, tasks in sorted(outcome.missing.items())},
        "licences": LICENCES,
    }
    for package in ("hf_libero", "robosuite"):
        for text in environment.site_packages().glob(f"{package}-*.dist-info/**/LICENSE"):
            write_atomically(root / "licenses" / f"{package}.txt", text.read_bytes())
    write_atomically(root / "manifest.json", (json.dumps(manifest, indent=1) + "\n").encode())


def _complain(outcome: Outcome, wanted: int, origin: str, log: Path) -> None:
    """UserError unless every task was exported."""
    if outcome.failed:
        name, reason = next(iter(outcome.failed.items()))
        raise UserError(f"{len(outcome.failed)} of {wanted} tasks failed, the first was {name}: {reason}; see {log}")
    if outcome.missing:
        files = sorted(outcome.missing)
        shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
        short = len({name for names in outcome.missing.values() for name in names})
        raise UserError(
            f"{short} of {wanted} tasks were left out because {origin} lacks {len(files)} files: {shown} (all of them: "
            "embodied-rl assets verify libero); use complete assets, or --fill-missing for plain stand-ins"
        )


def _check_space(root: Path) -> None:
    free = shutil.disk_usage(root).free / 1e9
    if free < NEEDED_GB:
        raise UserError(f"{root} has {free:.1f} GB free, installing LIBERO needs {NEEDED_GB:.0f} GB; make room")


@contextmanager
def _alone(root: Path) -> Iterator[None]:
    """Keep a second installation out of `root`; the lock ends with the process."""
    root.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":
        yield
        return
    import fcntl

    with open(root / ".lock", "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"another installation is working in {root}; wait for it to end") from None
        yield

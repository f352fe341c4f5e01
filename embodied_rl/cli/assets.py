"""`embodied-rl assets`: official benchmark files, which this project may not ship."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from embodied_rl.cli.help import example_lines
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.tasks import cache_dir

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

ACTIONS = {
    "install": "make the task bundles; continues where an earlier call stopped",
    "status": "show what is installed",
    "verify": "read every file, and delete damaged ones: install makes them again",
    "remove": "delete what was installed",
}
BENCHMARKS = ("libero",)
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
    parser.add_argument("benchmark", metavar="NAME", help=", ".join((*BENCHMARKS, ERA)))
    install = parser.add_argument_group("options of install")
    install.add_argument(
        "--from",
        dest="source",
        metavar="DIR",
        type=Path,
        help="a checkout of LIBERO's repository, or its assets folder; default: download 420 MB from "
        "the Hugging Face hub",
    )
    install.add_argument(
        "--fill-missing",
        action="store_true",
        help="plain stand-ins for missing asset files; stamps the bundles 'approximate'",
    )
    install.add_argument("--suites", nargs="+", default=[], metavar="SUITE", help="only these; default: all five")
    install.add_argument("--jobs", type=int, metavar="N", help="exporting processes; default: by cores and memory")
    return parser


def main(argv: list[str]) -> int:
    """Run `embodied-rl assets ACTION libero`; 0 done, 1 when `verify` finds something wrong."""
    options, unknown = _parser().parse_known_args(argv)
    if options.action not in ACTIONS:
        raise UserError(f"unknown action '{options.action}'.{suggest(options.action, ACTIONS)}")
    if options.benchmark == ERA:
        return _install_era(argv)
    if options.benchmark not in BENCHMARKS:
        raise UserError(f"no assets for '{options.benchmark}'.{suggest(options.benchmark, BENCHMARKS)}")
    if unknown:
        known = ("--from", "--fill-missing", "--suites", "--jobs")
        raise UserError(f"embodied-rl assets: unknown option '{unknown[0]}'.{suggest(unknown[0], known)}")
    if options.jobs is not None and options.jobs < 1:
        raise UserError("--jobs must be at least 1")
    install_only = options.source or options.fill_missing or options.suites or options.jobs
    if options.action != "install" and install_only:
        raise UserError(f"assets {options.action} takes no options; they belong to assets install")
    root = cache_dir() / "libero"
    if options.action == "install":
        return _install(root, options)
    return {"status": _status, "verify": _verify, "remove": _remove}[options.action](root)


def _install_era(argv: list[str]) -> int:
    if argv != ["install", ERA]:
        raise UserError("the library of LIBERO's published eras knows one command: embodied-rl assets install era")
    from embodied_rl.factory.era import install_era

    print(install_era())
    return 0


def _install(root: Path, options: argparse.Namespace) -> int:
    from embodied_rl.sim.libero.assets.install import install

    with _reporter() as report:
        made = install(
            root,
            options.source,
            fill_missing=options.fill_missing,
            jobs=options.jobs,
            wanted=options.suites,
            report=report,
        )
    print(f"{made} tasks exported to {root}" if made else f"nothing to do: everything is installed in {root}")
    return _status(root)


def _status(root: Path) -> int:
    from rich.console import Console
    from rich.table import Table

    from embodied_rl.sim.libero.assets.state import missing_assets, size_gb, status

    table = Table("suite", "tasks", "approximate", "to export again")
    rows = status(root)
    for row in rows:
        total = f"{row.installed} of {row.total}" if row.total else str(row.installed)
        table.add_row(row.suite, total, str(row.approximate), str(row.stale))
    console = Console()
    console.print(table)
    if not any(row.installed for row in rows):
        print(f"not installed in {root}; run: embodied-rl assets install libero")
        return 0
    print(f"{size_gb(root):.2f} GB in {root}")
    if missing := missing_assets(root):
        console.print(f"{len(missing)} asset files were missing: embodied-rl assets verify libero lists them")
    return 0


def _verify(root: Path) -> int:
    from embodied_rl.sim.libero.assets.state import missing_assets, verify
    from embodied_rl.sim.libero.bundle import installed

    if not installed(root):
        raise UserError(f"LIBERO is not installed in {root}; run: embodied-rl assets install libero")
    with _reporter() as report:
        report.step("reading every file")
        problems = verify(root, report.progress)
    for problem in problems:
        print(f"{problem.path}: {problem.what}")
    for path in missing_assets(root):
        print(f"asset file missing when the tasks were exported: {path}")
    if problems:
        print(f"{len(problems)} files are missing or damaged; run: embodied-rl assets install libero")
        return 1
    print("every file is intact")
    return 0


def _remove(root: Path) -> int:
    from embodied_rl.sim.libero.assets.state import remove

    print(f"{remove(root):.2f} GB freed: {root} is deleted")
    return 0


class _Bar:
    """Shows steps as progress bars."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._now: TaskID | None = None

    def step(self, text: str) -> None:
        self._finish()
        self._now = self._bars.add_task(text, total=None)

    def progress(self, done: int, total: int) -> None:
        if self._now is not None:
            self._bars.update(self._now, completed=done, total=total)

    def _finish(self) -> None:
        if self._now is not None:
            self._bars.update(self._now, completed=1, total=1)


@contextmanager
def _reporter() -> Iterator[_Bar]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns: Sequence[TextColumn | BarColumn | TimeElapsedColumn] = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bars:
        yield _Bar(bars)

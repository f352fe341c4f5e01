"""`embodied-rl runs ACTION`: find a run, see what it was, and whether it went as it should."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from embodied_rl.cli.help import example_lines
from embodied_rl.cli.parse import parse, wants_help
from embodied_rl.config.policies import PolicyObjectConfig
from embodied_rl.config.train import AUTO
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.output import try_folder

ACTIONS = ("list", "show", "compare", "rerun", "export")
USAGE = """\
usage: embodied-rl runs list [FOLDER]
       embodied-rl runs show RUN
       embodied-rl runs compare RUN [RUN] [--recipe NAME]
       embodied-rl runs rerun RUN [--output DIR]
       embodied-rl runs export RUN ... --out DIR

Find a training run, see what it was, and whether it went as it should.

  list     every run in FOLDER (runs): what it trains, how far it is, success
  show     config, versions, machine and success of one; where it will end
  compare  one run: is it inside the prediction interval of its recipe's
           reference runs? exit code 1 if not. Two runs: what differs, and
           success on the same states
  rerun    train again as the run's config says, in a new folder
  export   runs.json and metrics.parquet of one or several runs
"""


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """Every training run in a folder."""

    folder: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """Folder with runs, at any depth."""


@dataclass(frozen=True, kw_only=True)
class ShowCommand:
    """One training run."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """A run with its recipe's reference runs, or two runs with each other."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of one or two runs."""
    recipe: str | None = None
    """Recipe with whose reference runs one run is compared (None: the one that trains the same)."""


@dataclass(frozen=True, kw_only=True)
class RerunCommand:
    """Train again as a run's config says."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of the run."""
    output: str = AUTO
    """Folder of the new run; auto makes one under runs/."""


@dataclass(frozen=True, kw_only=True)
class ExportRunsCommand:
    """Write runs as files that other programs read."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of the runs."""
    out: Path
    """Folder for runs.json and metrics.parquet."""


def main(argv: list[str]) -> int:
    """Run the command: 0, or 1 where a run lies outside the prediction interval."""
    action, rest = (argv[0], argv[1:]) if argv else ("", [])
    if action not in ACTIONS and wants_help(argv):
        print(USAGE + "\n".join(example_lines("runs")))
        return 0
    if action not in ACTIONS:
        given = f"unknown action '{action}'.{suggest(action, ACTIONS)}" if action else "choose an action."
        raise UserError(f"runs: {given} There are {', '.join(ACTIONS)}.")
    if action == "list":
        return _list(parse(ListCommand, rest, "runs list"))
    if action == "show":
        return _show(parse(ShowCommand, rest, "runs show"))
    if action == "compare":
        return _compare(parse(CompareCommand, rest, "runs compare"))
    if action == "rerun":
        return _rerun(parse(RerunCommand, rest, "runs rerun"), shlex.join(["embodied-rl", "runs", *argv]))
    return _export(parse(ExportRunsCommand, rest, "runs export"))


# Reading a run brings torch: each action imports its reader once its words are right.


def _list(command: ListCommand) -> int:
    from embodied_rl.jobs.run_tables import list_lines

    console = LastingConsole()
    console.facts(list_lines(command.folder, console.width if console.is_terminal else None))
    return 0


def _show(command: ShowCommand) -> int:
    from embodied_rl.jobs.run_records import read_record
    from embodied_rl.jobs.run_tables import show_lines

    LastingConsole().facts(show_lines(read_record(command.run)))
    return 0


def _export(command: ExportRunsCommand) -> int:
    try_folder("--out", command.out)
    from embodied_rl.jobs.run_records import read_record
    from embodied_rl.jobs.run_tables import export_runs

    export_runs([read_record(folder) for folder in command.runs], command.out)
    print(f"wrote {command.out / 'runs.json'} and {command.out / 'metrics.parquet'}")
    return 0


def _compare(command: CompareCommand) -> int:
    if len(command.runs) == 2:
        if command.recipe:
            raise UserError("--recipe goes with one run: leave it out, or name one run.")
        from embodied_rl.jobs.run_records import read_record
        from embodied_rl.studies.compare import pair_lines

        first, second = map(read_record, command.runs)
        LastingConsole().facts(pair_lines(first, second))
        return 0
    if len(command.runs) != 1:
        raise UserError("runs compare takes one run or two.")
    return _against_reference(command)


def _against_reference(command: CompareCommand) -> int:
    """One run against the reference runs of its recipe."""
    from embodied_rl.jobs.reference_runs import reference_for, reference_runs
    from embodied_rl.jobs.run_records import read_record
    from embodied_rl.studies.compare import reference_lines

    record = read_record(command.runs[0])
    if command.recipe and command.recipe not in reference_runs():
        raise UserError(
            f"there are no reference runs of '{command.recipe}'.{suggest(command.recipe, reference_runs())}"
        )
    reference = reference_runs()[command.recipe] if command.recipe else reference_for(record.config)
    if reference is None:
        names = ", ".join(reference_runs())
        raise UserError(f"{record.folder}: no recipe with reference runs trains the same; name one: --recipe {names}.")
    lines, inside = reference_lines(record, reference)
    LastingConsole().facts(lines)
    if inside is None:
        raise UserError(
            f"{record.folder} is not evaluated where the reference runs of {reference.recipe} are: train on."
        )
    return 0 if inside else 1


def _rerun(command: RerunCommand, words: str) -> int:
    from embodied_rl.jobs.run_folder import new_run
    from embodied_rl.jobs.run_records import read_record
    from embodied_rl.studies.compare import pair_lines

    record = read_record(command.run)
    if isinstance(record.config.policy, PolicyObjectConfig):
        raise UserError(f"{command.run} trains a policy that was passed as an object: run your program again.")
    with new_run(dataclasses.replace(record.config, output=command.output)) as config:
        from embodied_rl.jobs.train import run  # the simulator, only now

        run(config, words)
        LastingConsole().facts(pair_lines(record, read_record(Path(config.output))))
    return 0

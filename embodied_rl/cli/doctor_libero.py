"""`embodied-rl doctor libero`: whether what LIBERO's tasks say holds once their initial states have settled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.cli.parse import parse, with_tasks
from embodied_rl.factory.tasks import LIBERO_SUITES, load_tasks, missing_tasks
from embodied_rl.jobs.eval_request import suite_name
from embodied_rl.sim.eras import PUBLISHED, EraChoice

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask
    from embodied_rl.sim.libero.premises import Premises

USAGE = """\
usage: embodied-rl doctor libero [--suite NAME] [options]

Settle the initial states of LIBERO's tasks and say whether what each task says
holds in them: objects lie where the instruction has them (the bowl is on the
ramekin), nothing is in the air at a policy's first decision, nothing is thrown
off the table, everything is at rest, and the goal is not reached yet. A state
where that fails is another task than the one that its success is counted for.

The answer depends on MuJoCo's contacts: --era chooses whose. The exit code is 0
where every premise holds in every state of whole suites, else 1. What is found
is kept in the cache folder; evaluations report it, and training leaves out the
states that nobody can solve.
"""


@dataclass(frozen=True, kw_only=True)
class LiberoDoctorConfig:
    """Say whether what LIBERO's tasks say holds in their initial states."""

    suite: str | None = None
    """Suite: spatial, object, goal, long (also called 10), 90, or one of LIBERO-PRO's, such as spatial_swap (None: all
    that are installed)."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks (none given: all of the suite); --task NAME names one, in every suite that has it."""
    era: EraChoice = "auto"
    """Whose contacts the scenes have: published (mujoco-3.3, which auto takes as well), mujoco-2.3.7 (LIBERO's own), or
    current (this MuJoCo as it is)."""
    states: Literal["heldout", "train"] = "heldout"
    """heldout: the official evaluation states; train: the others, also those that training leaves out."""
    json: bool = False
    """Print the findings as JSON instead of a table."""


@dataclass(frozen=True, slots=True)
class Row:
    """One task under one era: how many states were looked at, in how many each premise holds, what fails, by state."""

    task: str
    era: str
    states: int
    whole: int
    holds: Mapping[str, int]
    failures: Mapping[int, Sequence[str]]
    left_out: Sequence[int]
    unjudged: Sequence[str]


def main(argv: list[str]) -> int:
    """Run `embodied-rl doctor libero`; 0 where every premise holds, else 1."""
    config = parse(LiberoDoctorConfig, with_tasks(argv), "doctor libero", usage=USAGE)
    from rich.console import Console

    from embodied_rl.factory.premises import judge
    from embodied_rl.sim.libero.bundle import install_command

    found: dict[str, list[Row]] = {}
    progress = Console(stderr=True)
    lost: dict[str, int] = {}
    for suite, asked in _asked(config).items():
        if not asked and (count := len(missing_tasks(suite))):
            lost[suite] = count
        tasks, premises = judge(load_tasks(suite, _there(suite) if suite in lost else asked, config.era), progress)
        found[suite] = [_row(task, premises[task.name], config.states) for task in tasks]
    if config.json:
        print(json.dumps({suite: [_plain(row) for row in rows] for suite, rows in found.items()}, indent=1))
    else:
        _print(found, config.states)
    for suite, count in lost.items():
        progress.print(f"{suite} lacks {count} of its tasks; run: {install_command(suite)}", soft_wrap=True)
    return 0 if not lost and all(row.whole == row.states for rows in found.values() for row in rows) else 1


def _asked(config: LiberoDoctorConfig) -> dict[str, tuple[str, ...]]:
    """By suite, the tasks that are asked for; none means all.

    Without --suite every installed one is meant, or those that have a task of --tasks. A task that no suite has is left
    with the first, and nothing installed with spatial: load_tasks says what is wrong.
    """
    if config.suite is not None:
        return {suite_name("libero", config.suite): config.tasks}
    from embodied_rl.factory.tasks import cache_dir
    from embodied_rl.sim.libero.bundle import installed

    there = [name.partition("/") for name in installed(cache_dir() / "libero")]
    suites = [suite for suite in LIBERO_SUITES if suite in {first for first, _, _ in there}] or [LIBERO_SUITES[0]]
    found = {
        suite: tuple(short for first, _, short in there if first == suite and short in config.tasks) for suite in suites
    }
    if unknown := set(config.tasks) - {short for names in found.values() for short in names}:
        return {suites[0]: tuple(sorted(unknown))}
    return {suite: names for suite, names in found.items() if names or not config.tasks}


def _there(suite: str) -> tuple[str, ...]:
    """Short names of the suite's installed tasks."""
    from embodied_rl.factory.tasks import cache_dir
    from embodied_rl.sim.libero.bundle import installed

    return tuple(name.partition("/")[2] for name in installed(cache_dir() / "libero") if name.startswith(f"{suite}/"))


def _row(task: SuiteTask, found: Premises, states: str) -> Row:
    from embodied_rl.sim.libero.premises import PREMISES

    held = set(task.heldout_states)
    rows = [row for row in range(found.states) if (row in held) == (states == "heldout")]
    failed = found.failed(rows)
    return Row(
        task=task.name,
        era=task.era,
        states=len(rows),
        whole=len(rows) - len(failed),
        holds={kind: len(rows) - len(found.failed(rows, kind)) for kind in PREMISES},
        failures={row: [failure.text for failure in found.failures[row]] for row in failed},
        left_out=[row for row in rows if row in found.unsolvable] if states == "train" else [],
        unjudged=found.unjudged,
    )


def _era(rows: Sequence[Row]) -> str:
    """The era of these rows in words; they have one."""
    (era,) = {row.era for row in rows}
    return f"published ({era})" if era == PUBLISHED else era


def _plain(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in Row.__slots__}


def _print(found: Mapping[str, Sequence[Row]], states: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from embodied_rl.sim.libero.premises import PREMISES
    from embodied_rl.telemetry.tables import short_labels

    console = Console()
    for suite, rows in found.items():
        title = f"{suite} under {_era(rows)}: states in which each premise holds"
        table = Table("task", "whole", *PREMISES, title=title, min_width=60)
        table.columns[0].overflow = "fold"
        for label, row in zip(short_labels([row.task for row in rows]), rows, strict=True):
            text = Text(label)
            for number in list(row.failures)[:1]:
                text.append(f"\nstate {number}: {row.failures[number][0]}", "yellow")
            counts = [row.whole, *row.holds.values()]
            table.add_row(text, *(Text(str(n), "green" if n == row.states else "bold red") for n in counts))
        console.print(table)
    for kind, text in {"whole": "every premise holds", **PREMISES}.items():
        print(f"{kind:<7} {text}")
    everything = [row for rows in found.values() for row in rows]
    for line in _summary(everything, states):
        print(line)


def _summary(rows: Sequence[Row], states: str) -> list[str]:
    total, whole = sum(row.states for row in rows), sum(row.whole for row in rows)
    good = sum(row.whole == row.states for row in rows)
    kind = "official evaluation" if states == "heldout" else "training"
    lines = [
        f"under {_era(rows)} every premise holds in {whole} of {total} {kind} states, in all states of {good} of "
        f"{len(rows)} tasks"
    ]
    if lost := sum(len(row.left_out) for row in rows):
        lines.append(f"{lost} training states are left out of training: an object that the task needs is thrown away")
    if unjudged := sorted({text for row in rows for text in row.unjudged}):
        lines.append(f"not judged, since the scene lacks what they name: {'; '.join(unjudged)}")
    return lines

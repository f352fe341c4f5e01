"""`embodied-rl doctor libero`: whether what LIBERO's tasks say holds once their initial states have settled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embodied_rl.cli.parse import parse, with_tasks
from embodied_rl.jobs.checks import LiberoDoctorConfig
from embodied_rl.sim.eras import PUBLISHED

if TYPE_CHECKING:
    from embodied_rl.jobs.doctor_libero import Row

USAGE = """\
usage: embodied-rl doctor libero [--suite NAME] [options]

Settle the initial states of LIBERO's tasks and say whether what each task says
holds in them: objects lie where the instruction has them (the bowl is on the
ramekin), nothing is in the air at a policy's first decision, nothing is thrown
off the table, everything is at rest, and the goal is not reached yet. A state
where that fails is another task than the one that its success is counted for.

The answer depends on MuJoCo's contacts: --physics-version chooses whose. The
exit code is 0 where every precondition holds in every state of whole suites,
else 1. What is found is kept in the cache folder; evaluations report it, and
training leaves out the states that nobody can solve.
"""


def main(argv: list[str]) -> int:
    """Run `embodied-rl doctor libero`; 0 where every precondition holds, else 1."""
    config = parse(LiberoDoctorConfig, with_tasks(argv), "doctor libero", usage=USAGE)
    from rich.console import Console

    from embodied_rl.jobs.doctor_libero import check_premises  # the simulator, only now
    from embodied_rl.sim.libero.exported import install_command

    progress = Console(stderr=True)
    found, lost = check_premises(config, progress)
    if config.json:
        print(json.dumps({suite: [_plain(row) for row in rows] for suite, rows in found.items()}, indent=1))
    else:
        _print(found, config.states)
    for suite, count in lost.items():
        progress.print(f"{suite} lacks {count} of its tasks; run: {install_command(suite)}", soft_wrap=True)
    return 0 if not lost and all(row.whole == row.states for rows in found.values() for row in rows) else 1


def _era(rows: Sequence[Row]) -> str:
    """The physics version of these rows in words; they have one."""
    (era,) = {row.era for row in rows}
    return f"published ({era})" if era == PUBLISHED else era


def _plain(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__slots__}


def _print(found: Mapping[str, Sequence[Row]], states: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from embodied_rl.sim.libero.premises import PREMISES
    from embodied_rl.telemetry.tables import short_labels

    console = Console()
    for suite, rows in found.items():
        title = f"{suite} under {_era(rows)}: states in which each precondition holds"
        table = Table("task", "whole", *PREMISES, title=title, min_width=60)
        table.columns[0].overflow = "fold"
        for label, row in zip(short_labels([row.task for row in rows]), rows, strict=True):
            text = Text(label)
            for number in list(row.failures)[:1]:
                text.append(f"\nstate {number}: {row.failures[number][0]}", "yellow")
            counts = [row.whole, *row.holds.values()]
            table.add_row(text, *(Text(str(n), "green" if n == row.states else "bold red") for n in counts))
        console.print(table)
    for kind, text in {"whole": "every precondition holds", **PREMISES}.items():
        print(f"{kind:<7} {text}")
    everything = [row for rows in found.values() for row in rows]
    for line in _summary(everything, states):
        print(line)


def _summary(rows: Sequence[Row], states: str) -> list[str]:
    total, whole = sum(row.states for row in rows), sum(row.whole for row in rows)
    good = sum(row.whole == row.states for row in rows)
    kind = "official evaluation" if states == "heldout" else "training"
    lines = [
        f"under {_era(rows)} every precondition holds in {whole} of {total} {kind} states, in all states of {good} of "
        f"{len(rows)} tasks"
    ]
    if lost := sum(len(row.left_out) for row in rows):
        lines.append(f"{lost} training states are left out of training: an object that the task needs is thrown away")
    if unjudged := sorted({text for row in rows for text in row.unjudged}):
        lines.append(f"not judged, since the scene lacks what they name: {'; '.join(unjudged)}")
    return lines

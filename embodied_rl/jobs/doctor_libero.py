"""Whether what LIBERO's tasks say holds once their initial states have settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from embodied_rl.factory.premises import judge
from embodied_rl.factory.tasks import LIBERO_SUITES, cache_dir, load_tasks, missing_tasks
from embodied_rl.jobs.checks import LiberoDoctorConfig
from embodied_rl.jobs.eval_request import suite_name
from embodied_rl.sim.libero.exported import installed
from embodied_rl.sim.libero.premises import PREMISES

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask
    from embodied_rl.sim.libero.premises import Premises


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


def check_premises(config: LiberoDoctorConfig, progress: Console) -> tuple[dict[str, list[Row]], dict[str, int]]:
    """Settle the initial states that are asked for.

    Returns:
        found: a row a task, by suite.
        lost: how many tasks an installed suite lacks.
    """
    found: dict[str, list[Row]] = {}
    lost: dict[str, int] = {}
    for suite, asked in asked_suites(config).items():
        if not asked and (count := len(missing_tasks(suite))):
            lost[suite] = count
        tasks, premises = judge(
            load_tasks(suite, _there(suite) if suite in lost else asked, config.physics_version), progress
        )
        found[suite] = [_row(task, premises[task.name], config.states) for task in tasks]
    return found, lost


def asked_suites(config: LiberoDoctorConfig) -> dict[str, tuple[str, ...]]:
    """By suite, the tasks that are asked for; none means all.

    Without --suite every installed one is meant, or those that have a task of --tasks. A task that no suite has is left
    with the first, and nothing installed with spatial: load_tasks says what is wrong.
    """
    if config.suite is not None:
        return {suite_name("libero", config.suite): config.tasks}
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
    return tuple(name.partition("/")[2] for name in installed(cache_dir() / "libero") if name.startswith(f"{suite}/"))


def _row(task: SuiteTask, found: Premises, states: str) -> Row:
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

"""The premises of LIBERO's tasks for a command: taken from the cache folder, where the install leaves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import cache_dir
from embodied_rl.sim.eras import PUBLISHED
from embodied_rl.utils.machine import cpu_count

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask
    from embodied_rl.sim.libero.premises import Premises


def judge(tasks: Sequence[SuiteTask], console: Console) -> tuple[list[SuiteTask], dict[str, Premises]]:
    """Find out what the tasks' initial states come to, with a progress bar where that is not known yet.

    Returns:
        (the tasks, LIBERO's without the training states that nobody can solve; LIBERO's premises by task name).
    """
    from embodied_rl.sim.libero.premise_cache import find_premises
    from embodied_rl.sim.libero.tasks import LiberoTask, leave_out

    official = [task for task in tasks if isinstance(task, LiberoTask)]
    if not official:
        return list(tasks), {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("settling initial states, once", total=None, visible=False)
        found, trouble = find_premises(
            cache_dir() / "libero",
            official,
            cpu_count(),
            lambda done, total: bars.update(bar, completed=done, total=total, visible=True),
        )
    if trouble:
        text = f"What the initial states come to can't be kept ({trouble}): it is found out again every time."
        console.print(text, soft_wrap=True, markup=False, highlight=False)
    return [leave_out(task, found[task.name]) if isinstance(task, LiberoTask) else task for task in tasks], found


def require_train_states(tasks: Sequence[SuiteTask]) -> None:
    """UserError for a task of LIBERO that `judge` left without a training state, since nobody can solve any."""
    from embodied_rl.sim.libero.tasks import LiberoTask

    for task in tasks:
        if isinstance(task, LiberoTask) and not task.train_states:
            era = "" if task.era == PUBLISHED else f" --physics-version {task.era}"
            raise UserError(
                f"task '{task.name}' has no initial state to train on: nobody can solve any of its "
                f"{len(task.left_out or ())}. Why: embodied-rl doctor libero --suite {task.suite} --states train{era}. "
                "Name the other tasks with --task to go on without it."
            )


def left_out_states(tasks: Sequence[SuiteTask]) -> tuple[int, int] | None:
    """How many training states were left out, and of how many; None where no task is LIBERO's."""
    from embodied_rl.sim.libero.tasks import LiberoTask

    official = [task for task in tasks if isinstance(task, LiberoTask)]
    if not official:
        return None
    lost = sum(len(task.left_out or ()) for task in official)
    return lost, lost + sum(len(task.train_states) for task in official)


def failed_premises(
    found: Mapping[str, Premises], states: Mapping[str, Sequence[int]]
) -> dict[str, dict[int, list[str]]]:
    """By task: the rows of `states` in which a premise fails, and what is the case in them, in words."""
    return {
        name: {row: [failure.text for failure in found[name].failures[row]] for row in found[name].failed(rows)}
        for name, rows in states.items()
        if name in found
    }

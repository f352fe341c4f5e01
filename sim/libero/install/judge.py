"""The last step of an installation: what the initial states come to, and which of them nobody can solve."""

from __future__ import annotations

import math
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.eras import CURRENT, PUBLISHED
from embodied_rl.sim.libero.exported import installed
from embodied_rl.sim.libero.install.benchmarks import Benchmark
from embodied_rl.sim.libero.install.export import count_jobs
from embodied_rl.sim.libero.install.install import is_usable
from embodied_rl.sim.libero.install.report import Reporter
from embodied_rl.sim.libero.premise_cache import find_premises
from embodied_rl.sim.libero.tasks import load_task
from embodied_rl.sim.mujoco.era import unavailable
from embodied_rl.utils.words import counted

TASK_SECONDS = (1, 5)
"""What settling the initial states of a task takes on one core."""


def judge_states(root: Path, benchmark: Benchmark, report: Reporter) -> None:
    """Judge the initial states of the benchmark's usable tasks that nobody has judged yet, under the default era.

    Raises:
        UserError: The folder can't be written.
    """
    era, jobs = CURRENT if unavailable() else PUBLISHED, count_jobs()

    def tell(done: int, total: int) -> None:
        if done == 0:
            report.say(_announcement(total, jobs))
            report.step("settling initial states")
        report.progress(done, total)

    names = [name for name in installed(root) if name.partition("/")[0] in benchmark.suites and is_usable(root, name)]
    _, trouble = find_premises(root, [load_task(root, name, era) for name in names], jobs, tell)
    if trouble:
        raise UserError(f"can't write {trouble}")


def _announcement(tasks: int, jobs: int) -> str:
    low, high = (math.ceil(seconds * tasks / jobs / 60) for seconds in TASK_SECONDS)
    minutes = counted(high, "minute") if low == high else f"{low} to {high} minutes"
    return (
        f"All tasks can be used now. Last, the initial states of {counted(tasks, 'task')} settle, to find those that "
        f"nobody can solve: {minutes}. Interrupted, what is left is done where a task is first used."
    )

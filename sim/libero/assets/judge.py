"""The last step of an installation: what the initial states come to, and which of them nobody can solve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.eras import CURRENT, PUBLISHED
from embodied_rl.sim.libero.assets.benchmarks import Benchmark
from embodied_rl.sim.libero.assets.export import count_jobs
from embodied_rl.sim.libero.assets.install import is_usable
from embodied_rl.sim.libero.bundle import installed
from embodied_rl.sim.libero.premise_cache import find_premises
from embodied_rl.sim.libero.tasks import load_task
from embodied_rl.sim.mujoco.era import unavailable


def judge_states(
    root: Path, benchmark: Benchmark, step: Callable[[str], None], progress: Callable[[int, int], None]
) -> None:
    """Judge the initial states of the benchmark's usable tasks that nobody has judged yet, under the default era.

    step and progress are a `Reporter`'s. UserError when the folder can't be written.
    """
    step("settling initial states")
    era = CURRENT if unavailable() else PUBLISHED
    names = [name for name in installed(root) if name.partition("/")[0] in benchmark.suites and is_usable(root, name)]
    _, trouble = find_premises(root, [load_task(root, name, era) for name in names], count_jobs(), progress)
    if trouble:
        raise UserError(f"can't write {trouble}")

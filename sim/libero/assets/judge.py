"""The last step of an installation: what the initial states come to, and which of them nobody can solve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.eras import CURRENT, PUBLISHED
from embodied_rl.sim.libero.assets.export import count_jobs
from embodied_rl.sim.libero.bundle import installed, is_whole
from embodied_rl.sim.libero.premise_cache import find_premises
from embodied_rl.sim.libero.tasks import load_task
from embodied_rl.sim.mujoco.era import unavailable


def judge_states(root: Path, step: Callable[[str], None], progress: Callable[[int, int], None]) -> None:
    """Judge the initial states of every whole task under `root` that nobody has judged yet, under the default era.

    step and progress are a `Reporter`'s. UserError when the folder can't be written.
    """
    step("settling initial states")
    era = CURRENT if unavailable() else PUBLISHED
    tasks = [load_task(root, name, era) for name in installed(root) if is_whole(root, name)]
    _, trouble = find_premises(root, tasks, count_jobs(), progress)
    if trouble:
        raise UserError(f"can't write {trouble}")

"""The premises of installed tasks: read where they are kept, else computed and kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from embodied_rl.sim.libero.premise_files import FOLDER, read_premises, write_premises
from embodied_rl.sim.libero.premises import Premises, check
from embodied_rl.sim.libero.tasks import LiberoTask


def find_premises(
    root: Path, tasks: Sequence[LiberoTask], jobs: int = 1, tell: Callable[[int, int], None] = lambda done, total: None
) -> tuple[dict[str, Premises], str]:
    """The premises of tasks, each under its era, by name: read where they are kept, else computed and kept.

    Args:
        root: the exported tasks' folder.
        jobs: threads; a task is one thread's work for 1 to 5 s.
        tell: is called as tell(done, total) for each task that is computed, and once before, only if there is any.

    Returns:
        (premises by task name, why they can't be kept in `root`, or '').
    """
    found = {task.name: read_premises(root, task.fingerprint, task.era) for task in tasks}
    missing = [task for task in tasks if found[task.name] is None]
    trouble = ""
    if missing:
        tell(0, len(missing))
    with ThreadPoolExecutor(max(1, min(jobs, len(missing)))) as pool:
        running = {pool.submit(check, task, task.bddl): task for task in missing}
        try:
            for done, job in enumerate(as_completed(running), 1):
                task = running[job]
                found[task.name] = job.result()
                try:
                    write_premises(root, task.name, task.fingerprint, task.era, job.result())
                except OSError as error:  # a cache that others own
                    trouble = f"{root / FOLDER}: {error.strerror}"
                tell(done, len(missing))
        except BaseException:  # Ctrl-C: what is finished is kept, what runs is waited for
            pool.shutdown(cancel_futures=True)
            raise
    return {name: premises for name, premises in found.items() if premises is not None}, trouble

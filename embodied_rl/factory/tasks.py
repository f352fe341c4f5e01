"""Which tasks a command runs on: the built-in tabletop suites, and what is said about LIBERO's own."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_rl.config.suites import suite_named
from embodied_rl.errors import UserError, refuse_twice, suggest
from embodied_rl.utils.cache_dir import cache_dir
from embodied_rl.utils.suites import OFFICIAL_SUITES, PRO_SUITES, as_names

if TYPE_CHECKING:
    from embodied_rl.sim.eras import Era
    from embodied_rl.sim.mujoco.task import MujocoTask as SuiteTask

LIBERO_SUITES = (*OFFICIAL_SUITES, *PRO_SUITES)
"""LIBERO's own and LIBERO-PRO's."""
_LINE = 400
"""Longest list of names, in characters, that is part of a line."""


def ladders_dir() -> Path:
    """Where the renderer 'raster' keeps decimated meshes: beside LIBERO's exported tasks."""
    return cache_dir() / "libero" / "ladders"


def libero_bundles() -> Path | None:
    """The folder with LIBERO's exported tasks, or None where there is none."""
    folder = cache_dir() / "libero"
    return folder if any(folder.glob("tasks/*/*.json")) else None


def libero_notice(suite: str) -> list[str]:
    """Two lines for `train libero` where the official suites are not installed: how to get them, and what is trained
    instead. None for an official suite, or one that was chosen with the official ones at hand."""
    if suite in LIBERO_SUITES or libero_bundles():
        return []
    return [
        f"LIBERO's official assets are not installed in {cache_dir() / 'libero'}; for them: "
        "embodied-rl assets install libero",
        f"Training the built-in suite {suite} instead: LIBERO's format and controller, our own tasks.",
    ]


def load_tasks(suite: str, names: str | Sequence[str] = (), era: str = "auto") -> list[SuiteTask]:
    """The tasks of `suite`, or those with the short `names`; a text is one name.

    era: `EnvConfig.physics_version`; every task says which one that is. UserError for unknown names, missing assets, or
    an era that the suite has not or that can't run here.
    """
    from embodied_rl.sim import tabletop
    from embodied_rl.sim.eras import choose_era

    names = as_names(names)
    if suite_named(suite).observes != "images":
        raise UserError(f"suite '{suite}' is of tasks with a state: it has none of the scenes that this command needs.")
    refuse_twice(names, "task")
    if suite in LIBERO_SUITES:
        found = _load_libero(suite, choose_era(era, suite, official=True), whole=not names)
    else:
        choose_era(era, suite, official=False)
        found = tabletop.load_suite(suite)
    tasks = {task.name.partition("/")[2]: task for task in found}
    for name in names:
        if name not in tasks:
            raise unknown_task(suite, name, tasks)
    return [task for name, task in tasks.items() if not names or name in names]


def unknown_task(suite: str, name: str, tasks: Mapping[str, SuiteTask]) -> UserError:
    """The error for a task that a suite lacks: it suggests the closest name, else it lists all.

    A list that is too long for a line has a line a task, and LIBERO's tasks have their numbers in the benchmark. A
    number is answered by the name that belongs to it.
    """
    from embodied_rl.sim.libero.tasks import LiberoTask

    line = f"suite '{suite}' has no task '{name}'."
    if difflib.get_close_matches(name, tasks, n=1) or len(", ".join(tasks)) <= _LINE:
        return UserError(line + suggest(name, tasks))
    numbers = {short: f"{task.index:>3}" if isinstance(task, LiberoTask) else "" for short, task in tasks.items()}
    if called := [short for short, n in numbers.items() if n.strip() == name]:
        return UserError(f"{line} Tasks go by name; number {name} is '{called[0]}'.")
    return UserError(f"{line} Give one of these names:", [f"{n}  {short}" for short, n in numbers.items()])


def physics_version(tasks: Sequence[SuiteTask]) -> str | None:
    """Whose contacts and textures these tasks have: their era, joined by '+' where it is not one; None of no task."""
    return "+".join(dict.fromkeys(task.era for task in tasks)) or None


def stand_in_files(tasks: Sequence[SuiteTask]) -> int:
    """How many official asset files are stand-ins in these tasks.

    A score on such images is not a score on LIBERO's.
    """
    from embodied_rl.sim.libero.tasks import LiberoTask

    return len({file for task in tasks if isinstance(task, LiberoTask) for file in task.approximate})


def bundles_digest(tasks: Sequence[SuiteTask]) -> str:
    """SHA-256 of LIBERO's exported tasks among these; '' where there are none."""
    from embodied_rl.sim.libero.tasks import LiberoTask

    prints = sorted(task.fingerprint for task in tasks if isinstance(task, LiberoTask))
    return hashlib.sha256("\n".join(prints).encode()).hexdigest() if prints else ""


def task_digest(task: SuiteTask) -> str:
    """SHA-256 of what an episode of `task` is made of.

    For LIBERO's tasks the fingerprint of what was exported; for others that of both compiled models, the initial
    states, the goal, the instruction and the time limit.
    """
    import mujoco
    import numpy as np

    from embodied_rl.sim.libero.tasks import LiberoTask

    if isinstance(task, LiberoTask):
        return task.fingerprint
    digest = hashlib.sha256()
    for model in (task.build_physics(), task.build_visual()):
        binary = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
        mujoco.mj_saveModel(model, None, binary)
        digest.update(binary.tobytes())
    digest.update(np.ascontiguousarray(task.init_states).tobytes())
    digest.update(repr((task.goal, task.instruction, task.max_episode_steps)).encode())
    return digest.hexdigest()


def missing_tasks(suite: str) -> list[str]:
    """Short names of the tasks of an official suite that are not installed, as far as an installation has said."""
    from embodied_rl.sim.libero.exported import installed
    from embodied_rl.sim.libero.install.benchmarks import LIBERO, LIBERO_PRO
    from embodied_rl.sim.libero.install.manifest import known_tasks

    root = cache_dir() / "libero"
    there = set(installed(root))
    official = known_tasks(root, LIBERO_PRO if suite in PRO_SUITES else LIBERO)
    return [name.partition("/")[2] for name in official if name.startswith(f"{suite}/") and name not in there]


def _load_libero(suite: str, era: Era, *, whole: bool) -> Sequence[SuiteTask]:
    """The installed tasks of a suite; whole: UserError unless that is all of them."""
    from embodied_rl.sim.libero import tasks as libero
    from embodied_rl.sim.libero.exported import install_command, installed

    root = cache_dir() / "libero"
    if not installed(root):
        raise UserError(
            f"suite '{suite}' cannot run: LIBERO's official assets are not installed in {root}; "
            f"run: {install_command(suite)} (the built-in suites need nothing: tabletop_spatial)"
        )
    there = libero.tasks(root, suite)
    if whole and (lost := len(missing_tasks(suite))):
        raise UserError(
            f"suite '{suite}' is only partly installed, {len(there)} of {len(there) + lost} tasks, and counts as a "
            f"whole; run: {install_command(suite)}, or choose among those that are there with --tasks"
        )
    return [libero.load_task(root, name, era) for name in there]

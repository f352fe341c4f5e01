"""`embodied-rl bench libero`: our engine on exported LIBERO tasks against the official stack, side by side in one run.

The same tasks, initial states, actions and number of envs on the same machine, repeats in turn. The official side is
`SubprocVectorEnv` of hf-libero with robosuite in an isolated environment, stepped one by one as its users do; ours
steps chunks of 8. After every repeat both sides' joint positions are compared: both have done the same work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from embodied_rl.benchmarks import floor
from embodied_rl.benchmarks.libero_figures import (
    CAVEATS,
    CHUNK,
    MEANING,
    OFFICIAL,
    OURS,
    PLAIN,
    PUBLISHED,
    Memory,
    Row,
    TaskFigures,
    largest_difference,
    parts_of,
    ratios_of,
    row,
    show,
)
from embodied_rl.benchmarks.libero_official import OfficialEnvs, Timing
from embodied_rl.benchmarks.libero_ours import OurEnvs, slot_bytes
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import cache_dir
from embodied_rl.sim import eras
from embodied_rl.sim.libero.exported import INSTALL, installed
from embodied_rl.sim.libero.install.environment import OFFICIAL as PACKAGES
from embodied_rl.sim.libero.install.kept import find_official
from embodied_rl.sim.libero.install.report import StepNames
from embodied_rl.sim.libero.tasks import LiberoTask, load_task, suites, tasks
from embodied_rl.sim.mujoco.era import unavailable
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.render import choose
from embodied_rl.types import Array

IMAGE_SIZE = 128


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. steps: of physics a repeat; decisions: of cameras a repeat; resets: of ours a repeat."""

    tasks: int
    num_envs: int
    repeats: int
    steps: int
    decisions: int
    resets: int
    env_ids: int


FULL = Plan(tasks=5, num_envs=4, repeats=5, steps=40, decisions=1, resets=25, env_ids=64)
QUICK = Plan(tasks=1, num_envs=2, repeats=1, steps=8, decisions=1, resets=5, env_ids=16)


def measure(root: Path, name: str, official: OfficialEnvs, plan: Plan, say: Callable[[str], None]) -> TaskFigures:
    """Everything about one task."""
    task = load_task(root, name)
    rng = np.random.default_rng(0)
    contenders = {OURS: task}
    if unavailable() is None:
        contenders[PUBLISHED] = load_task(root, name, eras.PUBLISHED)
    physics, used, gap = _physics(contenders, official, plan, rng, partial(_tell, say, name))
    cameras, drawn = _cameras(task, official, plan, rng, partial(_tell, say, name))
    say(f"{name}: memory")
    ours = slot_bytes(root, name, plan.env_ids)
    say(f"{name}: floor")
    actions = rng.uniform(-0.5, 0.5, (floor.STEPS, PANDA.action_dim)).astype(np.float32)
    profile = floor.profile(name, task.build_physics(), task.init_states[0], actions, task.start, 1 + plan.repeats)
    memory = Memory(name, ours / 1e6, statistics.median(used) / 1e6)
    return TaskFigures([*physics, *cameras], memory, profile, max(gap, drawn), len(task.approximate))


def _tell(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")


def _actions(rng: np.random.Generator, steps: int, num_envs: int) -> Array:
    return rng.uniform(-0.5, 0.5, (steps, num_envs, PANDA.action_dim)).astype(np.float32)


def _physics(
    contenders: Mapping[str, LiberoTask],
    official: OfficialEnvs,
    plan: Plan,
    rng: np.random.Generator,
    say: Callable[[str], None],
) -> tuple[list[Row], list[int], float]:
    """Resets and steps without cameras; also the official processes' memory, and the largest difference.

    contenders: ours by name, a task each. OURS is among them; it also resets, and is held against the official states.
    """
    task = contenders[OURS]
    say("starting the official processes")
    official.start(task, plan.num_envs, cameras=False, size=IMAGE_SIZE)
    found: dict[tuple[str, str], list[Timing]] = {}
    gap = 0.0
    with ExitStack() as stack:
        mine = {
            name: stack.enter_context(closing(OurEnvs(each, plan.num_envs, IMAGE_SIZE)))
            for name, each in contenders.items()
        }
        for repeat in range(plan.repeats + 1):  # the first one warms up
            say(f"physics, repeat {repeat} of {plan.repeats}")
            actions = _actions(rng, plan.steps, plan.num_envs)
            timings = {("reset", OFFICIAL): official.reset()}
            timings |= {("reset", name): envs.reset(plan.resets) for name, envs in mine.items()}
            timings["physics", OFFICIAL], states = official.step(actions)
            timings |= {("physics", name): envs.step(actions, CHUNK) for name, envs in mine.items()}
            gap = max(gap, mine[OURS].distance(states))
            if repeat:
                for key, timing in timings.items():
                    if key != ("reset", PUBLISHED):  # the same as OURS: a state is written
                        found.setdefault(key, []).append(timing)
    used = official.memory()
    counts = {("reset", OFFICIAL): 1, ("reset", OURS): plan.resets}
    rows = [
        row(task.name, *key, timings, plan.num_envs * counts.get(key, plan.steps)) for key, timings in found.items()
    ]
    return rows, used, gap


def _cameras(
    task: LiberoTask, official: OfficialEnvs, plan: Plan, rng: np.random.Generator, say: Callable[[str], None]
) -> tuple[list[Row], float]:
    """Decisions of 8 steps with two cameras; the largest difference too."""
    say("starting the official processes with cameras")
    official.start(task, plan.num_envs, cameras=True, size=IMAGE_SIZE)
    found: dict[str, list[Timing]] = {OFFICIAL: [], OURS: [], PLAIN: []}
    gap, steps = 0.0, CHUNK * plan.decisions
    with ExitStack() as stack:
        mine = {
            name: stack.enter_context(closing(OurEnvs(task, plan.num_envs, IMAGE_SIZE, images=name == OURS)))
            for name in (OURS, PLAIN)
        }
        for repeat in range(plan.repeats + 1):
            say(f"cameras, repeat {repeat} of {plan.repeats}")
            actions = _actions(rng, steps, plan.num_envs)
            timing, states = official.step(actions)
            timings = {OFFICIAL: timing} | {name: envs.step(actions, CHUNK) for name, envs in mine.items()}
            gap = max(gap, *(envs.distance(states) for envs in mine.values()))
            if repeat:
                for name, each in timings.items():
                    found[name].append(each)
    return [row(task.name, "cameras", name, each, plan.num_envs * steps) for name, each in found.items()], gap


def pick(root: Path, count: int) -> list[str]:
    """The first task of each installed suite, `count` at most. UserError when nothing is installed."""
    there = installed(root)
    if not there:
        raise UserError(f"LIBERO is not installed in {root}; run: {INSTALL}")
    return [tasks(root, suite)[0] for suite in suites() if any(name.startswith(f"{suite}/") for name in there)][:count]


def run(
    json_path: Path | None, quick: bool = False, assets: Path | None = None, environment: Path | None = None
) -> None:
    """Print the tables; write `rows`, flat `ratios`, memory, parts of a step and the machine to `json_path`.

    quick: one task, one short repeat: a smoke test. assets, environment: see find_official.
    """
    console = Console()
    root, plan = cache_dir() / "libero", QUICK if quick else FULL
    names = pick(root, plan.tasks)
    choose("osmesa", ())
    machine = describe_machine(("mujoco", "numpy", "numba")) | PACKAGES
    without = unavailable()
    if without is not None:
        console.print(f"The published era is left out: {without}", highlight=False)
    columns = (TextColumn("[progress.description]{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("starting")

        def say(text: str) -> None:
            progress.update(line, description=text)

        found = find_official(root, assets, environment, StepNames(say))
        with closing(OfficialEnvs(found)) as official:
            figures = [measure(root, name, official, plan, say) for name in names]
    ratios = ratios_of(figures)
    show(console, figures, ratios)
    console.print(machine_line(machine))
    if json_path is not None:
        rows = [asdict(row) for each in figures for row in each.rows]
        setup = {
            "tasks": ", ".join(names),
            "worlds": plan.num_envs,
            "chunk": CHUNK,
            "eras": "current, published" if without is None else "current",
            "renderer": "osmesa",
            "image_size": IMAGE_SIZE,
            "largest difference of joint positions": largest_difference(figures),
            "stand-ins for missing asset files": "yes" if any(each.stand_ins for each in figures) else "no",
        }
        write_json(
            json_path,
            "libero",
            quick,
            machine,
            rows,
            ratios,
            setup=setup,
            contenders=MEANING,
            caveats=CAVEATS,
            memory=[asdict(each.memory) for each in figures],
            parts=[parts_of(each.profile) for each in figures],
            profiles=[asdict(each.profile) for each in figures],
        )

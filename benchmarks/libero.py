"""`embodied-rl bench libero`: our engine on LIBERO bundles against the official stack, side by side in one run.

The same tasks, initial states, actions and number of worlds on the same machine, repeats in turn. The official side is
`SubprocVectorEnv` of hf-libero with robosuite in an isolated environment, stepped one by one as its users do; ours steps
chunks of 8. After every repeat both sides' joint positions are compared, so that both have done the same work.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from embodied_rl.benchmarks import floor
from embodied_rl.benchmarks.libero_official import OfficialEnvs, Timing, find_official
from embodied_rl.benchmarks.libero_ours import OurEnvs, slot_bytes
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.cli.suites import cache_dir
from embodied_rl.errors import UserError
from embodied_rl.sim.engine.vec_env import ACTION_DIM
from embodied_rl.sim.libero.assets.environment import OFFICIAL as PACKAGES
from embodied_rl.sim.libero.bundle import INSTALL, installed
from embodied_rl.sim.libero.tasks import LiberoTask, load_task, suites, tasks
from embodied_rl.sim.render import choose
from embodied_rl.types import Array

IMAGE_SIZE, CHUNK = 128, 8
OURS, PIXELS, OFFICIAL = "ours", "ours, official pixels", "official"
MEANING = {
    OURS: "NativeVecEnv, controller 'exact'; chunks of 8 steps; two cameras once a chunk, without shadows, antialiasing "
    "and reflections, as policies of this project see them",
    PIXELS: "the same, but its frames are those of the official stack to the last bit",
    OFFICIAL: "SubprocVectorEnv, a process a world, step by step; two cameras after every step",
}
CAVEATS = (
    "reset: env.reset() and set_init_state() without cameras; with cameras the official one takes several times longer. "
    "Ours loads a task once, at the first reset that asks for it; that is in no figure.",
    "chunk8: both sides draw with OSMesa at 128x128. Of the gain a factor of 8 is not drawing frames that nobody reads, "
    "the rest is drawing without shadows and antialiasing; chunk8_same_pixels is the first part alone, and a policy that "
    "decides after every step would gain neither of it.",
    "memory: what no other process shares, of one more official process against one more slot of ours, after stepping, "
    "without cameras. The first slot also costs the scene and this program.",
    "floor: against 25 bare mj_step calls, which is less than any controller can do: it needs the state between them.",
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured. steps: of physics a repeat; decisions: of cameras a repeat; resets: of ours a repeat."""

    tasks: int
    worlds: int
    repeats: int
    steps: int
    decisions: int
    resets: int
    slots: int


FULL = Plan(tasks=5, worlds=4, repeats=5, steps=40, decisions=1, resets=25, slots=64)
QUICK = Plan(tasks=1, worlds=2, repeats=1, steps=8, decisions=1, resets=5, slots=16)


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of one contender on one task: medians over the repeats, and extremes.

    of: 'physics' and 'cameras' count a control step of one world, 'reset' a reset of one.
    """

    task: str
    of: str
    contender: str
    cpu_ms: float
    cpu_low: float
    cpu_high: float
    wall_ms: float
    wall_low: float
    wall_high: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Megabytes of one more world, without cameras."""

    task: str
    ours: float
    official: float


@dataclass(frozen=True)
class TaskFigures:
    """All of one task. difference: of joint positions (rad, m) to the official ones, the largest of all repeats."""

    rows: list[Row]
    memory: Memory
    profile: floor.Profile
    difference: float
    stand_ins: int


def row(task: str, of: str, contender: str, timings: Sequence[Timing], count: int) -> Row:
    """Medians and extremes of the repeats. count: steps or resets of single worlds in each."""
    cpu, wall = ([1e3 * getattr(t, kind) / count for t in timings] for kind in ("cpu", "wall"))
    return Row(
        task, of, contender, statistics.median(cpu), min(cpu), max(cpu), statistics.median(wall), min(wall), max(wall),
        len(timings),
    )  # fmt: skip


def ratios_of(figures: Sequence[TaskFigures]) -> dict[str, float]:
    """Official over ours, of CPU time and of wall time, as the median over the tasks; `_low` is the task with the least.

    floor: a control step of ours over the bare one, the median; `_high` the task with the most.
    """
    found: dict[str, list[float]] = {}
    for each in figures:
        at = {(r.of, r.contender): r for r in each.rows}
        for name, of, ours in (("physics", "physics", OURS), ("reset", "reset", OURS), ("chunk8", "cameras", OURS),
                               ("chunk8_same_pixels", "cameras", PIXELS)):  # fmt: skip
            official, mine = at[of, OFFICIAL], at[of, ours]
            found.setdefault(f"{name}_cpu", []).append(official.cpu_ms / mine.cpu_ms)
            found.setdefault(f"{name}_wall", []).append(official.wall_ms / mine.wall_ms)
        found.setdefault("memory", []).append(each.memory.official / each.memory.ours)
    ratios: dict[str, float] = {}
    for name, values in found.items():
        ratios |= {name: statistics.median(values), f"{name}_low": min(values)}
    floors = [each.profile.ratio for each in figures]
    ratios |= {"floor": statistics.median(floors), "floor_high": max(floors)}
    # what each name means without a suffix: resets in CPU time (ours are too short for wall time), speeds in wall time
    short = {"physics": "physics_wall", "reset": "reset_cpu", "chunk8": "chunk8_wall"}
    return {name: ratios[long] for name, long in short.items()} | ratios


def parts_of(profile: floor.Profile, step: float) -> dict[str, float]:
    """Where the CPU milliseconds of our control step go; step: of NativeVecEnv, measured over whole chunks."""
    entry = profile.calls / CHUNK
    controller = profile.exact - profile.halves - profile.seen
    return {
        "25 mj_step": profile.floor,
        "mj_step in halves": profile.halves - profile.floor,
        "controller, goal": controller,
        "observation": profile.seen,
        "entry, once a chunk": entry,
        "slots and threads": step - profile.exact - entry,
    }


def measure(root: Path, name: str, official: OfficialEnvs, plan: Plan, say: Callable[[str], None]) -> TaskFigures:
    """Everything about one task."""
    task = load_task(root, name)
    rng = np.random.default_rng(0)
    physics, used, gap = _physics(task, official, plan, rng, partial(_tell, say, name))
    cameras, drawn = _cameras(task, official, plan, rng, partial(_tell, say, name))
    say(f"{name}: memory")
    ours = slot_bytes(root, name, plan.slots)
    say(f"{name}: floor")
    actions = rng.uniform(-0.5, 0.5, (floor.STEPS, ACTION_DIM)).astype(np.float32)
    profile = floor.profile(name, task.build_physics(), task.init_states[0], actions, task.start, 1 + plan.repeats)
    memory = Memory(name, ours / 1e6, statistics.median(used) / 1e6)
    return TaskFigures([*physics, *cameras], memory, profile, max(gap, drawn), len(task.approximate))


def _tell(say: Callable[[str], None], name: str, text: str) -> None:
    say(f"{name}: {text}")


def _actions(rng: np.random.Generator, steps: int, worlds: int) -> Array:
    return rng.uniform(-0.5, 0.5, (steps, worlds, ACTION_DIM)).astype(np.float32)


def _physics(
    task: LiberoTask, official: OfficialEnvs, plan: Plan, rng: np.random.Generator, say: Callable[[str], None]
) -> tuple[list[Row], list[int], float]:
    """Resets and steps without cameras; also the official processes' memory, and the largest difference."""
    say("starting the official processes")
    official.start(task, plan.worlds, cameras=False, size=IMAGE_SIZE)
    found: dict[tuple[str, str], list[Timing]] = {}
    used: list[int] = []
    gap = 0.0
    with closing(OurEnvs(task, plan.worlds, IMAGE_SIZE)) as ours:
        for repeat in range(plan.repeats + 1):  # the first one warms up
            say(f"physics, repeat {repeat} of {plan.repeats}")
            actions = _actions(rng, plan.steps, plan.worlds)
            timings = {("reset", OFFICIAL): official.reset(), ("reset", OURS): ours.reset(plan.resets)}
            timings["physics", OFFICIAL], states = official.step(actions)
            timings["physics", OURS] = ours.step(actions, CHUNK)
            gap = max(gap, ours.distance(states))
            if repeat:
                for key, timing in timings.items():
                    found.setdefault(key, []).append(timing)
            else:
                used = official.memory()
    counts = {("reset", OFFICIAL): 1, ("reset", OURS): plan.resets}
    rows = [row(task.name, *key, timings, plan.worlds * counts.get(key, plan.steps)) for key, timings in found.items()]
    return rows, used, gap


def _cameras(
    task: LiberoTask, official: OfficialEnvs, plan: Plan, rng: np.random.Generator, say: Callable[[str], None]
) -> tuple[list[Row], float]:
    """Decisions of 8 steps with two cameras; the largest difference too."""
    say("starting the official processes with cameras")
    official.start(task, plan.worlds, cameras=True, size=IMAGE_SIZE)
    found: dict[str, list[Timing]] = {OFFICIAL: [], OURS: [], PIXELS: []}
    gap, steps = 0.0, CHUNK * plan.decisions
    with ExitStack() as stack:
        mine = {
            name: stack.enter_context(closing(OurEnvs(task, plan.worlds, IMAGE_SIZE, pictures=name == PIXELS)))
            for name in (OURS, PIXELS)
        }
        for repeat in range(plan.repeats + 1):
            say(f"cameras, repeat {repeat} of {plan.repeats}")
            actions = _actions(rng, steps, plan.worlds)
            timing, states = official.step(actions)
            timings = {OFFICIAL: timing} | {name: envs.step(actions, CHUNK) for name, envs in mine.items()}
            gap = max(gap, *(envs.distance(states) for envs in mine.values()))
            if repeat:
                for name, each in timings.items():
                    found[name].append(each)
    return [row(task.name, "cameras", name, each, plan.worlds * steps) for name, each in found.items()], gap


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
    columns = (TextColumn("[progress.description]{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("starting")

        def say(text: str) -> None:
            progress.update(line, description=text)

        found = find_official(root, assets, environment, say)
        with closing(OfficialEnvs(found)) as official:
            figures = [measure(root, name, official, plan, say) for name in names]
    ratios = ratios_of(figures)
    parts = [{"task": each.profile.scene} | parts_of(each.profile, _our_step(each)) for each in figures]
    _show(console, figures, parts, ratios)
    console.print(machine_line(machine))
    if json_path is not None:
        setup = {"worlds": plan.worlds, "chunk": CHUNK, "renderer": "osmesa", "image_size": IMAGE_SIZE,
                 "largest difference of joint positions": max(each.difference for each in figures),
                 "stand-ins for missing asset files": "yes" if any(each.stand_ins for each in figures) else "no",
                 }  # fmt: skip
        write_json(
            json_path, "libero", quick, machine, [asdict(r) for each in figures for r in each.rows], ratios, setup=setup,
            contenders=MEANING, caveats=CAVEATS, memory=[asdict(each.memory) for each in figures], parts=parts,
            profiles=[asdict(each.profile) for each in figures],
        )  # fmt: skip


def _our_step(figures: TaskFigures) -> float:
    return next(r.cpu_ms for r in figures.rows if (r.of, r.contender) == ("physics", OURS))


def _show(
    console: Console, figures: Sequence[TaskFigures], parts: Sequence[Mapping[str, Any]], ratios: Mapping[str, float]
) -> None:
    table = Table(title="milliseconds of one world: of a reset, or of a control step")
    for name in ("task", "of", "contender", "CPU", "from-to", "wall", "from-to"):
        table.add_column(name, justify="left" if name in ("task", "of", "contender") else "right", max_width=44)
    for each in figures:
        for r in each.rows:
            table.add_row(
                r.task, r.of, r.contender, _ms(r.cpu_ms), f"{_ms(r.cpu_low)}-{_ms(r.cpu_high)}", _ms(r.wall_ms),
                f"{_ms(r.wall_low)}-{_ms(r.wall_high)}",
            )  # fmt: skip
    console.print(table)
    where = Table(title="where the CPU ms of our control step go")
    for name in parts[0]:
        where.add_column(name, justify="left" if name == "task" else "right", max_width=44)
    for each in parts:
        where.add_row(*(value if isinstance(value, str) else f"{value:.3f}" for value in each.values()))
    console.print(where)
    for each in figures:
        memory = each.memory
        console.print(f"{memory.task}: one more world {memory.official:.0f} MB, ours {memory.ours:.2f} MB")
    for name, meaning in MEANING.items():
        console.print(f"  {name}: {meaning}", highlight=False)
    for text in CAVEATS:
        console.print(f"  {text}", highlight=False)
    console.print(", ".join(f"{name} {value:.4g}" for name, value in ratios.items()))
    gap = max(each.difference for each in figures)
    console.print(f"largest difference of our joint positions to the official ones: {gap:.3g}")


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"

"""The figures of `bench libero`: what is compared, the arithmetic of its ratios, and its tables."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks.floor import Profile
from embodied_rl.benchmarks.libero_official import Timing

CHUNK = 8
"""Control steps a decision."""
OURS, PLAIN, PUBLISHED, OFFICIAL = "ours", "ours, plain frames", "ours, published era", "official"
MEANING = {
    OURS: "MujocoVecEnv, controller 'exact'; chunks of 8 steps; two cameras once a chunk, the official pixels",
    PLAIN: "the same, but frames without shadows, antialiasing and reflections (env.render_quality fast)",
    PUBLISHED: "as the first, with the contacts of MuJoCo 3.1 to 3.3 (physics version published); its states differ",
    OFFICIAL: "SubprocVectorEnv, a process an env, step by step; two cameras after every step",
}
CAVEATS = (
    "reset: env.reset() and set_init_state() without cameras; the official one takes longer with them. Ours "
    "loads a task once, at the first reset that asks for it; that is in no figure.",
    "chunk8: both sides draw with OSMesa at 128x128. About a factor of 8 of the gain is not drawing frames that nobody "
    "reads; a policy that decides after every step does not have it. chunk8_plain also draws without shadows and "
    "antialiasing, which are other pixels. OSMesa draws one frame at a time in a process, so our threads wait for each "
    "other where the official processes do not: that is in the wall ratios.",
    "memory: what no other process shares, of one more official process against one more env of ours, without "
    "cameras and after the resets and steps of all repeats. The first env also costs the scene and this program.",
    "floor: against 25 bare mj_step calls, which is less than any controller can do: it needs the state between them.",
)


@dataclass(frozen=True, slots=True)
class Row:
    """Milliseconds of one contender on one task: medians over the repeats, and extremes.

    of: 'physics' and 'cameras' count a control step of one env, 'reset' a reset of one.
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
    """Megabytes of one more env, without cameras."""

    task: str
    ours: float
    official: float


@dataclass(frozen=True)
class TaskFigures:
    """All of one task. difference: of joint positions (rad, m) to the official ones, the largest of all repeats."""

    rows: list[Row]
    memory: Memory
    profile: Profile
    difference: float
    stand_ins: int


def row(task: str, of: str, contender: str, timings: Sequence[Timing], count: int) -> Row:
    """Medians and extremes of the repeats. count: steps or resets of single envs in each."""
    cpu, wall = ([1e3 * getattr(t, kind) / count for t in timings] for kind in ("cpu", "wall"))
    return Row(
        task,
        of,
        contender,
        statistics.median(cpu),
        min(cpu),
        max(cpu),
        statistics.median(wall),
        min(wall),
        max(wall),
        len(timings),
    )


def ratios_of(figures: Sequence[TaskFigures]) -> dict[str, float]:
    """Official over ours, of CPU time and of wall time, the median over the tasks; `_low` is that of the worst task.

    floor: a control step of ours over the bare one, the median; `_high` is that of the worst task.
    published: a control step of ours in the published era over one in the current era, likewise, where both ran.
    """
    found: dict[str, list[float]] = {}
    for each in figures:
        at = {(r.of, r.contender): r for r in each.rows}
        for name, of, ours in (
            ("physics", "physics", OURS),
            ("reset", "reset", OURS),
            ("chunk8", "cameras", OURS),
            ("chunk8_plain", "cameras", PLAIN),
        ):
            official, mine = at[of, OFFICIAL], at[of, ours]
            found.setdefault(f"{name}_cpu", []).append(official.cpu_ms / mine.cpu_ms)
            found.setdefault(f"{name}_wall", []).append(official.wall_ms / mine.wall_ms)
        found.setdefault("memory", []).append(each.memory.official / each.memory.ours)
    ratios: dict[str, float] = {}
    for name, values in found.items():
        ratios |= {name: statistics.median(values), f"{name}_low": min(values)}
    floors = [each.profile.ratio for each in figures]
    ratios |= {"floor": statistics.median(floors), "floor_high": max(floors)}
    if eras := [ratio for each in figures if (ratio := _published(each)) is not None]:
        ratios |= {"published": statistics.median(eras), "published_high": max(eras)}
    # without a suffix CPU time is meant: other programs disturb it least
    return {name: ratios[f"{name}_cpu"] for name in ("physics", "reset", "chunk8")} | ratios


def _published(figures: TaskFigures) -> float | None:
    """CPU time of a control step in the published era over that in the current one; None where it did not run."""
    cpu = {each.contender: each.cpu_ms for each in figures.rows if each.of == "physics"}
    return cpu[PUBLISHED] / cpu[OURS] if PUBLISHED in cpu else None


def parts_of(profile: Profile) -> dict[str, float]:
    """Where the CPU milliseconds of our control step go."""
    return {
        "25 mj_step": profile.floor,
        "mj_step in halves": profile.halves - profile.floor,
        "controller, goal": profile.exact - profile.halves - profile.seen,
        "observation": profile.seen,
        "entry, once a chunk": profile.calls / CHUNK,
        "all": profile.exact + profile.calls / CHUNK,
    }


def largest_difference(figures: Sequence[TaskFigures]) -> float:
    """Of our joint positions to the official ones, rad and m."""
    return max(each.difference for each in figures)


def show(console: Console, figures: Sequence[TaskFigures], ratios: Mapping[str, float]) -> None:
    """Print the tables, what is compared, and the ratios."""
    console.print(_times(figures))
    console.print(_parts(figures))
    for each in figures:
        memory = each.memory
        console.print(f"{_suite(memory.task)}: one more env {memory.official:.0f} MB, ours {memory.ours:.2f} MB")
    for name, meaning in MEANING.items():
        console.print(f"  {name}: {meaning}", highlight=False)
    for text in CAVEATS:
        console.print(f"  {text}", highlight=False)
    console.print(", ".join(f"{name} {value:.4g}" for name, value in ratios.items()))
    gap = largest_difference(figures)
    console.print(f"largest difference of our joint positions to the official ones: {gap:.3g}")


def _times(figures: Sequence[TaskFigures]) -> Table:
    table = Table(title="milliseconds of one env: of a reset, or of a control step")
    for name in ("task", "of", "contender", "CPU", "from-to", "wall", "from-to"):
        table.add_column(name, justify="left" if name in ("task", "of", "contender") else "right")
    for each in figures:
        for r in each.rows:
            table.add_row(
                _suite(r.task),
                r.of,
                r.contender,
                _ms(r.cpu_ms),
                f"{_ms(r.cpu_low)}-{_ms(r.cpu_high)}",
                _ms(r.wall_ms),
                f"{_ms(r.wall_low)}-{_ms(r.wall_high)}",
            )
    return table


def _parts(figures: Sequence[TaskFigures]) -> Table:
    parts = [{"task": _suite(each.profile.scene)} | parts_of(each.profile) for each in figures]
    table = Table(title="where the CPU ms of our control step go")
    for name in parts[0]:
        table.add_column(name, justify="left" if name == "task" else "right")
    for each in parts:
        table.add_row(*(value if isinstance(value, str) else f"{value:.3f}" for value in each.values()))
    return table


def _suite(task: str) -> str:
    """Short enough for a table: one task a suite is measured."""
    return task.partition("/")[0]


def _ms(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"

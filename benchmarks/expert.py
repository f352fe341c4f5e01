"""How often the scripted expert solves LIBERO's tasks, without pushes and without frames.

    python -m embodied_rl.benchmarks.expert --suites libero_spatial --json expert.json

Success: the goal holds after some control step within the suite's horizon, as the official evaluation counts.
'Lasting': it still holds 25 steps later, while the expert goes on (lets go, backs off).
The same command goes on where a stopped one was; --json keeps every episode.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import mujoco
import torch
from rich.console import Console

from embodied_rl.data.progress import ProgressBar
from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import LIBERO_SUITES, load_tasks
from embodied_rl.rng import philox
from embodied_rl.sim.eras import EraChoice
from embodied_rl.sim.libero.expert import Expert, Surface
from embodied_rl.sim.libero.protocol import OPENVLA
from embodied_rl.sim.libero.tasks import LiberoTask
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.source import source_digest
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.output import try_output

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask

STATES = (*range(10), *range(50, 60))
"""Ten rows of the official evaluation and ten training rows."""
AFTER = 25
"""Control steps after which success is looked at again."""


@dataclass(frozen=True, slots=True)
class Row:
    """One episode: steps until the goal held (None: never), whether it still did AFTER steps on, CPU seconds.

    bundle: fingerprint of the task's files.
    """

    suite: str
    index: int
    bundle: str
    instruction: str
    state: int
    steps: int | None
    lasting: bool
    cpu: float


def run_episode(env: MujocoVecEnv, task: LiberoTask, surface: Surface | None, state: int) -> tuple[Row, Surface]:
    """One attempt. surface: of the task's model, where it is known already."""
    started = time.process_time()
    env.reset([0], [EpisodeSpec(0, task.name, state, state)])
    env.step([0], torch.from_numpy(OPENVLA.settle_actions()[None]))
    surface = surface or Surface(env.model(0))
    expert = Expert(task, env.model(0), surface, philox(state))
    won, steps, held = None, 0, False
    while True:
        action = expert.act(env.data(0), env.held(0)).astype("float32")
        result = env.step([0], torch.from_numpy(action[None, None]))
        steps, held = steps + 1, bool(result.success[0])
        won = steps if held and won is None else won
        if result.failed[0] or result.truncated[0] or (won is not None and steps >= won + AFTER):
            break
    return _row(task, state, won, held, started), surface


def _row(task: LiberoTask, state: int, steps: int | None, lasting: bool, started: float) -> Row:
    cpu = time.process_time() - started
    return Row(task.suite, task.index, task.fingerprint, task.instruction, state, steps, lasting, cpu)


def measure(
    suite: str, era: str, tasks: Sequence[int], states: Sequence[int], out: Path | None, console: Console
) -> list[Row]:
    """Every task (of these numbers; none given: all) from every state; what `out` holds already is not run again."""
    loaded = load_tasks(suite, era=era)
    stamp = _stamp(loaded[0].era)
    done = _read(out, stamp)
    found = [task for task in loaded if isinstance(task, LiberoTask) and (not tasks or task.index in tasks)]
    _check(suite, loaded, found, states)
    prints = {(task.suite, task.index): task.fingerprint for task in loaded if isinstance(task, LiberoTask)}
    if any(prints.get((row.suite, row.index), row.bundle) != row.bundle for row in done):
        raise UserError(f"{out} was measured on other bundles of {suite} than are installed; choose another --json")
    known = {(row.suite, row.index, row.state) for row in done}
    with ProgressBar(console, suite) as bar:
        line = bar.add_task("", total=len(found) * len(states), note="")
        for task in found:
            surface = None
            timed = replace(task, max_episode_steps=task.max_episode_steps + OPENVLA.settle_steps + AFTER)
            with closing(MujocoVecEnv([timed], 1, threads=1, stop_at_success=False)) as env:
                for state in states:
                    if (suite, task.index, state) not in known and state < len(task.init_states):
                        row, surface = run_episode(env, task, surface, state)
                        done.append(_within(row, task.max_episode_steps))
                        _write(out, stamp, done)
                    bar.update(line, advance=1, note=f"task {task.index}")
    return [row for row in done if row.suite == suite]


def _check(suite: str, loaded: Sequence[SuiteTask], found: Sequence[LiberoTask], states: Sequence[int]) -> None:
    """UserError where no task has such a number, or none has such a row of initial states."""
    if not found:
        known = ", ".join(str(task.index) for task in loaded if isinstance(task, LiberoTask))
        raise UserError(f"--tasks: {suite} has none of these numbers. It has: {known}")
    last = max(len(task.init_states) for task in found) - 1
    if beyond := [state for state in states if state > last]:
        raise UserError(f"--states: {suite} has no row {beyond[0]} of initial states; there are rows 0 to {last}")


def _within(row: Row, horizon: int) -> Row:
    """The episode, judged by its suite's horizon: it ran AFTER steps longer."""
    return replace(row, steps=None, lasting=False) if row.steps is not None and row.steps > horizon else row


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line a task, and one a suite."""
    lines = ["| task | success | lasting | steps: median (most) | CPU s | instruction |", "|---|---|---|---|---|---|"]
    for suite in dict.fromkeys(row.suite for row in rows):
        mine = [row for row in rows if row.suite == suite]
        for index in sorted({row.index for row in mine}):
            lines.append(_line(f"{suite} {index}", [row for row in mine if row.index == index]))
        lines.append(_line(f"**{suite}**", mine))
    return "\n".join(lines)


def _line(name: str, rows: Sequence[Row]) -> str:
    steps = [row.steps for row in rows if row.steps is not None]
    length = f"{statistics.median(steps):.0f} ({max(steps)})" if steps else "-"
    lasting, cpu = sum(row.lasting for row in rows), statistics.mean(row.cpu for row in rows)
    what = rows[0].instruction if not name.startswith("**") else ""
    return f"| {name} | {len(steps)}/{len(rows)} | {lasting}/{len(rows)} | {length} | {cpu:.1f} | {what} |"


def _stamp(era: str) -> dict[str, Any]:
    return {
        "mujoco": mujoco.__version__,
        "era": era,
        "settle_steps": OPENVLA.settle_steps,
        "after": AFTER,
        "simulator": source_digest(),
    }


def _read(out: Path | None, stamp: dict[str, Any]) -> list[Row]:
    if out is None or not out.exists():
        return []
    try:
        stored = json.loads(out.read_text())
        rows, was = [Row(**row) for row in stored["rows"]], dict(stored["stamp"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{out} holds no episodes of this bench ({error!r}); choose another --json") from None
    if other := [key for key in stamp if was.get(key) != stamp[key]]:
        raise UserError(f"{out} was measured with another {', '.join(other)}; choose another --json")
    return rows


def _write(out: Path | None, stamp: dict[str, Any], rows: Sequence[Row]) -> None:
    if out is not None:
        fresh = out.with_name(f".{out.name}.new")
        fresh.write_text(json.dumps({"stamp": stamp, "rows": [asdict(row) for row in rows]}))
        fresh.replace(out)


def numbers(text: str) -> tuple[int, ...]:
    """'0-2,7' is 0, 1, 2, 7."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise ValueError(f"{text} holds no number")
    return tuple(found)


def main() -> int:
    """Measure and print the table; 130 when Ctrl-C stopped it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", choices=LIBERO_SUITES, default=LIBERO_SUITES[:4])
    parser.add_argument(
        "--physics-version",
        dest="era",
        choices=get_args(EraChoice),
        default="auto",
        help="as --env.physics-version of train",
    )
    parser.add_argument("--tasks", type=numbers, default=(), help="numbers of tasks in each suite, as 0-2,7 (all)")
    parser.add_argument("--states", type=numbers, default=STATES, help="rows of the initial states (0-9,50-59)")
    parser.add_argument("--json", type=Path, help="file for all episodes; the same command goes on from it")
    chosen = parser.parse_args()
    console, rows = Console(stderr=True), []
    try:
        if chosen.json is not None:
            try_output("--json", chosen.json)
        for suite in chosen.suites:
            rows += measure(suite, chosen.era, chosen.tasks, chosen.states, chosen.json, console)
    except KeyboardInterrupt:
        console.print("stopped; the same command goes on")
        return 130
    except UserError as error:
        console.print(f"error: {error}", soft_wrap=True)
        return 2
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""`embodied-rl bench sim`: our simulation engine against gymnasium's vector environments and MuJoCo's own batch, over
the same task.

What is measured, for N envs: control steps a second and CPU milliseconds a step, physics alone and with two 128x128
cameras. Ours steps chunks of 8 and draws once a decision; the others step one by one and draw after every step, as the
field's trainers do. Repeats of all contenders are interleaved; the table shows medians and the spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from embodied_rl.benchmarks.batch_env import BatchContender, has_batch
from embodied_rl.benchmarks.gym_envs import BindingsEnv, KernelEnv, TaskEnv
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import Array, EpisodeSpec

SUITE, TASK, IMAGE_SIZE, CHUNK = "tabletop_object", 0, 128, 8
COUNTS = (1, 8, 32)
RATIO_AT = 8
"""The ratios compare at this N."""

Mode = Literal["physics", "cameras"]
OURS, SYNC, ASYNC = "ours", "sync", "async"
KERNEL_SYNC, KERNEL_ASYNC = "kernel sync", "kernel async"
BATCH = "mujoco batch"
CONTENDERS = {
    OURS: "MujocoVecEnv: compiled kernel, threads, chunks of 8, cameras once a chunk",
    SYNC: "SyncVectorEnv; Python loop over 25 substeps, numpy controller, cameras every step",
    ASYNC: "AsyncVectorEnv (a process an env); otherwise as sync",
    KERNEL_SYNC: "SyncVectorEnv; our compiled kernel for each single step, cameras every step",
    KERNEL_ASYNC: "AsyncVectorEnv; otherwise as kernel sync",
}
if has_batch():
    CONTENDERS[BATCH] = "mujoco.batch on all cores; a call a substep, numpy controller, cameras every step"


@dataclass(frozen=True, slots=True)
class Row:
    """steps_per_s, cpu_ms: medians over the repeats; low, high: extremes of steps_per_s. A step is one env's."""

    contender: str
    mode: str
    num_envs: int
    steps_per_s: float
    low: float
    high: float
    cpu_ms: float
    repeats: int


class _Ours:
    def __init__(self, count: int, mode: Mode) -> None:
        task = load_suite(SUITE)[TASK]
        renderer = make_renderer("auto", [task.build_visual()])
        self.renderer = renderer.name
        self._env = MujocoVecEnv([task], count, image_size=IMAGE_SIZE, renderer=renderer)
        self._mode = mode
        self._slots = list(range(count))
        self._out = self._env.new_observation(count)
        self._task = task.name
        self._reset(self._slots)

    def _reset(self, env_ids: list[int]) -> None:
        self._env.reset(env_ids, [EpisodeSpec(env_id, self._task, 0, env_id) for env_id in env_ids])

    def run(self, actions: Array) -> int:
        """actions: [steps, N, 7]. Returns the number of control steps that really ran."""
        taken = 0
        for start in range(0, len(actions), CHUNK):
            if self._mode == "cameras":
                self._env.observe(self._slots, self._out)
            chunk = np.ascontiguousarray(actions[start : start + CHUNK].swapaxes(0, 1))
            result = self._env.step(self._slots, torch.from_numpy(chunk))
            taken += int(result.steps_taken.sum())
            ended = torch.nonzero(result.terminated | result.truncated | result.failed).flatten().tolist()
            if ended:
                self._reset(ended)
        return taken

    def cpu_seconds(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._env.close()


class _Gym:
    def __init__(self, kind: type[TaskEnv], processes: bool, count: int, mode: Mode) -> None:
        make = [partial(kind, SUITE, TASK, IMAGE_SIZE, mode == "cameras")] * count
        self._envs: Any = (
            gym.vector.AsyncVectorEnv(make, context="spawn") if processes else (gym.vector.SyncVectorEnv(make))
        )
        self._processes = processes
        self._envs.reset(seed=0)

    def run(self, actions: Array) -> int:
        for action in actions:
            self._envs.step(action)
        return actions.shape[0] * actions.shape[1]

    def cpu_seconds(self) -> float:
        children = sum(self._envs.call("cpu_seconds")) if self._processes else 0.0
        return time.process_time() + children

    def close(self) -> None:
        self._envs.close()


def _batch(count: int, mode: Mode) -> BatchContender:
    return BatchContender(SUITE, TASK, count, IMAGE_SIZE if mode == "cameras" else None)


_MAKERS: dict[str, Callable[[int, Mode], Any]] = {
    OURS: _Ours,
    SYNC: partial(_Gym, BindingsEnv, False),
    ASYNC: partial(_Gym, BindingsEnv, True),
    KERNEL_SYNC: partial(_Gym, KernelEnv, False),
    KERNEL_ASYNC: partial(_Gym, KernelEnv, True),
}
if has_batch():
    _MAKERS[BATCH] = _batch


def _measure(contender: Any, actions: Array) -> tuple[float, float]:
    """Control steps a second and CPU ms a step."""
    cpu, started = contender.cpu_seconds(), time.perf_counter()
    steps = contender.run(actions)
    seconds = time.perf_counter() - started
    return steps / seconds, 1e3 * (contender.cpu_seconds() - cpu) / steps


def _compare(count: int, mode: Mode, repeats: int, length: int, tick: Callable[[str], None]) -> list[Row]:
    """All contenders at one N in one mode, repeat by repeat in turn."""
    alive: dict[str, Any] = {}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in _MAKERS}
    rng = np.random.default_rng(0)
    try:
        for name, make in _MAKERS.items():
            tick(f"N={count}, {mode}: starting {name}")
            alive[name] = make(count, mode)
        for repeat in range(repeats + 1):  # the first one warms up
            actions = rng.uniform(-0.5, 0.5, (length, count, PANDA.action_dim)).astype(np.float32)
            for name, contender in alive.items():
                tick(f"N={count}, {mode}: {name}, repeat {repeat} of {repeats}")
                result = _measure(contender, actions)
                if repeat:
                    found[name].append(result)
    finally:
        for contender in alive.values():
            contender.close()
    rows = []
    for name, results in found.items():
        speeds, cpus = zip(*results, strict=True)
        speed, cpu = statistics.median(speeds), statistics.median(cpus)
        rows.append(Row(name, mode, count, speed, min(speeds), max(speeds), cpu, repeats))
    return rows


def _ratios(rows: list[Row]) -> dict[str, float]:
    speed = {(row.contender, row.mode, row.num_envs): row.steps_per_s for row in rows}
    return {
        f"{mode}_vs_{other.replace(' ', '_')}": speed[OURS, mode, RATIO_AT] / speed[other, mode, RATIO_AT]
        for mode in ("cameras", "physics")
        for other in _MAKERS
        if other != OURS
    }


def _table(rows: list[Row], renderer: str) -> Table:
    table = Table(title=f"{SUITE}, one task; renderer {renderer}; cameras: two of {IMAGE_SIZE}x{IMAGE_SIZE}")
    for name in ("N", "mode", "contender", "steps/s", "from-to", "CPU ms/step", "ours is"):
        table.add_column(name, justify="left" if name in ("mode", "contender") else "right")
    ours = {(row.mode, row.num_envs): row.steps_per_s for row in rows if row.contender == OURS}
    for row in sorted(rows, key=lambda r: (r.num_envs, r.mode)):
        faster = ours[row.mode, row.num_envs] / row.steps_per_s
        table.add_row(
            str(row.num_envs),
            row.mode,
            row.contender,
            f"{row.steps_per_s:.0f}",
            f"{row.low:.0f}-{row.high:.0f}",
            f"{row.cpu_ms:.2f}",
            "" if row.contender == OURS else f"{faster:.1f}x",
        )
    return table


def run(json_path: Path | None, quick: bool = False) -> None:
    """Print the table; write `rows`, flat `ratios` (at N = 8) and the machine to `json_path`.

    quick: N = 1 and 8, two short repeats; the figures are then only a smoke test.
    """
    console = Console()
    machine = describe_machine(("mujoco", "gymnasium", "numpy", "numba"))
    counts, repeats = (COUNTS[:2], 2) if quick else (COUNTS, 5)
    steps: dict[Mode, int] = {"physics": CHUNK * (2 if quick else 6), "cameras": CHUNK * (1 if quick else 3)}
    rows: list[Row] = []
    first = _Ours(1, "cameras")
    renderer = first.renderer
    first.close()
    columns = (TextColumn("[progress.description]{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        line = progress.add_task("starting")
        for count in counts:
            for mode, length in steps.items():
                rows += _compare(count, mode, repeats, length, lambda text: progress.update(line, description=text))
    console.print(_table(rows, renderer))
    for name, meaning in CONTENDERS.items():
        console.print(f"  {name:13s}{meaning}", highlight=False)
    ratios = _ratios(rows)
    console.print(f"at N={RATIO_AT}: " + ", ".join(f"{name} {value:.1f}" for name, value in ratios.items()))
    console.print(machine_line(machine))
    if json_path is not None:
        write_json(
            json_path,
            "sim",
            quick,
            machine,
            [asdict(row) for row in rows],
            ratios,
            setup={"renderer": renderer, "chunk": CHUNK},
            contenders=CONTENDERS,
        )

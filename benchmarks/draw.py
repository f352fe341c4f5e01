"""`embodied-rl bench draw`: how many observations a renderer draws in a second, for one thread and for many.

An observation is both cameras of a tabletop task; the threads draw the scenes of the suite's tasks in turn, as an
environment's envs do. Renderers of this machine: the CPU ray caster, and EGL where there is a library. With `--suites`
it shows cost and error of fast frames of LIBERO's tasks instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import mujoco
import numpy as np
from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks import draw_frames
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.render import Renderer, make_renderer, probe
from embodied_rl.sim.render.choose import RendererName
from embodied_rl.utils.machine import cpu_count

SUITE = "tabletop_spatial"
SIZES = (64, 128, 256)
SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """per_s: observations of all threads; cpu_ms: CPU time of one."""

    renderer: str
    size: int
    threads: int
    per_s: float
    cpu_ms: float


class Scenes:
    """The suite's scenes, each with its robot a little elsewhere."""

    def __init__(self) -> None:
        self.models = [task.build_visual() for task in load_tasks(SUITE)]
        self.data = [mujoco.MjData(model) for model in self.models]
        for number, (model, data) in enumerate(zip(self.models, self.data, strict=True)):
            data.qpos[:7] += 0.05 * number
            mujoco.mj_forward(model, data)


def measure(scenes: Scenes, renderer: Renderer, size: int, threads: int, seconds: float) -> Row:
    """Draw for so long, after every thread has drawn every scene once."""
    numbers = [renderer.add_scene(model) for model in scenes.models]
    ready = threading.Barrier(threads + 1)
    counts, stop = [0] * threads, threading.Event()

    def work(thread: int) -> None:
        try:
            draw_on(thread)
        except BaseException:
            ready.abort()  # or the others would wait for this one
            raise

    def draw_on(thread: int) -> None:
        out = np.zeros((len(PANDA.cameras), size, size, 3), np.uint8)

        def draw(turn: int) -> None:
            scene = turn % len(numbers)
            data = scenes.data[scene]
            renderer.render(numbers[scene], data.xpos, data.xmat, PANDA.cameras, out)

        for turn in range(len(numbers)):
            draw(turn)
        ready.wait()
        while not stop.is_set():
            draw(thread + counts[thread])
            counts[thread] += 1

    with ThreadPoolExecutor(threads) as pool:
        others = [pool.submit(work, thread) for thread in range(threads)]
        try:
            with suppress(threading.BrokenBarrierError):
                ready.wait()
            began, used = time.perf_counter(), time.process_time()
            wait(others, seconds, FIRST_EXCEPTION)
        finally:
            stop.set()
    for other in sorted(others, key=lambda other: isinstance(other.exception(), threading.BrokenBarrierError)):
        other.result()
    wall, cpu, drawn = time.perf_counter() - began, time.process_time() - used, max(1, sum(counts))
    for number in numbers:
        renderer.remove_scene(number)
    return Row(renderer.name, size, threads, drawn / wall, 1e3 * cpu / drawn)


def ratios_of(rows: Sequence[Row]) -> dict[str, float]:
    """<renderer>_<size>: observations a second of as many threads as there are cores; _alone: of one thread."""
    most = max(row.threads for row in rows)
    found = {f"{row.renderer}_{row.size}_alone": row.per_s for row in rows if row.threads == 1}
    return found | {f"{row.renderer}_{row.size}": row.per_s for row in rows if row.threads == most}


def run(json_path: Path | None, quick: bool = False, suites: Sequence[str] = ()) -> None:
    """Print the table; write `rows`, flat `ratios` and the machine to `json_path`. quick: one size, briefly.

    suites: of LIBERO: cost and error of fast frames of them instead (see `draw_frames`).
    """
    if suites:
        draw_frames.run(json_path, quick, suites)
        return
    console = Console()
    machine = describe_machine(("mujoco", "numba"))
    scenes, egl = Scenes(), probe("egl")
    names: tuple[RendererName, ...] = ("raycast", "egl") if egl.state != "missing" else ("raycast",)
    table = Table("renderer", "pixels", "threads", "observations/s", "CPU ms", title=f"drawing {SUITE}, two cameras")
    rows: list[Row] = []
    for name in names:
        renderer = make_renderer(name, ())
        for size in SIZES[:1] if quick else SIZES:
            for threads in sorted({1, cpu_count()}):
                rows.append(measure(scenes, renderer, size, threads, 0.1 if quick else SECONDS))
                table.add_row(name, str(size), str(threads), f"{rows[-1].per_s:.0f}", f"{rows[-1].cpu_ms:.2f}")
    console.print(table)
    console.print(f"  EGL: {egl.state}, {egl.device}", highlight=False, soft_wrap=True)
    console.print(machine_line(machine))
    if json_path is not None:
        setup = {"egl": egl.state, "egl_device": egl.device, "suite": SUITE, "scenes": len(scenes.models)}
        write_json(json_path, "draw", quick, machine, [asdict(row) for row in rows], ratios_of(rows), setup=setup)

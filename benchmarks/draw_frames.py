"""`embodied-rl bench draw --suites ...`: cost and error of fast frames of LIBERO's tasks, beside plain OpenGL ones.
With MuJoCo Warp installed also those of its renderer, with shadows and antialiasing, a batch at a time.

Every task is drawn in a few poses by both cameras: as the official code does (`exact`), with OSMesa and nothing but
antialiasing, reflections and haze left out (`plain`), and by the CPU rasteriser (`fast`). All of a task is measured in
one go, so that load on the machine meets them alike. A task that is done is kept beside the JSON file, and a run that
was stopped goes on where it was.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import LIBERO_SUITES, bundles_digest, ladders_dir, load_tasks
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.render import Renderer, make_renderer
from embodied_rl.sim.source import source_digest
from embodied_rl.types import Array
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.suites import OFFICIAL_SUITES

SIZES = (64, 128)
KINDS = ("plain", "fast") if find_spec("mujoco_warp") is None else ("plain", "fast", "warp")
_POSES = 2
_REPEATS = {"exact": 1, "plain": 2, "fast": 5}
_ARM = 0.25
"""Radians by which the arm's joints are moved in every second pose, at most."""


@dataclass(frozen=True, slots=True)
class Row:
    """One task: CPU ms of a pair of cameras by a kind of frames; PSNR (dB) and mean absolute difference (of 255) to the
    exact ones."""

    task: str
    size: int
    kind: str
    cpu_ms: float
    psnr: float
    difference: float


def joint_positions(task: MujocoTask, model: mujoco.MjModel) -> Array:
    """float64 [poses, nq] of training states; every second one has its arm moved."""
    found = task.init_states[list(task.train_states)[:_POSES], 1 : 1 + model.nq].copy()
    for number in range(1, _POSES, 2):
        found[number, :7] += np.random.default_rng(number).uniform(-_ARM, _ARM, 7)
    return found


def poses(qpos: Array, model: mujoco.MjModel) -> list[tuple[Array, Array]]:
    """Body positions and rotations at each of these joint positions, float64 [poses, nq]."""
    data, found = mujoco.MjData(model), []
    for at in qpos:
        data.qpos[:] = at
        mujoco.mj_kinematics(model, data)
        found.append((data.xpos.copy(), data.xmat.copy()))
    return found


def draw(
    renderer: Renderer, model: mujoco.MjModel, where: Sequence[tuple[Array, Array]], sizes: Sequence[int], repeats: int
) -> dict[int, tuple[Array, float]]:
    """By size: frames uint8 [poses, V, size, size, 3], and the median CPU ms of a pair, the first left out."""
    scene, found = renderer.add_scene(model), {}
    for size in sizes:
        frames, spent = np.zeros((len(where), len(PANDA.cameras), size, size, 3), np.uint8), []
        renderer.render(scene, *where[0], PANDA.cameras, frames[0])
        for _ in range(repeats):
            for (xpos, xmat), out in zip(where, frames, strict=True):
                began = time.process_time()
                renderer.render(scene, xpos, xmat, PANDA.cameras, out)
                spent.append(1e3 * (time.process_time() - began))
        found[size] = frames, float(np.median(spent))
    renderer.remove_scene(scene)
    return found


def draw_by_warp(model: mujoco.MjModel, qpos: Array, sizes: Sequence[int]) -> dict[int, tuple[Array, float]]:
    """As `draw`, by MuJoCo Warp on the CPU, all poses at once."""
    from embodied_rl.sim.warp.batch import Settings
    from embodied_rl.sim.warp.render import SceneRenderer, View

    renderer, found = SceneRenderer(model, len(qpos), Settings("cpu", graph=False, deterministic=False)), {}
    for size in sizes:
        view = View(PANDA.cameras, size, exact=True)
        renderer.draw(torch.from_numpy(qpos), view)
        began = time.process_time()
        frames = renderer.draw(torch.from_numpy(qpos), view).numpy()
        found[size] = frames, 1e3 * (time.process_time() - began) / len(qpos)
    return found


def psnr(frames: Array, reference: Array) -> float:
    """Peak signal-to-noise ratio of uint8 images, dB: the mean over poses and cameras, 60 for equal ones."""
    square = ((frames.astype(np.float64) - reference) ** 2).mean((-3, -2, -1))
    return float(np.minimum(10 * np.log10(255**2 / np.maximum(square, 1e-9)), 60).mean())


def measure(task: MujocoTask, renderers: dict[str, Renderer], sizes: Sequence[int]) -> list[Row]:
    """Rows of one task. renderers: 'exact' and those of KINDS."""
    model = task.build_visual()
    qpos = joint_positions(task, model)
    where = poses(qpos, model)
    drawn = {kind: draw(renderers[kind], model, where, sizes, repeats) for kind, repeats in _REPEATS.items()}
    if "warp" in KINDS:
        drawn["warp"] = draw_by_warp(model, qpos, sizes)
    rows = []
    for size in sizes:
        exact, _ = drawn["exact"][size]
        for kind in KINDS:
            frames, spent = drawn[kind][size]
            difference = float(np.abs(frames.astype(np.float64) - exact).mean())
            rows.append(Row(task.name, size, kind, spent, psnr(frames, exact), difference))
    return rows


def read_kept(kept: Path, stamp: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Rows by task of a stopped run (JSON lines: the stamp, then a task a line).

    Raises:
        UserError: The file is of a run of another stamp (machine, simulator, suites), or damaged before its last line.
    """
    done: dict[str, list[Row]] = {}
    try:
        lines = kept.read_text(encoding="utf-8").split("\n") if kept.exists() else []
        found = [json.loads(line) for line in lines[:-1]]  # what was being written when it was killed has no line end
        if found and found[0] != stamp:
            others = ", ".join(key for key in {**stamp, **found[0]} if found[0].get(key) != stamp.get(key))
            raise UserError(f"{kept} is of another run (differs in: {others}); remove it or choose another --json")
        for rows in found[1:]:
            done[rows[0]["task"]] = [Row(**row) for row in rows]
    except (ValueError, TypeError, LookupError) as error:
        raise UserError(f"{kept} is damaged ({error!r}); remove it") from None
    return done


def measure_all(
    tasks: Sequence[MujocoTask], kept: Path | None, sizes: Sequence[int], stamp: Mapping[str, Any]
) -> list[Row]:
    """Rows of all tasks; those in `kept` (see `read_kept`) are not measured again, new ones are added."""
    done = read_kept(kept, stamp) if kept is not None else {}
    if kept is not None:
        lines = [stamp, *([asdict(row) for row in rows] for rows in done.values())]
        replace_text(kept, "".join(json.dumps(line) + "\n" for line in lines))
    renderers: dict[str, Renderer] = {
        "exact": make_renderer("osmesa", (), images=True),
        "plain": make_renderer("osmesa", ()),
        "fast": make_renderer("raster", (), ladders=ladders_dir()),
    }
    for task in track([t for t in tasks if t.name not in done], "drawing"):
        rows = measure(task, renderers, sizes)
        done[task.name] = rows
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([asdict(row) for row in rows]) + "\n")
    return [row for task in tasks for row in done[task.name]]


def summary(rows: Sequence[Row], suite: str, size: int) -> dict[str, float | str]:
    """Means over a suite's tasks ('' is all), CPU ratio of plain to fast frames, and the task that is drawn worst."""
    found: dict[str, float | str] = {}
    for kind in KINDS:
        mine = [row for row in rows if (row.size, row.kind) == (size, kind) and row.task.startswith(suite)]
        for name in ("cpu_ms", "psnr", "difference"):
            found[f"{kind}_{name}"] = float(np.mean([getattr(row, name) for row in mine]))
        worst = min(mine, key=lambda row: row.psnr)
        found["tasks"], found[f"{kind}_worst"], found[f"{kind}_worst_psnr"] = len(mine), worst.task, worst.psnr
    found["ratio"] = float(found["plain_cpu_ms"]) / float(found["fast_cpu_ms"])
    return found


def comparison(found: Mapping[str, float | str], size: int) -> str:
    """What fast frames save and cost, by a `summary`."""
    return (
        f"at {size} pixels fast frames take {found['ratio']:.1f} times less CPU than plain OSMesa, "
        f"PSNR {found['fast_psnr']:.2f} against {found['plain_psnr']:.2f} dB; "
        f"worst: {found['fast_worst']} ({found['fast_worst_psnr']:.1f} dB)"
    )


def run(json_path: Path | None, quick: bool, suites: Sequence[str]) -> None:
    """Print the table by suite; write rows, flat ratios and the machine to `json_path`.

    quick: the first task of each suite. suites: of LIBERO or LIBERO-PRO, or "all": LIBERO's five.
    """
    names = OFFICIAL_SUITES if "all" in suites else tuple(dict.fromkeys(suites))
    if unknown := [name for name in names if name not in LIBERO_SUITES]:
        raise UserError(f"bench draw --suites: '{unknown[0]}' is not one of LIBERO's: {', '.join(LIBERO_SUITES)}, all")
    suite_tasks = [load_tasks(name)[: 1 if quick else None] for name in names]
    # the first of each suite, then the second: a run that is stopped has seen all suites
    tasks = [task for row in zip_longest(*suite_tasks) for task in row if task is not None]
    kept = json_path.with_suffix(".tasks.jsonl") if json_path is not None else None
    machine = describe_machine(("mujoco", "numba"))
    stamp = {
        "machine": {key: value for key, value in machine.items() if key != "load_before"},
        "simulator": source_digest(),
        "bundles": bundles_digest(tasks),
        "kinds": list(KINDS),
        "suites": list(names),
        "sizes": list(SIZES),
        "poses": _POSES,
        "repeats": _REPEATS,
    }
    rows = measure_all(tasks, kept, SIZES, stamp)
    table = Table(
        Column("suite", overflow="fold"), "tasks", "pixels", "frames", "CPU ms", "PSNR", "difference",
        title="LIBERO's frames, two cameras, against the exact ones",
    )  # fmt: skip
    lines: list[str] = []
    ratios: dict[str, float] = {}
    for size in SIZES:
        for suite in (*names, *([""] if len(names) > 1 else [])):
            found = summary(rows, suite and f"{suite}/", size)
            label = suite or "all"
            ratios |= {f"{label}_{size}_{key}": value for key, value in found.items() if isinstance(value, float)}
            for kind in KINDS:
                table.add_row(
                    label, str(found["tasks"]), str(size), kind, f"{found[f'{kind}_cpu_ms']:.2f}",
                    f"{found[f'{kind}_psnr']:.1f}", f"{found[f'{kind}_difference']:.2f}",
                )  # fmt: skip
        lines.append(comparison(summary(rows, "", size), size))
    console = Console()
    console.print(table)
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(machine_line(machine))
    if json_path is not None:
        setup = {"suites": list(names), "tasks": len(tasks), "poses": _POSES, "cameras": len(PANDA.cameras)}
        write_json(json_path, "draw", quick, machine, [asdict(row) for row in rows], ratios, setup=setup)
    if kept is not None:
        kept.unlink()

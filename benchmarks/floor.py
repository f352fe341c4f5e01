"""How far a control step is from its floor: 25 bare mj_step calls on the same states with the same controls.

`profile` measures one scene, `table` prints several; as a script, on the golden scenes:
    python -m embodied_rl.benchmarks.floor ../shared/golden/given

CPU time of one thread, medians over repeats that take turns. The parts are measured alone, so they don't sum up
exactly.
"""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself
from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np
from numba import njit
from rich.console import Console
from rich.table import Table

from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.borrow import borrowed
from embodied_rl.sim.mujoco.env import ControllerMode, Env, find_robot
from embodied_rl.sim.mujoco.mjlib import mj_jac_site, mj_step, mj_step1, mj_step2
from embodied_rl.types import Array

STEPS, REPEATS = 80, 7


@dataclass(frozen=True, slots=True)
class Profile:
    """CPU milliseconds a control step. floor: 25 mj_step; halves: 25 mj_step1 and mj_step2; jacobian: 25 mj_jacSite.

    seen: copying what an observation shows; exact, fast: all of a control step; calls: what entering the kernel from
    Python costs, which a chunk pays once.
    """

    scene: str
    nv: int
    floor: float
    halves: float
    jacobian: float
    seen: float
    exact: float
    fast: float
    calls: float

    @property
    def ratio(self) -> float:
        """The default mode over the floor."""
        return self.exact / self.floor


@njit(nogil=True)
def _bare(model: int, data: int, ctrl: Array, controls: Array) -> None:
    for t in range(controls.shape[0]):
        for s in range(controls.shape[1]):
            ctrl[:] = controls[t, s]
            mj_step(model, data)


@njit(nogil=True)
def _halves(model: int, data: int, ctrl: Array, controls: Array) -> None:
    for t in range(controls.shape[0]):
        for s in range(controls.shape[1]):
            mj_step1(model, data)
            ctrl[:] = controls[t, s]
            mj_step2(model, data)


@njit(nogil=True)
def _jacobians(model: int, data: int, pos: Array, rot: Array, site: int, count: int) -> None:
    for _ in range(count):
        mj_jac_site(model, data, pos.ctypes.data, rot.ctypes.data, site)


@njit(nogil=True)
def _see(robot: kernel.Robot, view: kernel.MjView, seen: kernel.RenderState, count: int) -> None:
    robot, view, seen = borrowed((robot, view, seen))  # as the kernel does
    for _ in range(count):
        kernel.see_bodies(robot, view, seen)
        kernel.see_joints(robot, view, seen)


def profile(
    scene: str,
    model: mujoco.MjModel,
    state: Array,
    actions: Array,
    start: Mapping[str, Array] | None = None,
    repeats: int = REPEATS,
) -> Profile:
    """Measure one scene from one initial state [1 + nq + nv] under actions float [T, 7]; start: see World.reset."""
    robot = find_robot(model)
    modes: tuple[ControllerMode, ...] = ("exact", "fast")
    envs = {mode: Env(model, robot, None, mode) for mode in modes}
    bare = envs["exact"]
    controls = np.zeros((len(actions), kernel.SUBSTEPS, model.nu))
    bare.reset(state, start)
    for t in range(len(actions)):
        bare.run(actions[t : t + 1], applied=controls[t])
    address, data = model._address, bare.data
    jac = np.zeros((2, 3, model.nv))
    nothing = actions[:0]

    def run(mode: ControllerMode) -> Callable[[], object]:
        return lambda: envs[mode].run(actions)

    def enter() -> None:
        for _ in range(len(actions)):
            bare.run(nothing)

    jobs: dict[str, tuple[Env, Callable[[], object]]] = {
        "floor": (bare, lambda: _bare(address, data._address, data.ctrl, controls)),
        "halves": (bare, lambda: _halves(address, data._address, data.ctrl, controls)),
        "jacobian": (
            bare,
            lambda: _jacobians(address, data._address, jac[0], jac[1], robot.site, controls[..., 0].size),
        ),
        "seen": (bare, lambda: _see(robot, bare._view, bare.seen, len(actions))),
        "exact": (envs["exact"], run("exact")),
        "fast": (envs["fast"], run("fast")),
        "calls": (bare, enter),
    }
    found: dict[str, list[float]] = {name: [] for name in jobs}
    for repeat in range(repeats + 1):  # the first one warms up
        for name, (env, job) in jobs.items():
            env.reset(state, start)
            before = time.thread_time()
            job()
            if repeat:
                found[name].append(1e3 * (time.thread_time() - before) / len(actions))
    return Profile(scene, model.nv, **{name: statistics.median(values) for name, values in found.items()})


def table(profiles: list[Profile]) -> Table:
    """CPU ms a control step, one scene a row, and medians of the ratios to the floor."""
    shown = Table(title="CPU ms a control step (25 substeps); floor: 25 bare mj_step")
    names = ("nv", "floor", "halves", "jacobian", "fast", "exact", "calls", "fast/floor", "exact/floor")
    shown.add_column("scene", max_width=60)
    for name in names:
        shown.add_column(name, justify="right")
    for p in profiles:
        times = (p.floor, p.halves, p.jacobian, p.fast, p.exact, p.calls)
        shown.add_row(p.scene, str(p.nv), *(f"{x:.3f}" for x in times), f"{p.fast / p.floor:.2f}", f"{p.ratio:.2f}")
    medians = [statistics.median(p.fast / p.floor for p in profiles), statistics.median(p.ratio for p in profiles)]
    shown.add_row("median", *[""] * 7, *(f"{x:.2f}" for x in medians), end_section=True)
    return shown


def golden(folder: Path) -> list[Profile]:
    """One profile a golden task: its second episode, which has the most contacts."""
    from embodied_rl.sim.libero.recorded import load_scene

    profiles = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            episode = {name.removeprefix("ep1_"): arrays[name] for name in arrays if name[:4] in ("ep1_", "mode")}
        model = load_scene(path.with_suffix(".xml"), episode)
        profiles.append(profile(path.stem, model, episode["init_state"], episode["action"][:STEPS], episode))
    return profiles


if __name__ == "__main__":
    Console(width=150).print(table(golden(Path(sys.argv[1]))))

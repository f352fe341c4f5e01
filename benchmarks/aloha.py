"""`embodied-rl bench aloha`: what a control step and a picture cost: ours, bare `mj_step`, and gym-aloha itself.

Steps: CPU milliseconds of a control step of one of 8 envs without pictures, on the scripted expert's actions, against
ten `mj_step`s with the same controls in the same mjData, and against gym-aloha's own `step` with the smallest picture
that it can be asked for (it draws two more of 640 x 480 in every step all the same). Pictures: of two cameras, by the
rasteriser and by EGL. Expert: how many episodes from held-out states it solves.

gym-aloha runs in an environment of its own, with the MuJoCo that it asks for.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import venv
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import mujoco
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.benchmarks.timing import interleaved
from embodied_rl.errors import UserError
from embodied_rl.sim.aloha.expert import Expert
from embodied_rl.sim.aloha.factory import Setup, aloha_factory
from embodied_rl.sim.aloha.robot import ROBOT
from embodied_rl.sim.aloha.tasks import HORIZON, load_tasks
from embodied_rl.sim.libero.install.pip import pip
from embodied_rl.sim.mujoco.joint_env import find_joint_robot
from embodied_rl.sim.pinned_wheel import ALOHA
from embodied_rl.sim.render import Renderer, make_renderer, probe
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.suites import ALOHA_SUITES

NUM_ENVS, REPEATS, STEPS = 8, 7, 200
CAMERAS, SIZE = ("top", "left_wrist"), 128
_OFFICIAL = """
import json, sys, time
import gymnasium, mujoco, numpy as np
import gym_aloha
env = gymnasium.make("gym_aloha/AlohaTransferCube-v0", obs_type="pixels_agent_pos",
                     observation_width=1, observation_height=1, visualization_width=1, visualization_height=1)
actions = np.array(json.load(sys.stdin))
env.reset(seed=0)
for action in actions[:3]:
    env.step(action)
began = time.process_time()
for action in actions[3:13]:
    env.step(action)
print(json.dumps({"mujoco": mujoco.__version__, "ms": 1e3 * (time.process_time() - began) / 10}))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """CPU milliseconds of one `what`, and how many times ours that is."""

    what: str
    cpu_ms: float
    times_ours: float


def expert_actions(suite: str, seed: int) -> tuple[Array, bool]:
    """The expert's actions from the official state of a seed, float32 [T, 14], and whether it succeeded."""
    actions = []
    task = load_tasks(suite)[0]
    with closing(aloha_factory(suite, (), Setup(reward="success", threads=1))(1)) as env:
        env.reset([0], [EpisodeSpec(0, task.name, seed, 0)])
        expert = Expert(suite, env.model(0))
        for _ in range(HORIZON):
            actions.append(expert.act(env.state([0])[0].numpy()).astype(np.float32))
            result = env.step([0], torch.from_numpy(actions[-1][None, None]))
            if result.terminated[0] or result.failed[0]:
                break
    return np.stack(actions), bool(result.success[0])


def _bare(suite: str, actions: Array) -> Callable[[], None]:
    """Ten mj_steps a control step of 8 mjData, whose controls are ready; every call begins at the start."""
    task = load_tasks(suite)[0]
    model = task.build_physics()
    drives = find_joint_robot(task.robot, model).drives
    controls = np.empty((len(actions), model.nu))
    controls[:, drives.actuator] = drives.scale * actions[:, drives.source].astype(np.float64) + drives.offset
    all_data = [mujoco.MjData(model) for _ in range(NUM_ENVS)]

    def run() -> None:
        for seed, data in enumerate(all_data):
            mujoco.mj_resetData(model, data)
            data.qpos[:] = task.init_states[seed][1 : 1 + model.nq]
            mujoco.mj_forward(model, data)
            for control in controls:
                data.ctrl[:] = control
                mujoco.mj_step(model, data, nstep=10)

    return run


def measure_steps(suite: str, official: Path, repeats: int) -> list[Row]:
    """Of a control step of one env; official: the Python of gym-aloha's environment."""
    found, _ = expert_actions(suite, 0)
    actions = found[:STEPS]
    name = load_tasks(suite)[0].name
    factory = aloha_factory(suite, (), Setup(reward="native", threads=1))
    with closing(factory(NUM_ENVS)) as env:

        def ours() -> None:
            env.reset(range(NUM_ENVS), [EpisodeSpec(i, name, i, 0) for i in range(NUM_ENVS)])
            for first in range(0, len(actions), 8):
                chunk = torch.from_numpy(actions[first : first + 8])
                env.step(range(NUM_ENVS), chunk.expand(NUM_ENVS, -1, -1))

        times, _ = interleaved({"ours": ours, "bare": _bare(suite, actions)}, repeats, NUM_ENVS * len(actions))
    own, bare = (statistics.median(times[key]) for key in ("ours", "bare"))
    rows = [Row(f"{suite}: ours", own, 1.0), Row(f"{suite}: ten mj_steps", bare, bare / own)]
    if suite == ALOHA_SUITES[0]:
        asked, words = json.dumps(actions.tolist()), [str(official), "-c", _OFFICIAL]
        said = subprocess.run(words, input=asked, capture_output=True, text=True, check=False)
        if said.returncode:
            raise UserError(f"{official} can't run gym-aloha: {said.stderr.strip().splitlines()[-1]}")
        theirs = json.loads(said.stdout.splitlines()[-1])
        rows.append(Row(f"{suite}: gym-aloha, mujoco {theirs['mujoco']}", theirs["ms"], theirs["ms"] / own))
    return rows


def measure_pictures(repeats: int) -> list[Row]:
    """Of two cameras of one env; EGL where there is a library."""
    task = load_tasks(ALOHA_SUITES[0])[0]
    model, data = task.build_visual(), mujoco.MjData(task.build_physics())
    renderers: dict[str, Renderer] = {"raster": make_renderer("raster", (), ladders=ALOHA.root() / "ladders")}
    if probe("egl").state != "missing":
        renderers["egl"] = make_renderer("egl", [model])
    actions, _ = expert_actions(ALOHA_SUITES[0], 0)
    poses = []
    drives = find_joint_robot(task.robot, model).drives
    data.qpos[:] = task.init_states[0][1 : 1 + model.nq]
    for action in actions[::10]:
        data.qpos[model.jnt_qposadr[model.actuator_trnid[drives.actuator, 0]]] = (
            drives.scale * action[drives.source] + drives.offset
        )
        mujoco.mj_forward(model, data)
        poses.append((data.xpos.copy(), data.xmat.copy()))

    def draw(renderer: Renderer) -> Callable[[], None]:
        scene, out = renderer.add_scene(model), np.zeros((len(CAMERAS), SIZE, SIZE, 3), np.uint8)

        def run() -> None:
            for xpos, xmat in poses:
                renderer.render(scene, xpos, xmat, CAMERAS, out)

        return run

    work = {name: draw(renderer) for name, renderer in renderers.items()}
    times, _ = interleaved(work, repeats, len(poses))
    own = statistics.median(times["raster"])
    size = f"{len(CAMERAS)} pictures of {SIZE} px"
    medians = {name: statistics.median(found) for name, found in times.items()}
    return [Row(f"{size}: {name}", ms, ms / own) for name, ms in medians.items()]


def _python_of(environment: Path) -> Path:
    """The Python of an environment with gym-aloha, which is made where the folder is new."""
    python = environment / "bin" / "python"
    if not python.exists():
        venv.EnvBuilder(with_pip=True).create(environment)
        wanted = f"{ALOHA.package}=={ALOHA.version}"
        pip(python, "install", "--quiet", wanted, what=f"install {wanted}", settings={"TMPDIR": str(environment)})
    return python


def run(json_path: Path | None, quick: bool, environment: Path | None = None) -> None:
    """Measure, print, and write the same figures.

    Args:
        json_path: file for the figures.
        quick: few repeats and episodes.
        environment: folder of gym-aloha's own environment; None: beside its scenes.
    """
    torch.set_num_threads(1)
    machine = describe_machine(("mujoco", "numba", "numpy"))
    repeats, episodes = (1, 2) if quick else (REPEATS, 50)
    official = _python_of(environment or ALOHA.root() / "environment")
    rows = [row for suite in ALOHA_SUITES for row in measure_steps(suite, official, repeats)]
    rows += measure_pictures(repeats)
    heldout = {suite: load_tasks(suite)[0].heldout_states[:episodes] for suite in ALOHA_SUITES}
    solved = {suite: sum(expert_actions(suite, seed)[1] for seed in seeds) for suite, seeds in heldout.items()}
    table = Table("", "CPU ms", "times ours", title=f"ALOHA, {ROBOT.action_dim} numbers at {ROBOT.control_hz:g} Hz")
    for row in rows:
        table.add_row(row.what, f"{row.cpu_ms:.3f}", f"{row.times_ours:.2f}")
    console = Console()
    console.print(table, machine_line(machine))
    for suite, count in solved.items():
        console.print(f"{suite}: the expert solves {count} of {episodes} held-out states")
    if json_path is not None:
        ratios = {row.what: row.times_ours for row in rows if row.times_ours != 1.0}
        write_json(json_path, "aloha", quick, machine, [asdict(row) for row in rows], ratios, solved=solved)

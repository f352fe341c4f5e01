"""Compares our pictures and states with the official ones, frame by frame, on this machine.

    python -m embodied_rl.sim.libero.assets.compare --from DIR --tasks libero_90/NAME ... [--environment DIR]

Runs the official environment (OSMesa) and NativeVecEnv ('exact') from the same initial state with the same actions.
Missing asset files have the same stand-ins on both sides. Prints a line a task; the exit code says whether every
difference is 0.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.assets.environment import Environment
from embodied_rl.sim.libero.assets.export import Official
from embodied_rl.sim.libero.assets.sources import find_assets
from embodied_rl.sim.libero.tasks import LiberoTask, load_task
from embodied_rl.sim.mujoco.indicators import FIRST_GROUP
from embodied_rl.sim.mujoco.vec_env import CAMERAS, NativeVecEnv
from embodied_rl.sim.render.gl import GlRenderer
from embodied_rl.types import Array, EpisodeSpec


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest absolute differences over all frames of a task.

    drawn: pictures that we draw from the official body poses; seen: pictures of our own run; qpos: of our own run.
    """

    frames: int
    drawn: int
    seen: int
    qpos: float


def record_official(official: Official, names: list[str], size: int, steps: int) -> None:
    """Run the official environment on tasks 'suite/name'; writes official.scratch/suite/name.npz."""
    official.link_assets()
    script = Path(__file__).with_name("official") / "frames.py"
    # OpenBLAS rounds differently from processor to processor; 'exact' reproduces the golden data's, its AVX2 kernels.
    settings = {
        **official.settings(),
        "MUJOCO_GL": "osmesa",
        "PYOPENGL_PLATFORM": "osmesa",
        "OPENBLAS_CORETYPE": "Haswell",
    }
    words = [str(script), str(official.assets), str(official.scratch), str(size), str(steps), *names]
    log = official.scratch / "frames.log"
    with open(log, "w", encoding="utf-8") as errors:
        command = [str(official.environment.python), "-s", *words]
        done = subprocess.run(command, env=settings, stderr=errors, check=False)
    if done.returncode:
        raise UserError(f"the official environment failed: {log.read_text().strip().splitlines()[-1]}; see {log}")


def compare(task: LiberoTask, recorded: dict[str, Array]) -> Difference:
    """How far our pictures and states are from `recorded` (see official/frames.py)."""
    images = recorded["images"]
    size = images.shape[2]
    renderer = GlRenderer("osmesa", pictures=True)
    scene, out = renderer.add_scene(task.build_visual()), np.empty_like(images[0])
    drawn = 0
    sites = [task.build_visual().site(each.site).id for each in task.indicators]
    for image, xpos, xmat, alpha in zip(
        images, recorded["xpos"], recorded["xmat"], recorded["site_alpha"], strict=True
    ):
        lit = tuple(FIRST_GROUP + i for i, site in enumerate(sites) if alpha[site] > 0)
        renderer.render(scene, xpos, xmat, CAMERAS, out, lit)
        drawn = max(drawn, _gap(out, image))
    env = NativeVecEnv(
        [task], 1, image_size=size, renderer=renderer, threads=1, controller="exact", stop_at_success=False
    )
    env.reset([0], [EpisodeSpec(0, task.name, 0, 0)])
    seen, qpos, row = 0, 0.0, env.new_observation(1)
    for t, image in enumerate(images):
        if t:
            env.step([0], torch.from_numpy(recorded["actions"][None, t - 1 : t]))
            qpos = max(qpos, float(np.abs(env.data(0).qpos - recorded["qpos"][t - 1]).max()))
        env.observe([0], row)
        seen = max(seen, _gap(row.images[0].numpy(), image))
    env.close()
    return Difference(len(images), drawn, seen, qpos)


def _gap(a: Array, b: Array) -> int:
    return int(np.abs(a.astype(np.int16) - b.astype(np.int16)).max())


def main() -> int:
    """Run the comparison; 0 when every difference is 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True, help="where the bundles are")
    parser.add_argument("--environment", type=Path, help="an isolated environment to use and keep")
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        environment = Environment(options.environment or Path(folder) / "environment")
        environment.build()
        scratch = Path(os.path.realpath(folder))
        official = Official(environment, find_assets(options.source), True, scratch)
        record_official(official, options.tasks, options.size, options.steps)
        for name in options.tasks:
            task = load_task(options.root, name)
            with np.load(scratch / f"{name}.npz") as arrays:
                difference = compare(task, dict(arrays))
            whole = "whole" if not task.approximate else f"{len(task.approximate)} stand-ins"
            print(f"{name}: {whole}, {difference}", flush=True)
            worst = max(worst, difference.drawn, difference.seen, difference.qpos)
    return 0 if worst == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main())

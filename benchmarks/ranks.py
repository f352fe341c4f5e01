"""`embodied-rl bench ranks`: the training loop in two ranks of one thread each, against one process with two threads.

Both are the command `embodied-rl train tabletop` with the same envs, episodes and seed, on the CPU, and take turns.
There is nothing to win here, as both use the same cores: the ratio shows what dealing, exchanging and summing cost.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.errors import UserError

ITERATIONS, ROUNDS = 3, 3
ONE, TWO = "1 process, 2 threads", "2 ranks, 1 thread each"
_OPTIONS = (
    *("--videos", "0", "--evaluation.every", "0", "--evaluation.states-per-task", "1"),
    *("--num-threads", "2", "--env.num-threads", "2", "--device", "cpu"),
)


@dataclass(frozen=True, slots=True)
class RanksRow:
    """One run: decisions a second of each iteration after the first."""

    name: str
    decisions_per_s: list[float]


def run(json_path: Path | None, quick: bool) -> None:
    """Measure both, in turns, and print the table.

    Raises:
        UserError: a run failed.
    """
    rounds = 1 if quick else ROUNDS
    machine = describe_machine(("torch", "mujoco"))
    rows = [_train(name, ranks, quick) for _ in range(rounds) for name, ranks in ((ONE, 1), (TWO, 2))]
    table = Table("", "decisions/s, median", "lowest to highest")
    medians = {}
    for name in (ONE, TWO):
        speeds = [speed for row in rows if row.name == name for speed in row.decisions_per_s]
        medians[name] = statistics.median(speeds)
        table.add_row(name, f"{medians[name]:.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}")
    console = Console()
    console.print(table)
    ratio = medians[TWO] / medians[ONE]
    console.print(f"2 ranks / 1 process: {ratio:.2f}. {machine_line(machine)}", soft_wrap=True, highlight=False)
    if json_path is not None:
        write_json(json_path, "ranks", quick, machine, [asdict(row) for row in rows], {"ranks_over_process": ratio})


def _train(name: str, ranks: int, quick: bool) -> RanksRow:
    iterations, episodes, envs = (2, 4, 2) if quick else (1 + ITERATIONS, 16, 16)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        sizes = ("--iterations", iterations, "--rollout.episodes-per-iteration", episodes, "--env.num-envs", envs)
        options = ("--learner.num-processes", ranks, "--checkpoint.every", iterations, "--output", out)
        command = [sys.executable, "-m", "embodied_rl", "train", "tabletop", *map(str, (*sizes, *options)), *_OPTIONS]
        # in sessions of their own, as ranks are: Linux shares cores out by session
        done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
        if done.returncode:
            raise UserError(f"{name} failed: {done.stderr.strip()[-300:]}")
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        speeds = [line["speed/decisions_per_s"] for line in lines if "speed/decisions_per_s" in line]
    return RanksRow(name, speeds[1:])

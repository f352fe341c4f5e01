"""What late answers cost: success and jerk with naive, aligned and real-time chunks, in simulation.

    python -m embodied_rl.benchmarks.lab.latency --checkpoint runs/NAME --json latency.json

Answers come `latency` control steps of 50 ms after their observation. Naive: a chunk is executed whole and the arm
waits for the next one. Aligned: each action at the step that it was decided for, chunks blended. RTC: real-time
chunking, for flow policies (Black et al. 2025); newest: the same without guidance, to compare with.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from embodied_rl.api import make_vec_env
from embodied_rl.benchmarks.lab.latency_run import Figures, Setting, run_episodes
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.factory.policies import open_policy
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.utils.output import try_output

Row = dict[str, Any]


def settings_for(chunk_len: int, latency: int, *, flow: bool) -> list[Setting]:
    """No latency, then each way at `latency`; chunks that overlap are asked for so often that they do."""
    horizon = max(1, min(chunk_len // 2, chunk_len - latency))
    found = [
        Setting("naive", 0, chunk_len),
        Setting("naive", latency, chunk_len),
        Setting("aligned", latency, max(1, min(horizon, chunk_len - latency - 3))),
    ]
    if not flow:
        return found
    return [*found, *(Setting(way, late, horizon) for late in (0, latency) for way in ("newest", "rtc"))]


def run(checkpoint: str, suite: str, tasks: tuple[str, ...], states: int, latencies: tuple[int, ...]) -> list[Row]:
    """One row a setting, printed as they come."""
    torch.set_num_threads(1)
    policy = open_policy(checkpoint, "cpu")
    policy.with_value = False
    console = Console()
    rows: list[Row] = []
    flow = policy.traits.continue_chunk is not None
    settings: dict[Setting, None] = {}
    for latency in latencies:
        if not 0 < latency < policy.chunk_len:
            raise UserError(f"--latency {latency}: the policy's chunks have {policy.chunk_len} steps")
        settings |= dict.fromkeys(settings_for(policy.chunk_len, latency, flow=flow))
    with make_vec_env(suite, num_envs=16, tasks=tasks) as env:
        held_out = {task: list(rows)[:states] for task, rows in env.heldout_states.items()}
        specs = interleaved(evaluation_specs(held_out, seed=0))
        for setting in settings:
            found = run_episodes(env, policy, specs, setting)
            rows.append(row_of(setting, found))
            console.print(json.dumps(rows[-1]), soft_wrap=True)
    return rows


def row_of(setting: Setting, found: Figures) -> Row:
    """The figures of a setting, with the interval of its success."""
    low, high = wilson(found.successes, found.episodes)
    return {
        **dataclasses.asdict(setting),
        "success": found.successes / found.episodes,
        "low": low,
        "high": high,
        **dataclasses.asdict(found),
    }


def table(rows: list[Row]) -> Table:
    """What `rows` say, for people."""
    shown = Table(
        "way", "latency", "asked every", "success", "95 %", "seam jerk m/s3", "seam jump", "jerk m/s3", "steps"
    )
    for row in rows:
        shown.add_row(
            row["way"],
            f"{50 * row['latency']} ms",
            f"{row['horizon']} steps",
            f"{row['success']:.1%}",
            f"{row['low']:.1%} to {row['high']:.1%}",
            f"{row['seam_jerk']:.1f}",
            f"{row['seam_jump']:.3f}",
            f"{row['jerk']:.1f}",
            f"{row['steps']:.0f}",
        )
    return shown


def main() -> int:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", default="shipped", help="a run or checkpoint; RTC needs a flow policy")
    parser.add_argument("--suite", default="tabletop_goal")
    parser.add_argument("--tasks", nargs="*", default=("turn_on_the_stove", "open_the_drawer_of_the_cabinet"))
    parser.add_argument("--states-per-task", type=int, default=50)
    parser.add_argument("--latency", type=int, nargs="*", default=(3, 4), help="control steps of 50 ms")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.json:
        try_output("--json", arguments.json)
    tasks, latencies = tuple(arguments.tasks), tuple(arguments.latency)
    rows = run(arguments.checkpoint, arguments.suite, tasks, arguments.states_per_task, latencies)
    Console(width=120 if not os.isatty(1) else None).print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"checkpoint": arguments.checkpoint, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Do episodes end alike under MuJoCo Warp and the native engine? Scripted experts run in both.

    python -m embodied_rl.benchmarks.warp_physics --episodes 200 --json warp_physics.json
    python -m embodied_rl.benchmarks.warp_physics --suites libero_spatial --tasks 0-2 --episodes 24

The same initial states under both, each engine's expert reacting to that engine's world. Episodes are split evenly over
the tasks; a suite's run together, LIBERO's by task. It prints how many succeed under each engine and how many agree.
LIBERO's scenes are those of the current era in both.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied_rl.benchmarks.expert import numbers
from embodied_rl.benchmarks.report import describe_machine
from embodied_rl.benchmarks.warp_experts import expert_of, settle_actions, tasks_of
from embodied_rl.factory.tasks import LIBERO_SUITES
from embodied_rl.sim import tabletop
from embodied_rl.sim.libero.expert import Surface
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco.vec_env import NativeVecEnv
from embodied_rl.sim.warp.vec_env import WarpVecEnv
from embodied_rl.types import EpisodeSpec

Row = dict[str, Any]


def main() -> None:
    """Run the suites that are asked for and write what is known after each."""
    known = (*tabletop.suites(), *LIBERO_SUITES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="+", default=["tabletop_spatial", "tabletop_goal"], choices=known)
    parser.add_argument("--tasks", type=numbers, default=(), help="numbers of tasks in each suite, as 0-2,7 (all)")
    parser.add_argument("--episodes", type=int, default=200, help="of all suites together")
    parser.add_argument("--device", default="cpu", help="where MuJoCo Warp runs: cpu or cuda")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[Row] = []
    tasks = {suite: tasks_of(suite, args.tasks) for suite in args.suites}
    states = -(-args.episodes // sum(map(len, tasks.values())))
    for suite in args.suites:
        together = [tasks[suite]] if suite in tabletop.suites() else [[task] for task in tasks[suite]]
        for group in together:
            rows.append(compare(suite, group, states, args.device))
            print(line(rows[-1]), flush=True)
            if args.json is not None:
                machine = describe_machine(("mujoco", "mujoco-warp", "torch"))
                args.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1), encoding="utf-8")
    total = {key: sum(row[key] for row in rows) for key in ("episodes", "native", "warp", "agree", "failed")}
    print(line({"suite": "all", "tasks": [], **total}))


def line(row: Row) -> str:
    """A row in words."""
    count = row["episodes"]
    return (
        f"{row['suite']:<18}{count} episodes: native {row['native']}, warp {row['warp']}, "
        f"flags equal {row['agree']} ({row['agree'] / count:.1%}), failed {row['failed']}"
    )


def compare(suite: str, tasks: Sequence[MujocoTask], states: int, device: str) -> Row:
    """The first `states` held-out states of each of these tasks, under both."""
    specs = [
        EpisodeSpec(i, task.name, state, seed=i)
        for i, (task, state) in enumerate(
            (task, state) for task in tasks for state in list(task.heldout_states)[:states]
        )
    ]
    with closing(NativeVecEnv(tasks, len(specs), cameras=0)) as native:
        begin = time.process_time()
        first, _ = run(native, tasks, specs)
        cpu_s = time.process_time() - begin
    with closing(WarpVecEnv(tasks, len(specs), device=device, cameras=0, renderer=None)) as warp:
        begin = time.process_time()
        second, failed = run(warp, tasks, specs)
        warp_cpu_s = time.process_time() - begin
    return {
        "suite": suite,
        "tasks": [task.name for task in tasks],
        "episodes": len(specs),
        "native": sum(first),
        "warp": sum(second),
        "agree": sum(a == b for a, b in zip(first, second, strict=True)),
        "failed": failed,
        "device": device,
        "native_cpu_s": round(cpu_s, 1),
        "warp_cpu_s": round(warp_cpu_s, 1),
    }


def run(
    env: NativeVecEnv | WarpVecEnv, tasks: Sequence[MujocoTask], specs: Sequence[EpisodeSpec]
) -> tuple[list[bool], int]:
    """Which episodes succeed, and how many failed (they count as not succeeded)."""
    by_name = {task.name: task for task in tasks}
    owners = [by_name[spec.task] for spec in specs]
    env.reset(range(len(specs)), specs)
    settle = settle_actions(tasks[0])
    if len(settle):
        env.step(range(len(specs)), torch.from_numpy(np.stack([settle] * len(specs))))
    surfaces: dict[str, Surface] = {}
    experts = [expert_of(env, i, task, surfaces) for i, task in enumerate(owners)]
    won, failed, running = [False] * len(specs), 0, list(range(len(specs)))
    while running:
        actions = np.stack([experts[i]() for i in running]).astype(np.float32)
        result = env.step(running, torch.from_numpy(actions)[:, None]).to("cpu")
        for row, i in enumerate(running):
            won[i] = bool(result.success[row])
        failed += int(result.failed.sum())
        ended = (result.terminated | result.truncated | result.failed).tolist()
        running = [i for i, over in zip(running, ended, strict=True) if not over]
    return won, failed


if __name__ == "__main__":
    main()

"""python -m embodied_rl.benchmarks.twin_people FOLDER: what a person's help on an arm is worth, measured on the twin.

Demonstrations, a weak policy of them, then `train --robot twin --people expert`: the twin's expert takes episodes over
by the takeover topics of ROS 2. Success of the policy alone before and after, whether every frame of the person is in
the exported data set, and how far from where the person ended a replay in lockstep ends. What FOLDER has is kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from embodied_rl.benchmarks.twin_replay import Replay, ends_of
from embodied_rl.data.episodes import open_store
from embodied_rl.data.lerobot import load
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.jobs.run_folder import CONFIG_FILE, RECORDINGS
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.training.filtered_bc import STORE

SUITE, TASKS = "tabletop_goal", ("turn_on_the_stove", "open_the_drawer_of_the_cabinet")
REPLAYED_M = 0.005
"""How near to the person's end a replay must end."""


@dataclass(frozen=True, kw_only=True)
class TwinPeople:
    """What a person's help on an arm is worth, measured on the twin over ROS 2."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Where all of it goes; what is there is not made again, and a run that was stopped goes on."""
    demos: int = 10
    """Demonstrations of each task that the policy begins with."""
    sft_steps: int = 1200
    """Optimiser steps on them."""
    episodes: int = 20
    """Episodes of training."""
    updates: int = 400
    """Optimiser steps after these."""
    states: int = 15
    """Held-out states of each task, before and after."""
    after: int = 80
    """Control steps after which the expert takes over."""
    speed: float = 1.0
    """The twin's seconds in a second: below 1 on a busy computer."""
    seed: int = 0
    """Of demonstrations, policy and run."""
    json: Path | None = None
    """File for the figures."""


def measure(wanted: TwinPeople) -> dict[str, Any]:
    """Make what is missing in the folder, and read the figures."""
    folder = wanted.folder
    demos, start, run, exported = (folder / name for name in ("demos", "start", "run", "exported"))
    seed = ("--seed", str(wanted.seed))
    if not demos.is_dir():
        _do("collect", SUITE, "--tasks", *TASKS, "--episodes-per-task", wanted.demos, *seed, "--out", demos)
    if not start.is_dir():
        options = ("--steps", wanted.sft_steps, "--batch-size", 48, "--lr", 1.5e-3, "--shift", 2)
        _do("sft", demos, "--policy", "pi0", "--preset", "nano", *options, *seed, "--out", start)
    if (run / CONFIG_FILE).is_file():
        _do("train", "--resume", run)
    else:
        _do("train", *_words(wanted, start, demos, run))
    if not exported.is_dir():
        _do("export", run, "--to", "lerobot", "--out", exported)
    return evaluations(run) | human_frames(run, exported)


def _words(wanted: TwinPeople, start: Path, demos: Path, run: Path) -> tuple[object, ...]:
    return (
        *("tabletop", "--suite", SUITE, "--tasks", *TASKS, "--policy", "pi0", "--policy.checkpoint", start),
        *("--algorithm", "imitate", "--demos", demos, "--episodes", wanted.episodes),
        *("--algorithm.steps", wanted.updates),
        *("--rollout.episodes-per-iteration", wanted.episodes, "--evaluation.states-per-task", wanted.states),
        *("--robot", "twin", "--robot-speed", wanted.speed, "--people", "expert", "--people-after", wanted.after),
        *("--seed", wanted.seed, "--output", run),
    )


def _do(*words: object) -> None:
    """Run a command of this project; its end is ours where it fails."""
    done = subprocess.run([sys.executable, "-m", "embodied_rl", *map(str, words)], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def evaluations(run: Path) -> dict[str, Any]:
    """Success of the policy alone before and after, of how many episodes, with 95 % intervals."""
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "eval/success" in row]
    found: dict[str, Any] = {}
    for name, row in (("before", rows[0]), ("after", rows[-1])):
        episodes = round(row["eval/episodes"])
        won = round(row["eval/success"] * episodes)
        found[name] = {"won": won, "episodes": episodes, "interval": wilson(won, episodes)}
    return found


def human_frames(run: Path, exported: Path) -> dict[str, Any]:
    """A person's frames in the store, the export and the arm's recordings, and how near replays end, m."""
    store, data = open_store(run / STORE), load(exported)
    infos = [store.info(key) for key in store.keys()]  # noqa: SIM118
    ends = {name: end for path in sorted((run / RECORDINGS).glob("*.mcap")) for name, end in ends_of(path).items()}
    human, distances, unknown, exported_frames = data.columns.human, list[float](), 0, 0
    for info, first, last in zip(infos, data.starts[:-1], data.starts[1:], strict=True):
        rows = slice(int(first), int(last))
        exported_frames += int(human[rows].sum())
        if not human[rows].any():
            continue
        end = ends.get(data.action[rows][human[rows]].astype(np.float32).tobytes())
        if end is None:
            unknown += 1
            continue
        replay = Replay(info.task.partition("/")[0])
        what = (data.action[rows], data.columns.decision[rows], human[rows])
        found = replay.end(info.task, info.init_state, info.seed, *what)
        distances.append(float(np.linalg.norm(found - end)))
    return {
        "helped": sum(info.human_steps > 0 for info in infos),
        "training_episodes": len(infos),
        "alone": sum(info.success == 1 for info in infos),
        "with_help": sum(info.helped_success == 1 for info in infos),
        "human_frames": {"store": sum(info.human_steps for info in infos), "exported": exported_frames},
        "not_in_recordings": unknown,
        "replay_m": distances,
    }


def lines(found: dict[str, Any]) -> list[str]:
    """The table."""
    rows = []
    for name in ("before", "after"):
        one = found[name]
        low, high = one["interval"]
        rows.append(f"{name:<7} {one['won']} of {one['episodes']} alone ({low:.0%} to {high:.0%} at 95 %)")
    frames, far = found["human_frames"], found["replay_m"]
    rows.append(
        f"trained {found['training_episodes']} episodes: {found['alone']} alone, {found['with_help']} with help"
    )
    rows.append(
        f"person  {frames['store']} frames in {found['helped']} episodes, {frames['exported']} of them exported"
    )
    if far:
        near = sum(distance <= REPLAYED_M for distance in far)
        rows.append(
            f"replay  {near} of {len(far)} end within {1e3 * REPLAYED_M:.0f} mm, the worst at {1e3 * max(far):.1f}"
        )
    return rows


def main() -> int:
    """Measure, print the table and write the figures."""
    wanted = tyro.cli(TwinPeople, description=__doc__)
    wanted.folder.mkdir(parents=True, exist_ok=True)
    found = measure(wanted)
    print("\n".join(lines(found)))
    if wanted.json is not None:
        wanted.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

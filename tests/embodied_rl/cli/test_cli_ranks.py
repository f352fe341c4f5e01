"""`train --learner.num-processes` for real: robbed of a rank, and resumed with another number of ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.cli import main
from embodied_rl.cli.select import select
from embodied_rl.cli.train import num_processes
from embodied_rl.errors import UserError
from embodied_rl.telemetry.metrics import read_metrics
from tests.embodied_rl.processes import descendants, wait_for
from tests.embodied_rl.stand_in import words
from tests.embodied_rl.test_imports import ROOT

TASK = "pick_up_the_mug_and_place_it_in_the_basket"
SMALL = [
    *("--iterations", "3", "--tasks", TASK, "--env.num-envs", "2", "--rollout.episodes-per-iteration", "4"),
    *("--evaluation.states-per-task", "1", "--evaluation.every", "0", "--videos", "0", "--checkpoint.every", "1"),
    *("--scheduler", "pipelined", "--learner.minibatch-size", "None", "--learner.minibatch-groups", "1"),
    *("--algorithm.entropy-coef", "0.01"),
]


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "embodied_rl", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def updates(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len([row for row in read_metrics(path) if "rollout/episodes" in row]) if path.exists() else 0


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Process numbers of the ranks that it started."""
    found = {}
    for pid in descendants(process.pid):
        said = (Path("/proc") / str(pid) / "environ").read_text().split("\0")
        found |= {int(word[5:]): pid for word in said if word.startswith("RANK=")}
    return found


def nothing_is_left(pids: list[int]) -> None:
    end = time.monotonic() + 900
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


@pytest.mark.process
def test_a_run_that_lost_a_rank_says_so_and_ends_as_an_undisturbed_one(checkpoint: Path, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main(words(checkpoint, whole, *SMALL)) == 0

    process = start(words(checkpoint, run, *SMALL, "--learner.num-processes", "2"))
    try:
        wait_for(lambda: updates(run) >= 1, process)
        pids = ranks_of(process)
        os.kill(pids[1], signal.SIGKILL)
        _, said = process.communicate(timeout=3600)
    finally:
        process.kill()
    assert process.returncode == 1, said
    assert [line for line in said.splitlines() if "embodied-rl" in line] == [
        "embodied-rl: error: rank 1 was killed by signal 9; no step was taken without it. The last checkpoint is "
        "intact: resume from it."
    ]
    assert "Traceback" not in said
    nothing_is_left(list(pids.values()))

    assert main(["train", "--resume", str(run), "--learner.num-processes", "1"]) == 0
    one, two = (load_file(folder / "checkpoints/iter-000003/policy/model.safetensors") for folder in (whole, run))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-5, msg=name)


def test_what_does_not_go_with_ranks_is_refused_by_name(tmp_path: Path) -> None:
    ranks = ("--learner.num-processes", "2")
    with pytest.raises(
        UserError, match=r"--scheduler.workers 2 is too few for 3 ranks, which share them: give 3 or more"
    ):
        select(["tabletop", "--scheduler", "ray", "--learner.num-processes", "3"])
    with pytest.raises(UserError, match=r"--scheduler.max-staleness does not go with several ranks"):
        select(["tabletop", "--scheduler", "ray", "--scheduler.max-staleness", "1", *ranks])
    assert num_processes(select(["tabletop", "--scheduler", "ray", *ranks])) == 2
    with pytest.raises(UserError, match=r"--scheduler.mode async does not go with several ranks"):
        select(["tabletop", "--scheduler", "pipelined", "--scheduler.mode", "async", *ranks])
    chosen = select(["--resume", str(tmp_path), "--learner.num-processes", "3", "--iterations", "7"])
    assert (num_processes(chosen), chosen.iterations) == (3, 7)
    with pytest.raises(UserError, match=r"so '--seed' does not apply"):
        select(["--resume", str(tmp_path), "--learner.num-processes", "3", "--seed", "7"])

"""`train --learner.num-processes` for real: Ctrl-C in a terminal reaches every process; nothing is lost."""

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
from embodied_rl.telemetry.metrics import read_metrics
from tests.embodied_rl.processes import descendants, wait_for
from tests.embodied_rl.stand_in import words
from tests.embodied_rl.test_imports import ROOT

TASK = "pick_up_the_mug_and_place_it_in_the_basket"


@pytest.mark.parametrize(("fsdp", "number"), [(False, signal.SIGINT), (True, signal.SIGTERM)])
def test_an_interrupted_run_of_two_ranks_goes_on_as_if_nothing_had_been(
    fsdp: bool, number: signal.Signals, checkpoint: Path, tmp_path: Path
) -> None:
    """Every process gets the signal, as from a terminal (SIGINT) or from SLURM, systemd and `timeout` (SIGTERM)."""
    small = [
        "--iterations",
        "3",
        "--tasks",
        TASK,
        "--env.num-envs",
        "2",
        "--rollout.episodes-per-iteration",
        "4",
        "--evaluation.states-per-task",
        "1",
        "--evaluation.every",
        "0",
        "--videos",
        "0",
        "--checkpoint.every",
        "9",
        "--scheduler",
        "pipelined",
        "--learner.minibatch-size",
        "None",
        "--learner.minibatch-groups",
        "1",
        "--algorithm.entropy-coef",
        "0.01",
    ]
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert main(words(checkpoint, whole, *small)) == 0
    ranks = ["--learner.num-processes", "2", *(["--learner.fsdp"] if fsdp else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "embodied_rl", *words(checkpoint, run, *small, *ranks)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    metrics = run / "metrics.jsonl"
    try:
        wait_for(lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, process)
        below = descendants(process.pid)
        os.killpg(process.pid, number)
        _, said = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1].endswith(f"continue with: embodied-rl train --resume {run}")
    assert "Traceback" not in said
    assert any("spawn_main" in name for name in below.values())
    end = time.monotonic() + 10  # multiprocessing's tracker of resources ends when everybody else has
    while left := [name for pid, name in below.items() if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert len([row for row in read_metrics(metrics) if "rollout/episodes" in row]) < 3, "it was through already"

    assert main(["train", "--resume", str(run)]) == 0
    one, two = (load_file(folder / "checkpoints/iter-000003/policy/model.safetensors") for folder in (whole, run))
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=0, atol=1e-5, msg=name)

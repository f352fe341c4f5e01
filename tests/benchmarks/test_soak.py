"""The soak in miniature, and that it says so when a run is not what it should be."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from embodied_rl.benchmarks import soak
from embodied_rl.benchmarks.soak import End, Soak, Tally, end_of
from embodied_rl.benchmarks.soak_faults import WORKER, corrupt, live_through, tear
from embodied_rl.cli.select import select
from embodied_rl.errors import UserError
from embodied_rl.learner.checkpoint import Checkpoints, load
from embodied_rl.rng import philox
from embodied_rl.scheduler import serial
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.telemetry.metrics import MetricsLog
from embodied_rl.training import filtered_bc

ROOT = Path(__file__).parents[2]
LEDGER = {"next_group": 4, "issued": 4, "finished": 4, "reissued": 0}


def finished_run(folder: Path, reward: float = 1.0) -> Path:
    """A run of one update, as far as it is compared."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    with MetricsLog(folder / "metrics.jsonl") as log:
        log.write(1, {"rollout/reward": reward, "time/iteration": time.perf_counter()})

    def save_policy(path: Path) -> None:
        path.mkdir()
        save_file({"w": torch.ones(3)}, path / "model.safetensors")

    Checkpoints(folder / "checkpoints", 2).save(1, save_policy, {"t": torch.zeros(2)}, {"sampler": LEDGER})
    return folder


@pytest.mark.process
def test_a_few_kills_end_as_if_nothing_had_happened(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    words = [sys.executable, "-m", "embodied_rl.benchmarks.soak", "--kills", "1", "--iterations", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, "--json", str(out)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["wrong"] == []
    assert found["happened_kill"] >= 1
    assert found["runs"] >= 1


def test_runs_of_imitation_are_disturbed_alike(tmp_path: Path) -> None:
    """What is begun is what the `train` command takes; and a person helps where somebody learns of it."""
    words = soak._begin(tmp_path / "run0", Soak(algorithm="imitate", people="expert", iterations=2))
    config = select(words[1:]).config
    assert config is not None
    assert (config.people, config.demos, config.env.num_envs) == ("expert", (str(tmp_path / "demos"),), 1)
    assert (config.tasks, config.iterations) == (("turn_on_the_stove",), 2)
    alone = select(soak._begin(tmp_path / "run1", Soak(algorithm="imitate"))[1:]).config
    assert alone is not None
    assert alone.people == "none"
    assert not any(soak._is_watched(Soak(algorithm="imitate"), number) for number in range(8))
    assert soak.main(Soak(people="expert")) == 2


@pytest.mark.parametrize(
    ("code", "whole", "wrong"),
    [
        (0, {}, ""),
        (0, {"weights": "0"}, "ended with other weights"),
        (0, {"ledger": LEDGER | {"finished": 3}}, "ended with other ledger"),
        (0, {"metrics": []}, "ended with other metrics"),
        (2, {}, "exit code 2"),
        (1, {}, "exit code 1"),
        (-signal.SIGSEGV, {}, "exit code -11"),
    ],
)
def test_what_is_not_as_promised_is_said(
    code: int, whole: dict[str, object], wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = finished_run(tmp_path / "run")
    end = end_of(run)
    expected = End(**{"metrics": end.metrics, "ledger": end.ledger, "weights": end.weights} | whole)  # type: ignore[arg-type]
    monkeypatch.setattr(soak, "_attempt", lambda *_: (code, 300.0))
    monkeypatch.setattr(soak, "FAULTS", ("kill",))
    tally = Tally()
    soak._one_run(run, Soak(), expected, 1.0, tally)
    assert [wrong in text for text in tally.wrong] == ([True] if wrong else [])
    assert tally.runs == (code == 0)


def test_a_corrupt_checkpoint_is_refused_and_a_torn_line_is_read_over(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    before = end_of(run)
    assert tear(run / "metrics.jsonl")
    assert end_of(run) == before
    for number in range(8):
        fresh = finished_run(tmp_path / str(number))
        assert corrupt(fresh / "checkpoints", philox(number, 1))
        with pytest.raises(UserError, match="checkpoint"):
            load(fresh / "checkpoints" / "iter-000001")
    assert not corrupt(tmp_path / "nowhere", philox(0, 1))
    assert not tear(tmp_path / "nowhere")


def test_faults_end_with_their_block(tmp_path: Path) -> None:
    real, now = os.fsync, time.time()
    with live_through("clock jump", 5):
        assert abs(time.time() - now) > 3600
    with live_through("disk full", 5), (tmp_path / "x").open("w") as file:
        for _ in range(100):
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())
        with pytest.raises(OSError, match="No space"):
            os.fsync(file.fileno())
    with live_through("slow disk", 5):
        assert os.fsync is not real
    step, gather, loss = ProcessVecEnv.step, serial.gather, filtered_bc.imitation_loss
    limit = resource.getrlimit(resource.RLIMIT_AS)
    with live_through(WORKER, 5):
        assert ProcessVecEnv.step is not step
    with live_through("out of memory", 5):
        for _ in range(10):
            with contextlib.suppress(ValueError, MemoryError):  # a batch without rows, and none at all
                serial.gather([], 0)
        with pytest.raises(MemoryError):
            serial.gather([], 0)
        short: Any = filtered_bc.imitation_loss
        with pytest.raises(MemoryError):
            short(None, None)
    assert (ProcessVecEnv.step, serial.gather, filtered_bc.imitation_loss) == (step, gather, loss)
    assert resource.getrlimit(resource.RLIMIT_AS) == limit
    assert os.fsync is real
    assert abs(time.time() - now) < 3600

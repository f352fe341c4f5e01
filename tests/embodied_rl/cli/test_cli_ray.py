"""`train --scheduler ray` for real: the command starts Ray, workers and all, and nothing of it is left afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from embodied_rl.cli import main
from embodied_rl.telemetry.metrics import read_metrics
from tests.embodied_rl.processes import descendants, wait_for
from tests.embodied_rl.stand_in import words
from tests.embodied_rl.test_imports import ROOT

PACKAGE = Path(__file__).parents[1] / "plugin_package"
WORKER = "ray::RolloutWorker"


def ray_is_here() -> bool:
    """In CI it must be; elsewhere it may be missing."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("ray")
    return True


def begin(checkpoint: Path, run: Path, *more: str) -> subprocess.Popen[str]:
    """A run that does not end by itself soon, of two workers."""
    few = [
        *("--iterations", "50", "--tasks", "pick_up_the_mug_and_place_it_in_the_basket", "--env.num-envs", "2"),
        *("--rollout.episodes-per-iteration", "4", "--evaluation.states-per-task", "1", "--videos", "0"),
        *("--scheduler", "ray", "--learner.minibatch-groups", "1", *more),
    ]
    # Ray gives its workers the lowest priority but four, and other tests run beside.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"}
    return subprocess.Popen(
        [sys.executable, "-m", "embodied_rl", *words(checkpoint, run, *few)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def num_lines(metrics: Path) -> int:
    return metrics.read_text().count("\n") if metrics.exists() else 0


@pytest.mark.process
def test_a_worker_is_killed_then_the_run_is_interrupted(checkpoint: Path, tmp_path: Path) -> None:
    """Its episodes run again elsewhere, a checkpoint is saved, and all of Ray is gone."""
    assert ray_is_here()
    run = tmp_path / "run"
    process = begin(checkpoint, run)
    metrics = run / "metrics.jsonl"

    def workers() -> list[int]:
        return [pid for pid, name in descendants(process.pid).items() if name.startswith(WORKER)]

    try:
        wait_for(lambda: num_lines(metrics) >= 2, process)  # the evaluation and an update
        below = descendants(process.pid)
        first = workers()
        assert len(first) == 2
        os.kill(first[0], signal.SIGKILL)
        known = num_lines(metrics)
        wait_for(lambda: num_lines(metrics) >= known + 2, process)
        below |= descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: Ray's processes of this group get it too
        _, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, said
    latest = (run / "checkpoints" / "latest").read_text().strip()
    assert said.strip().splitlines()[-1].endswith(f"continue with: embodied-rl train --resume {run}")
    rows = [row for row in read_metrics(metrics) if "rollout/episodes" in row]
    assert latest == f"iter-{len(rows):06d}"
    assert rows[-1]["rollout/workers_replaced"] == 1
    assert {row["rollout/episodes"] for row in rows} == {4.0}
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]


@pytest.mark.process
@pytest.mark.usefixtures("hears_signals")
def test_two_ranks_are_interrupted(checkpoint: Path, tmp_path: Path) -> None:
    """One Ray was started for both, which have a worker each; it ends after both have left it."""
    assert ray_is_here()
    run = tmp_path / "run"
    process = begin(checkpoint, run, "--learner.num-processes", "2")
    try:
        wait_for(lambda: num_lines(run / "metrics.jsonl") >= 2, process)
        below = descendants(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert said.strip().splitlines()[-1].endswith(f"continue with: embodied-rl train --resume {run}")
    assert len([name for name in below.values() if name.startswith(WORKER)]) == 2
    assert len([name for name in below.values() if name.partition(" ")[0].endswith("/raylet")]) == 1
    assert not [pid for pid in below if Path(f"/proc/{pid}").exists()]


@pytest.mark.process
def test_workers_open_what_a_module_of_the_users_registers(tmp_path: Path) -> None:
    """They import it again, and its options reach them."""
    assert ray_is_here()
    words = [
        *("train", "point", "--import", "point_robot.register", "--env.radius", "0.4", "--env.num-envs", "2"),
        *("--policy", "linear", "--policy.std", "0.4", "--algorithm.critic-warmup-iterations", "0"),
        *("--iterations", "1", "--rollout.episodes-per-iteration", "4", "--evaluation.states-per-task", "1"),
        *("--videos", "0", "--scheduler", "ray", "--output", str(tmp_path / "run")),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "embodied_rl", *words],
        check=False,
        cwd=PACKAGE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if "rollout/episodes" in row]
    assert [(row["rollout/episodes"], row["rollout/workers_replaced"]) for row in rows] == [(4.0, 0)]


def refused(words: list[str], capsys: pytest.CaptureFixture[str], run: Path) -> str:
    """What the command says when it refuses, before it has written anything."""
    assert ray_is_here()
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("embodied-rl: error: ")
    assert said.count("\n") == 1
    assert not run.exists()
    return said


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_does_not_answer(
    scheme: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"{scheme}127.0.0.1:{closed.getsockname()[1]}"
        run = tmp_path / "run"
        said = refused(words(checkpoint, run, "--scheduler", "ray", "--scheduler.address", address), capsys, run)
    assert f"no Ray cluster answers at --scheduler.address {address}" in said
    assert "ray start --head" in said


@pytest.mark.usefixtures("stand_in")
def test_an_address_that_is_none(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    said = refused(words(checkpoint, run, "--scheduler", "ray", "--scheduler.address", "nonsense"), capsys, run)
    assert "Invalid address format" in said

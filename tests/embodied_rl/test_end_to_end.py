"""Collect, sft, train, eval on the real simulator, from the command to the file; kill -9 in mid-training and resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.cli import main
from embodied_rl.telemetry.metrics import read_metrics
from tests.embodied_rl.stand_in import untimed
from tests.embodied_rl.test_imports import ROOT

pytestmark = pytest.mark.process

SUITE = "tabletop_object"
TASKS = ("pick_up_the_mug_and_place_it_in_the_basket", "pick_up_the_tea_tin_and_place_it_in_the_basket")
ITERATIONS, STATES = 3, 2


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data") / "demo"
    words = ["--tasks", *TASKS, "--episodes-per-task", "2", "--workers", "1", "--out", str(out)]
    assert main(["collect", SUITE, *words]) == 0
    return out


@pytest.fixture(scope="module")
def start_from(demonstrations: Path) -> Path:
    out = demonstrations.with_name("start")
    words = ["--steps", "12", "--batch-size", "16", "--warmup", "2", "--val-every", "12", "--val-samples", "8"]
    assert main(["sft", str(demonstrations), "--out", str(out), "--threads", "1", *words]) == 0
    return out


@pytest.fixture(scope="module")
def whole(start_from: Path) -> Path:
    """The folder of an undisturbed run."""
    folder = start_from.with_name("whole")
    assert start(start_from, folder).wait() == 0
    return folder


def start(start_from: Path, folder: Path, *more: str) -> subprocess.Popen[bytes]:
    """Begin a training run. Demonstrations and the entropy bonus move the weights even if this weak policy never
    succeeds."""
    words = [
        "tabletop",
        "--suite",
        SUITE,
        "--tasks",
        *TASKS,
        "--policy.checkpoint",
        str(start_from),
        "--output",
        str(folder),
        "--iterations",
        str(ITERATIONS),
        "--env.num-envs",
        "4",
        "--rollout.episodes-per-iteration",
        "4",
        "--learner.lr",
        "1e-3",
        "--algorithm",
        "ppo",
        "--algorithm.entropy-coef",
        "0.1",
        "--algorithm.critic-warmup-iterations",
        "1",
        "--algorithm.demo-coef",
        "0.5",
        "--demos",
        str(start_from.with_name("demo")),
        "--num-threads",
        "1",
        "--evaluation.states-per-task",
        str(STATES),
        "--checkpoint.every",
        "1",
        "--videos",
        "1",
    ]
    return command("train", *words, *more)


def command(*words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-m", "embodied_rl", *words], env=environment)


def test_demonstrations_are_successes_with_real_pictures(demonstrations: Path) -> None:
    from embodied_rl.data.lerobot import load

    data = load(demonstrations)
    assert len(set(data.instruction)) == len(TASKS)
    assert data.images[:].std() > 10
    # A demonstration ends where the goal is reached, at the horizon of 150 at the latest.
    lengths = data.starts[1:] - data.starts[:-1]
    assert ((lengths > 20) & (lengths <= 150)).all()
    assert np.median(lengths) < 150


def test_a_run_leaves_everything_in_its_folder(whole: Path) -> None:
    assert [row["step"] for row in read_metrics(whole / "metrics.jsonl")] == [0, *range(1, ITERATIONS + 1), ITERATIONS]
    (info,) = json.loads((whole / "run.json").read_text())
    assert "native-mujoco" in info["simulator"]["name"]
    assert [name.partition("/")[2] for name in info["task_names"]] == list(TASKS)
    videos = sorted((whole / "videos").iterdir())
    assert [video.name for video in videos] == [f"{TASKS[0]}-{when}.mp4" for when in ("after", "before")]
    assert "not yet" not in (whole / "report.html").read_text()
    assert not list(whole.rglob("MUJOCO_LOG.TXT"))


def test_demonstrations_are_imitated_once_the_critic_is_warm(whole: Path) -> None:
    rows = [row for row in read_metrics(whole / "metrics.jsonl") if "train/demo_coef" in row]
    assert [row["train/demo_coef"] for row in rows] == pytest.approx([0.5, 0.5 * 0.95])
    assert all(row["train/demo_loss"] > 0 for row in rows)
    assert "weight of the imitation loss 0.5" in (whole / "report.html").read_text()


def test_training_changes_the_weights(whole: Path, start_from: Path) -> None:
    weights = whole / "checkpoints" / f"iter-{ITERATIONS:06d}" / "policy" / "model.safetensors"
    assert weights.read_bytes() != (start_from / "model.safetensors").read_bytes()


def test_killed_and_resumed_equals_undisturbed(whole: Path, start_from: Path) -> None:
    broken = whole.with_name("broken")
    process = start(start_from, broken)
    latest = broken / "checkpoints" / "latest"
    try:
        while not latest.is_file() and process.poll() is None:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert latest.read_text().strip() != f"iter-{ITERATIONS:06d}"
    assert command("train", "--resume", str(broken)).wait() == 0
    assert untimed(broken) == untimed(whole)
    last = Path("checkpoints") / f"iter-{ITERATIONS:06d}" / "policy" / "model.safetensors"
    assert (broken / last).read_bytes() == (whole / last).read_bytes()


def test_eval_repeats_the_evaluation_at_the_end_of_the_run(whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "eval.json"
    words = ["--checkpoint", str(whole), "--suite", SUITE, "--tasks", *TASKS, "--states-per-task", str(STATES)]
    assert main(["eval", *words, "--env.num-envs", "4", "--json", str(file)]) == 0
    of_run = json.loads((whole / "evaluations" / f"iter-{ITERATIONS:06d}.json").read_text())
    found = [episode["result"] for episode in json.loads(file.read_text())["episodes"]]
    assert sorted(found, key=_number) == sorted(of_run["results"], key=_number)


def _number(result: dict[str, Any]) -> int:
    return result["spec"]["episode_id"]


def test_training_goes_on_when_a_simulator_is_killed(start_from: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = start_from.with_name("shot")
    process = start(start_from, folder, "--env.processes", "2")
    metrics = folder / "metrics.jsonl"
    while not (metrics.is_file() and metrics.read_text().count("\n") > 1) and process.poll() is None:
        time.sleep(0.01)
    victim = simulators(process.pid)[0]
    os.kill(victim, signal.SIGKILL)
    assert process.wait() == 0
    assert "died: replaced" in " ".join("".join(capfd.readouterr()).split())
    rows = read_metrics(metrics)
    assert [row["step"] for row in rows] == [0, *range(1, ITERATIONS + 1), ITERATIONS]
    learned = [row for row in rows if "rollout/episodes" in row]
    assert [row["rollout/episodes"] for row in learned] == [4] * ITERATIONS
    (info,) = json.loads((folder / "run.json").read_text())
    assert (info["simulator"]["num_envs"], info["simulator"]["processes"]) == (4, 2)


def simulators(parent: int) -> list[int]:
    """Processes with worlds; the parent also has one that looks after shared memory."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_documented_pi0_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/policies.md: collect, imitate, train, evaluate, on one task; the suite is the demonstrations' own."""
    monkeypatch.chdir(tmp_path)
    task = ["--task", "turn_on_the_stove"]
    one = ["--episodes-per-task", "1", "--workers", "1"]
    assert main(["collect", "tabletop_goal", "--out", "demos", *task, *one]) == 0
    few = ["--steps", "2", "--batch-size", "4", "--threads", "1"]
    assert main(["sft", "demos", "--policy", "pi0", "--preset", "nano", "--out", "start", *few]) == 0
    small = ["--iterations", "1", "--rollout.episodes-per-iteration", "2", "--evaluation.states-per-task", "1"]
    small += ["--env.num-envs", "2", "--videos", "0", "--output", "run"]
    assert main(["train", "tabletop", "--policy", "pi0", "--policy.checkpoint", "start", *task, *small]) == 0
    assert "suite: tabletop_goal" in (tmp_path / "run" / "config.yaml").read_text()
    few = ["--states-per-task", "1", "--no-at-end", "--videos", "0"]
    assert main(["eval", "tabletop", "--suite", "goal", *task, "--checkpoint", "run", *few]) == 0

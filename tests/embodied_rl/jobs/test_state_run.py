"""Training the state policy on a gymnasium task by the command line: results, resume, evaluation, refusals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.config.env import MujocoConfig, as_simulator
from embodied_rl.config.suites import STATE_SUITES, SUITES
from embodied_rl.errors import UserError
from embodied_rl.factory.suites import load
from embodied_rl.policies.checkpoints.folder import read_weights
from embodied_rl.sim.task import SEEDED_HELDOUT, SEEDED_TRAIN
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec

SHORT = (
    "train gymnasium --task Pendulum-v1 --env.num-envs 4 --rollout.episodes-per-iteration 4 --checkpoint.every 1 "
    "--evaluation.states-per-task 4 --evaluation.every 0 --checkpoint.keep 9 --num-threads 1"
)


def train(words: str, folder: Path) -> Path:
    assert main([*words.split(), "--output", str(folder)]) == 0
    return folder


def weights(folder: Path, iteration: int) -> dict[str, torch.Tensor]:
    return read_weights(folder / "checkpoints" / f"iter-{iteration:06d}" / "policy" / "model.safetensors")


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of one update. Tests copy it."""
    return train(f"{SHORT} --iterations 1", tmp_path_factory.mktemp("short") / "run")


def test_a_run_reports_the_mean_return_and_resumes_to_the_same_end(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(f"{SHORT} --iterations 3", tmp_path / "whole")
    shown = capsys.readouterr().out
    assert "mean return on held-out" in " ".join(shown.split())
    assert re.search("improved by|got worse by|did not change", shown)
    assert "success" not in shown
    halves = shutil.copytree(short, tmp_path / "halves")
    assert main(["train", "--resume", str(halves), "--iterations", "3"]) == 0
    assert same(weights(whole, 3), weights(halves, 3))
    assert not same(weights(whole, 3), weights(whole, 2))
    assert float(weights(whole, 3)["count"]) == 3 * 4 * 200  # statistics go on where they were
    info = json.loads((whole / "run.json").read_text())[-1]
    assert info["simulator"]["has_success"] is False
    assert info["end"]["score_before"] < 0 > info["end"]["score_after"]
    page = (whole / "report.html").read_text()
    assert "Mean return on held-out initial states" in page
    assert "Success" not in page
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert all("rollout/success" not in row and "eval/success" not in row for row in rows)
    assert sum("eval/return" in row for row in rows) == 2


def test_the_checkpoint_is_evaluated_and_recorded_on_its_task(
    short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = short
    assert (
        main(
            [
                "eval",
                "gymnasium",
                "--checkpoint",
                str(folder),
                "--states-per-task",
                "4",
                "--output",
                str(tmp_path / "eval"),
                "--videos",
                "0",
            ]
        )
        == 0
    )
    told = json.loads((folder / "evaluations" / "iter-000001.json").read_text())
    again = json.loads((tmp_path / "eval" / "report.json").read_text())
    assert again["overall"]["once"]["mean_return"] == told["overall"]["mean_return"]
    assert "overlap" in again
    for words, said in (
        (["eval", "gymnasium", "--task", "CartPole-v1"], "reads 3 numbers and decides 1"),
        (["eval"], "sees no images"),
        (["demo"], "sees no images"),
    ):
        assert main([*words, "--checkpoint", str(folder)]) != 0
        assert said in capsys.readouterr().err
    demo = ["demo", "--suite", "gymnasium", "--task", "Pendulum-v1", "--episodes", "1", "--checkpoint", str(folder)]

    def recorded(_env: object, _policy: object, spec: EpisodeSpec, _mode: str) -> tuple[EpisodeResult, list[Array]]:
        result = EpisodeResult(spec, False, False, True, -12.5, 200, 200)
        return result, [np.zeros((256, 256, 3), np.uint8)]

    def undrawn(*_: object) -> None:
        raise NotImplementedError("Pendulum-v1 can't be drawn: pygame is not installed.")

    monkeypatch.setattr("embodied_rl.jobs.demo.record_frames", recorded)
    assert main([*demo, "--out", str(tmp_path / "demo.mp4")]) == 0
    shown = capsys.readouterr().out
    assert "  return -12.5  Pendulum-v1\n1 episode, mean return -12.5; video: " in shown
    assert "fail" not in shown, "a task without a success flag fails no episode"
    monkeypatch.setattr("embodied_rl.jobs.demo.record_frames", undrawn)
    assert main([*demo, "--out", str(tmp_path / "none.mp4")]) == 2
    assert "there is nothing to record: Pendulum-v1 can't be drawn" in capsys.readouterr().err
    assert not (tmp_path / "none.mp4").exists()


def test_a_run_may_begin_with_a_checkpoint(short: Path, tmp_path: Path) -> None:
    second = train(f"{SHORT} --iterations 1 --policy.checkpoint {short}", tmp_path / "second")
    assert float(weights(second, 1)["count"]) == 2 * 4 * 200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train gymnasium", "needs the name of a task"),
        ("train gymnasium --task", "--task needs the name"),
        ("train gymnasium --task A --tasks B", "the same option"),
        ("train gymnasium --task Nope-v0", "gymnasium has no 'Nope-v0'"),
        ("train gymnasium --task Pendulum-v1 --env.renderer egl", "does not apply"),
        ("train gymnasium --task Pendulum-v1 --protocol openvla", "does not apply"),
        (
            "train gymnasium --task Pendulum-v1 --policy openvla",
            "policy openvla reads images, and suite 'gymnasium' shows a state",
        ),
        ("train gymnasium --recipe gymnasium_mlp_ppo", "says what is trained"),
        ("train --recipe gymnasium_mlp_ppo --suite tabletop_goal", "runs in simulator mujoco or warp, not gymnasium"),
        (
            "train --recipe tabletop_openvla_ppo --suite gymnasium --task Pendulum-v1",
            "runs in simulator gymnasium, not mujoco",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.split(), "--output", str(tmp_path / "run")]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("suite", [name for name in STATE_SUITES if not SUITES[name].task])
def test_no_state_is_both_trained_and_evaluated(suite: str) -> None:
    assert not set(SEEDED_TRAIN) & set(SEEDED_HELDOUT)
    with pytest.raises(UserError, match="needs the name of a task"):
        load(suite, (), as_simulator(MujocoConfig(), SUITES[suite].simulators[0]))


def test_statistics_take_in_what_a_pipelined_run_learned_by_groups(tmp_path: Path) -> None:
    folder = train(f"{SHORT} --iterations 1 --scheduler pipelined --algorithm.epochs 1", tmp_path / "run")
    learned = weights(folder, 1)
    assert float(learned["count"]) == 4 * 200
    assert float(learned["return_count"]) == 1

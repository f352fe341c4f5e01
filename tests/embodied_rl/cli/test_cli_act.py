"""ACT through the commands, on a stand-in simulator: trained, evaluated, exported; and what it can't do in a line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.cli import main
from embodied_rl.factory.policies import load_policy, save_policy
from embodied_rl.policies.act.config import nano
from embodied_rl.policies.act.policy import ACTPolicy, ensembling
from embodied_rl.policies.act.start import within
from embodied_rl.policies.pi0.normalise import Normaliser, Pi0Statistics, Robot
from embodied_rl.telemetry.metrics import read_metrics
from tests.embodied_rl.cli.test_cli_eval import TASKS
from tests.embodied_rl.cli.test_cli_policies import mixed_success, train_words

__all__ = ["mixed_success"]
TASK = TASKS[0].partition("/")[2]
EVAL = ["eval", "tabletop", "--suite", "object", "--states-per-task", "2", "--videos", "0", "--no-at-end"]


def ends(dim: int) -> Normaliser:
    """Of numbers between -1 and 1."""
    ones = np.ones(dim, np.float32)
    return within(-ones, ones)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small policy of ours; tests must not change it."""
    config = replace(nano(), horizon=4, chunk_len=4)
    policy = ACTPolicy.fresh(config, {"default": Robot(Pi0Statistics(ends(8), ends(7)))}, seed=0)
    start = tmp_path_factory.mktemp("act") / "start"
    save_policy(policy, start, {"seed": 0})
    return start


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.usefixtures("stand_in", "mixed_success")
def test_it_trains_resumes_and_is_evaluated(algorithm: str, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = train_words(
        folder, run, "act", algorithm, "--policy.chunk-len", "2", "--policy.initial-std", "0.3", tasks=1
    )
    assert main(words) == 0
    rows = [row for row in read_metrics(run / "metrics.jsonl") if "train/steps" in row]
    assert rows[0]["train/steps"] >= 1
    after: Any = load_policy(run / "checkpoints/iter-000001/policy")
    before: Any = load_policy(folder)
    std = after.model.log_std.detach().exp()
    assert (std[:2] - 0.3).abs().max() > 0, "learned"
    assert (std[2:] - 0.3).abs().max() < 1e-5, "of steps that are not executed nothing is learned"
    assert not after.model.action_head.weight.equal(before.model.action_head.weight)
    assert after.model.vae_encoder_cls_embed.weight.equal(before.model.vae_encoder_cls_embed.weight)
    assert main(["train", "--resume", str(run), "--iterations", "2"]) == 0
    again: Any = load_policy(run / "checkpoints/iter-000002/policy")
    assert again.chunk_len == 2
    assert (again.model.log_std - after.model.log_std).abs().max() < 0.1, "a resume does not begin with 0.3 again"
    report = tmp_path / "report.json"
    evaluate = [*EVAL, "--checkpoint", str(run), "--tasks", TASK, "--json", str(report)]
    assert main([*evaluate, "--output", str(tmp_path / "a")]) == 0
    plain = json.loads(report.read_text())["policy"]
    averaged_words = [*evaluate, "--temporal-ensemble-coeff", "0.01", "--output", str(tmp_path / "b")]
    assert main(averaged_words) == 0
    averaged = json.loads(report.read_text())["policy"]
    assert [(one["chunk_len"], one["temporal_ensemble_coeff"]) for one in (plain, averaged)] == [(2, None), (1, 0.01)]


def said(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    return line


@pytest.mark.usefixtures("stand_in")
def test_several_tasks_are_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = f"act reads no instruction and can't tell 2 tasks apart: name one, as in --tasks {TASK}"
    assert refused in said(capsys, train_words(folder, tmp_path / "run", "act", "ppo"))
    two = [name.partition("/")[2] for name in TASKS[:2]]
    assert refused in said(capsys, [*EVAL, "--checkpoint", str(folder), "--tasks", *two])


@pytest.mark.usefixtures("stand_in")
def test_averaged_chunks_neither_train_nor_serve(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy: Any = load_policy(folder)
    policy.configure(ensembling(policy.config, 0.01))
    save_policy(policy, tmp_path / "averaged", {"seed": 0})
    words = train_words(tmp_path / "averaged", tmp_path / "run", "act", "ppo", tasks=1)
    assert "has no log-prob: say by --policy.chunk-len" in said(capsys, words)
    serve = ["serve", "--checkpoint", str(tmp_path / "averaged"), "--port", "0"]
    assert "give deploy --overlap ensemble" in said(capsys, serve)
    for more, message in (
        (["--efficient.drop-layers", "1"], "--efficient does not apply to this policy (act)"),
        (["--horizon", "3"], "--horizon does not apply"),
        (["--temporal-ensemble-coeff", "nan"], "must be a number"),
        (["--chunk-len", "0"], "must be at least 1"),
        (["--chunk-len", "2", "--temporal-ensemble-coeff", "0.01"], "leave --chunk-len or"),
    ):
        assert message in said(capsys, [*EVAL, "--checkpoint", str(folder), "--tasks", TASK, *more])


def test_export_writes_what_it_can_and_says_what_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export = ["export", "--checkpoint", str(folder), "--out", str(tmp_path / "out")]
    assert "has a ResNet-18 or -34" in said(capsys, [*export, "--cameras", "image", "image2"])
    assert "--layout openpi is for pi0" in said(capsys, [*export, "--layout", "openpi"])
    assert "computes an ACT in float32" in said(capsys, [*export, "--dtype", "bfloat16"])
    assert main([*export, "--layout", "native", "--verify"]) == 0
    assert "the same actions" in capsys.readouterr().out

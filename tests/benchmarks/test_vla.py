"""`bench vla` runs small anywhere, makes its weights right, and says beforehand where the large one cannot run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.autotune.memory import GIB, Need
from embodied_rl.benchmarks import vla
from embodied_rl.benchmarks.vla import QUICK, Row, ratios_of
from embodied_rl.benchmarks.vla_random import MODE, fill, make_policy
from embodied_rl.cli import main
from embodied_rl.policies.nn import lora
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, nano, openvla_7b
from embodied_rl.policies.openvla.memory import INSTRUCTION
from embodied_rl.policies.openvla.policy import OpenVLAPolicy

PLAN = Need(
    mode=MODE, weights=4 * GIB, gradients=GIB, optimizer=2 * GIB, fixed=0, row=GIB, rollout_row=GIB, cache_row=0
)


def small_7b() -> OpenVLAModelConfig:
    """The published layout, with parts that never run, of small widths."""
    large = openvla_7b()
    dino = replace(large.featurizer, image_size=28, dim=32, depth=2, heads=2, mlp_dim=64)
    siglip = replace(large.fused_featurizer, image_size=28, dim=48, depth=2, heads=2, mlp_dim=64)
    decoder = replace(large.decoder, dim=64, layers=2, heads=2, kv_heads=2, head_dim=32, mlp_dim=128)
    return replace(large, featurizer=dino, fused_featurizer=siglip, decoder=decoder, value_hidden=(16, 8))


def test_quick_run_writes_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "vla.json"
    assert main(["bench", "vla", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["bench"], found["quick"], found["setup"]["preset"]) == ("vla", True, "nano")
    rows = {(row["part"], row["rows"]): row for row in found["rows"]}
    assert set(rows) == {("act", 1), ("act", 2), ("forward", 4), ("update", 4)}
    assert all(0 < row["low"] <= row["ms"] <= row["high"] for row in rows.values())
    assert rows["act", 1]["planned_gib"] < rows["act", 2]["planned_gib"] < 1
    if not torch.cuda.is_available():
        assert all(row["allocated_gib"] is None for row in rows.values())
    ratios, setup = found["ratios"], found["setup"]
    assert ratios["update_ms"] == rows["update", 4]["ms"]
    assert ratios["update_vs_act"] == pytest.approx(rows["update", 4]["ms"] / rows["act", 2]["ms"])
    assert setup["ratio_error"] < 0.1
    assert 0 < setup["log_prob_drift"] < 0.1, "bfloat16 rounds, and act and evaluate agree but for that"
    # at least two operations for each weight of the decoder's matrices and token
    assert setup["forward_tflop_per_row"] > 2 * 400_000 * setup["tokens"] / 1e12
    assert "update_vs_act" in capsys.readouterr().out


@pytest.mark.parametrize("config", [nano(chunk_len=1), small_7b()], ids=["nano", "small_7b"])
def test_weights_are_those_of_a_policy_made_the_usual_way(config: OpenVLAModelConfig) -> None:
    """Same names, shapes, formats and what trains; constants equal; the rest random, finite and of usual size."""
    usual = OpenVLAPolicy.fresh(replace(config, ordinal_init=False), [INSTRUCTION])
    lora.add_lora(usual.model, MODE.lora_rank)
    lora.set_training(usual, MODE.dtype, recompute=MODE.gradient_checkpointing)
    policy = make_policy(config)
    assert {parameter.device.type for parameter in policy.parameters()} == {"meta"}
    fill(policy, "cpu")
    assert not list(policy.buffers())
    assert not list(usual.buffers())
    ours, theirs = dict(policy.named_parameters()), dict(usual.named_parameters())
    assert list(ours) == list(theirs)
    assert policy.with_value
    assert policy.mixed_precision
    for name, parameter in ours.items():
        other = theirs[name]
        assert (parameter.shape, parameter.dtype, parameter.requires_grad) == (
            other.shape,
            other.dtype,
            other.requires_grad,
        ), name
        assert parameter.isfinite().all(), name
        constant = bool((other == other.flatten()[0]).all()) and other.numel() > 1
        if constant and ("norm" in name or ".lora_B." in name):
            assert torch.equal(parameter, other), name
        elif parameter.dim() > 1 and ".lora_B." not in name and parameter.numel() > 1000:
            assert float(parameter.detach().float().std()) == pytest.approx(0.02, rel=0.1), name


def test_the_published_layout_acts_and_learns() -> None:
    policy = make_policy(small_7b())
    fill(policy, "cpu")
    before = [parameter.clone() for parameter in policy.parameters() if parameter.requires_grad]
    rows, facts = vla.measure(policy, PLAN, "cpu", QUICK)
    assert [(row.part, row.rows) for row in rows] == [("act", 1), ("act", 2), ("forward", 4), ("update", 4)]
    assert [row.planned_gib for row in rows] == [7, 8, None, 9], "weights 4, optimiser 2, gradients 1, a row 1"
    assert facts["ratio_error"] < 0.1
    after = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    moved = [not torch.equal(one, two) for one, two in zip(before, after, strict=True)]
    assert sum(moved) > len(moved) / 2, "Learner.update took its steps"


def test_a_buffer_would_not_stay_uninitialised() -> None:
    policy = make_policy(nano(chunk_len=1))
    policy.register_buffer("angles", torch.zeros(3))
    with pytest.raises(RuntimeError, match="angles"):
        fill(policy, "cpu")


def test_ratios_compare_plan_and_measurement_of_the_largest_batch() -> None:
    rows = [
        Row("act", 1, 100.0, 90.0, 110.0, 15.0, 16.0, 17.0),
        Row("act", 32, 20.0, 19.0, 21.0, 22.0, 20.0, 21.0),
        Row("forward", 32, 25.0, 24.0, 26.0),
        Row("update", 32, 80.0, 79.0, 81.0, 18.0, 24.0, 25.0),
    ]
    assert ratios_of(rows, {"forward_tflop_per_row": 5.0}) == {
        "act_ms_1": 100,
        "act_ms_32": 20,
        "forward_ms": 25,
        "update_ms": 80,
        "act_batching": 5,
        "update_vs_act": 4,
        "forward_tflops": 200,
        "act_planned_vs_allocated": 1.1,
        "update_planned_vs_allocated": 0.75,
    }


def test_without_a_gpu_the_large_one_is_refused_with_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "vla"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "OpenVLA 7b take 15.7 GiB" in said
    assert "--preset nano" in said


def test_a_small_gpu_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vla, "pick_device", lambda wanted: "cuda")
    monkeypatch.setattr(vla, "room", lambda device: 2**20)
    monkeypatch.setattr(vla, "fill", lambda policy, device: pytest.fail("loaded"))
    assert main(["bench", "vla", "--quick"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "needs a GPU with 1.0 GiB for OpenVLA nano" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("vla --preset 8b", "unknown OpenVLA preset '8b'"),
        ("vla --quick --preset tiny", "--quick measures the nano preset"),
        ("loop --preset 7b", "--preset belongs to bench vla only"),
    ],
)
def test_options(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words.split()]) == 2
    assert message in capsys.readouterr().err

"""`plan`: published parameter counts, memory that adds up, and a verdict that follows from it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.autotune.memory import CONTEXT_BYTES, GAPS, GIB, Mode, Need, need, serving_bytes
from embodied_rl.cli import main
from embodied_rl.policies.family import TrainingMode, pick
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.memory import Footprint
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.config import preset as openvla_preset
from embodied_rl.policies.openvla.memory import cache_bytes, measure, trainable
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.config import preset as pi0_preset
from embodied_rl.policies.pi0.memory import cache_bytes as cache_bytes_of_pi0
from embodied_rl.policies.pi0.memory import measure as measure_pi0
from embodied_rl.policies.pi0.memory import prefix_bytes
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.prefix_cache import PrefixCache
from embodied_rl.policies.smolvla.config import preset as smolvla_preset
from embodied_rl.policies.smolvla.memory import measure as measure_smolvla
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation

OPENVLA_7B = 7_541_237_184  # the published index: 15,082,474,368 bytes in bfloat16
VALUE_HEAD = (4096 + 1) * 512 + (512 + 1) * 128 + (128 + 1)


def _mode(*, train_expert_only: bool, dtype: str, checkpointing: bool) -> TrainingMode:
    return TrainingMode(
        lora_rank=0, train_expert_only=train_expert_only, dtype=dtype, gradient_checkpointing=checkpointing
    )


def count_parameters(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _plan(path: Path, *words: str) -> tuple[int, dict]:
    code = main(["plan", *words, "--json", str(path)])
    return code, json.loads(path.read_text())


def test_lora_on_the_published_7b_fits_on_24_gib() -> None:
    """The way of the recipe: counting it takes a while."""
    config = openvla_preset("7b")
    mode = Mode(lora_rank=32, dtype="bfloat16", gradient_checkpointing=True)
    lora = need(mode, measure(config, pick(TrainingMode, mode)), cache_bytes(config, 2))
    trained = lora.gradients // 4
    assert 1e7 < trained < 3e8
    assert lora.optimizer == 8 * trained
    assert lora.weights == 2 * OPENVLA_7B + 4 * trained, "adapters and value head train in float32"
    assert lora.most_rows(24 * GIB) >= 1
    assert 2 * OPENVLA_7B < serving_bytes(OPENVLA_7B, lora.rollout_row, lora.cache_row) < 24 * GIB


def test_gradient_checkpointing_saves_activations() -> None:
    config, row = openvla_preset("tiny"), {}
    for checkpointing in (True, False):
        mode = Mode(lora_rank=32, dtype="bfloat16", gradient_checkpointing=checkpointing)
        row[checkpointing] = need(mode, measure(config, pick(TrainingMode, mode)), 0).row
    assert row[True] < 0.5 * row[False]


def test_the_7b_has_the_published_parameters_and_training_all_of_them_needs_more_than_24_gib() -> None:
    with torch.device("meta"):
        policy = trainable(openvla_preset("7b"), _mode(train_expert_only=False, dtype="float32", checkpointing=False))
    assert count_parameters(policy) == OPENVLA_7B + VALUE_HEAD
    trained = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    mode = Mode(dtype="float32", gradient_checkpointing=True)
    for element in (2, 4):  # in bfloat16 and in float32
        least = Footprint(element * (OPENVLA_7B + VALUE_HEAD), trained, 0, update_per_row=1, rollout_per_row=1)
        assert need(mode, least, 0).most_rows(24 * GIB) == 0


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict, str]]:
    """Figures of a policy's nano on 24 GiB, and what is printed at 80 columns; planned once."""

    @cache
    def plan(policy: str) -> tuple[dict, str]:
        said = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(said):
            patch.setenv("COLUMNS", "80")
            path = tmp_path_factory.mktemp(policy) / "f.json"
            code, figures = _plan(path, "--policy", policy, "--preset", "nano", "--gpu", "24")
        assert code == 0
        return figures, said.getvalue()

    return plan


def test_the_ways_to_train_differ_as_they_must(planned: Callable[[str], tuple[dict, str]]) -> None:
    figures, _ = planned("openvla")
    full = next(m for m in figures["modes"] if not m["mode"]["lora_rank"] and m["mode"]["dtype"] == "float32")
    assert full["weights"] == 4 * figures["parameters"] == full["gradients"]
    assert figures["gpu_bytes"] == 24 * GIB
    lora = {m["mode"]["gradient_checkpointing"]: m for m in figures["modes"] if m["mode"]["lora_rank"]}
    assert lora[False]["optimizer"] == 2 * lora[False]["gradients"] < full["optimizer"]
    assert lora[True]["row"] < 0.9 * lora[False]["row"], "recomputation saves activations"
    assert lora[True]["weights"] == lora[False]["weights"]


@pytest.mark.parametrize("policy", ["openvla", "pi0"])
def test_the_table_is_whole_at_80_columns(policy: str, planned: Callable[[str], tuple[dict, str]]) -> None:
    _, said = planned(policy)
    assert "…" not in said
    table = said[said.index("activations of a row") : said.index("deciding for one robot")]
    assert max(map(len, table.splitlines())) <= 80
    for word in ("checkpointing", "bfloat16", "parameters", "activations", "least in all", "micro-batch", "rows"):
        assert word in table


def test_nothing_fits_on_a_small_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _plan(tmp_path / "f.json", "--preset", "nano", "--gpu", "1")
    assert code == 1
    assert all(mode["most_rows"] == 0 for mode in found["modes"])
    assert "no way to train fits: a GPU needs at least" in capsys.readouterr().out


def test_the_largest_micro_batch_fits_and_one_row_more_does_not() -> None:
    mode = Mode(lora_rank=0, dtype="float32", gradient_checkpointing=False)
    found = Need(
        mode=mode,
        weights=7 * GIB,
        gradients=GIB,
        optimizer=2 * GIB,
        fixed=GIB // 2,
        row=GIB // 3,
        rollout_row=GIB // 8,
        cache_row=GIB // 16,
    )
    budget = 16 * GIB
    rows, envs = found.most_rows(budget), found.most_envs(budget)
    assert found.total(rows, 1) <= budget < found.total(rows + 1, 1)
    assert found.total(1, envs) <= budget < found.total(1, envs + 1)
    assert found.total(2, 1) == CONTEXT_BYTES + int((1 + GAPS) * (10.5 * GIB + 2 * (GIB // 3)))


def test_what_is_counted_is_what_a_real_policy_holds() -> None:
    policy = OpenVLAPolicy.fresh(nano(), ["open it"])
    found = measure(nano(), _mode(train_expert_only=False, dtype="float32", checkpointing=False))
    held = sum(tensor.nbytes for tensor in (*policy.parameters(), *policy.buffers()))
    assert abs(found.weights - 4 * count_parameters(policy)) <= held - 4 * count_parameters(policy)
    assert found.trained == sum(p.numel() for p in policy.parameters() if p.requires_grad)


PI0_BASE, PI05_BASE = 3_501_372_176, 3_616_757_520


def _heads(width: int, critic: int) -> int:
    """Value and noise head, which training adds."""
    noise = (width + 1) * 128 + (128 + 1) * 64 + (64 + 1) * 32
    return (critic + 1) * 512 + (512 + 1) * 128 + (128 + 1) + noise


def test_what_is_counted_of_smolvla_is_what_a_policy_holds() -> None:
    config = smolvla_preset("nano")
    found = measure_smolvla(config, _mode(train_expert_only=True, dtype="bfloat16", checkpointing=True))
    policy = SmolVLAPolicy.fresh(config, ["open it"])
    policy.model.freeze_language_model()
    assert found.trained == sum(p.numel() for p in policy.parameters() if p.requires_grad)
    assert found.trained + (found.weights - 4 * found.trained) // 2 == count_parameters(policy)
    assert prefix_bytes(smolvla_preset("smolvla_base"), 2) == 2 * 2 * 16 * 5 * 64 * (2 * 64 + 24)


@pytest.mark.parametrize(
    ("preset", "parameters", "critic"), [("pi0_base", PI0_BASE, 1024), ("pi05_base", PI05_BASE, 2048)]
)
def test_pi0_and_pi05_are_counted_as_published(preset: str, parameters: int, critic: int) -> None:
    config = pi0_preset(preset)
    if config.state_input == "prompt":  # of made-up words no state can be written
        config = replace(config, state_input="none")
    with torch.device("meta"):
        policy = Pi0Policy.fresh(config, ["open it"], flow=FlowSettings())
    policy.with_value = True
    assert count_parameters(policy) == parameters + _heads(1024, critic=critic)
    trained = sum(parameter.numel() for parameter in policy.parameters() if parameter.requires_grad)
    assert trained == count_parameters(policy) - 257152 * 1024, "the expert's unused head is frozen"


def test_the_action_expert_of_the_published_pi0_trains_on_24_gib() -> None:
    config, mode = (pi0_preset("pi0_base"), Mode(dtype="bfloat16", gradient_checkpointing=True, train_expert_only=True))
    found = need(mode, measure_pi0(config, pick(TrainingMode, mode)), cache_bytes_of_pi0(config, 2))
    trained = found.gradients // 4
    assert 3e8 < trained < 5e8
    assert found.weights == 4 * trained + 2 * (PI0_BASE + _heads(1024, critic=1024) - trained)
    assert found.most_rows(24 * GIB) > 0
    # 18 layers, one head of 256 for keys and values in bfloat16; two cameras of 256 patches and a prompt
    token, kept = 18 * 2 * 256 * 2, prefix_bytes(config, 2)
    assert 512 * token < kept < 600 * token
    assert found.cache_row - kept == 51 * token


def test_lora_on_the_published_pi0_fits_on_24_gib() -> None:
    config, mode = pi0_preset("pi0_base"), Mode(lora_rank=32, dtype="bfloat16", gradient_checkpointing=True)
    found = need(mode, measure_pi0(config, pick(TrainingMode, mode)), cache_bytes_of_pi0(config, 2))
    trained = found.gradients // 4
    assert 5e7 < trained < 2e8
    assert found.weights == 4 * trained + 2 * (PI0_BASE + _heads(1024, critic=1024)) - 2 * _whole(config)
    assert found.most_rows(24 * GIB) >= 8


def _whole(config: Pi0ModelConfig) -> int:
    """Parameters that train whole beside adapters: they are float32 and no frozen bfloat16."""
    width, wide = config.expert.dim, config.max_action_dim
    projections = 2 * width * wide + width + wide + width * config.max_state_dim + width
    return projections + (2 * width + 1) * width + (width + 1) * width + _heads(1024, critic=1024)


def test_the_ways_to_train_pi0_differ_as_they_must(planned: Callable[[str], tuple[dict, str]]) -> None:
    found, _ = planned("pi0")
    few, lora, expert, again, full, exact = found["modes"]
    assert [mode["mode"]["train_expert_only"] for mode in found["modes"]] == [False, False, True, True, False, False]
    assert [mode["mode"]["lora_rank"] for mode in found["modes"]] == [32, 32, 0, 0, 0, 0]
    assert few["row"] < lora["row"]
    assert expert["row"] < few["row"], "what is frozen keeps no activations"
    assert exact["weights"] == 4 * found["parameters"]
    # what is frozen keeps no activations, and what is computed again keeps few
    assert expert["row"] < again["row"] < exact["row"]
    assert full["row"] < exact["row"]


def test_the_advice_for_pi0_is_a_command_that_train_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, found = _plan(tmp_path / "f.json", "--policy", "pi05", "--preset", "nano_pi05", "--gpu", "3")
    assert code == 0
    assert found["preset"] == "nano_pi05"
    said = capsys.readouterr().out
    assert "train libero --policy pi0 --policy.dtype float32" in said
    assert "prefixes kept for the update" in said


def test_what_is_counted_of_pi0_is_what_a_real_policy_holds() -> None:
    policy = Pi0Policy.fresh(pi0_preset("nano"), ["open it"])
    policy.model.freeze_language_model()
    found = measure_pi0(pi0_preset("nano"), _mode(train_expert_only=True, dtype="float32", checkpointing=False))
    assert found.weights == 4 * count_parameters(policy)
    assert found.trained == sum(p.numel() for p in policy.parameters() if p.requires_grad)
    whole = measure_pi0(pi0_preset("nano"), _mode(train_expert_only=False, dtype="float32", checkpointing=False))
    assert found.update_per_row < whole.update_per_row
    policy.prefix_cache = PrefixCache(1 << 30)
    words = " ".join(["open"] * 23)  # with the token that begins it as long as the plan's prompt
    obs = Observation.from_numpy(np.zeros((1, 2, 64, 64, 3), np.uint8), np.zeros((1, 8), np.float32), [words])
    policy.act(obs, DecisionRng(np.zeros(1, np.int64), np.zeros(1, np.int64)), "sample")
    assert policy.prefix_cache._used == prefix_bytes(policy.config, 4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "pi0", "--lora-rank", "0"], "--lora-rank must be positive"),
        (["--policy", "smolvla", "--preset", "nan"], "Did you mean 'nano'"),
        (["--policy", "pi0", "--preset", "pi05_base"], "is one of pi05, not of pi0"),
        (["--policy", "pi05", "--preset", "pi05_bas"], "Did you mean 'pi05_base'?"),
        (["--policy", "openvl"], "Did you mean 'openvla'?"),
        (["--preset", "70b"], "unknown"),
        (["--gpu", "0"], "--gpu must be positive"),
        (["--gpu", "nan"], "--gpu must be positive and finite"),
        (["--policy", "pi0", "--variant", "simplevla"], "needs --policy openvla_oft"),
        (["--policy", "openvla_oft", "--variant", "rlnf"], "Did you mean 'rlinf'?"),
    ],
)
def test_bad_words_are_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1

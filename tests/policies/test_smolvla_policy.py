"""SmolVLA behind the policy contract: what it has in common with pi0 holds for it too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.efficient import DenoiseReuse, VisualPruner, drop_layers
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.nn.checkpointing import set_gradient_checkpointing
from embodied_rl.policies.nn.lora import set_formats
from embodied_rl.policies.pi0.checkpoint import load_policy, save_policy
from embodied_rl.policies.pi0.hf_keys import OURS_ALONE
from embodied_rl.policies.prefix_cache import PrefixCache
from embodied_rl.policies.preprocessing.text import build_word_tokenizer
from embodied_rl.policies.smolvla import checkpoint
from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions, load
from embodied_rl.policies.smolvla.config import preset
from embodied_rl.policies.smolvla.hf_format import described, save_published
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy, SmolVLAPrompt
from embodied_rl.types import Observation
from tests.policies.pi0_models import decision_rng
from tests.policies.smolvla_models import golden, lerobot_folder, observation, tensors, tiny_policy, tiny_vlm

METHODS = ("flow_sde", "flow_noise")


def _acted(method: str = "flow_noise", rows: int = 6) -> tuple[SmolVLAPolicy, Observation, Any]:
    policy = tiny_policy(FlowSettings(exploration=method, num_inference_steps=4))  # type: ignore[arg-type]
    policy.with_value = True
    obs = observation(rows)
    return policy, obs, policy.act(obs, decision_rng(rows), "sample")


def _gradients(policy: SmolVLAPolicy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("method", METHODS)
def test_evaluate_recomputes_what_act_did(method: str) -> None:
    policy, obs, out = _acted(method)
    assert out.actions.shape == (6, 3, 3)
    again = policy.evaluate(*tensors(obs), out.replay)
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=2e-5)
    torch.testing.assert_close(again.value, out.value, rtol=0, atol=1e-5)
    assert again.entropy.shape == again.log_prob.shape == (6, 9)


def test_a_row_depends_on_its_observation_and_not_on_its_neighbours() -> None:
    policy, obs, out = _acted()
    rng = decision_rng(6)
    few = Observation(obs.images[1:3], obs.proprio[1:3], obs.instruction[1:3])
    alone = policy.act(few, replace(rng, seed=rng.seed[1:3], decision=rng.decision[1:3]), "sample")
    np.testing.assert_allclose(alone.actions, out.actions[1:3], atol=1e-5)
    greedy = policy.act(obs, rng, "greedy").actions
    for changed in (
        Observation(255 - obs.images, obs.proprio, obs.instruction),
        Observation(obs.images, obs.proprio + 1, obs.instruction),
        Observation(obs.images, obs.proprio, obs.instruction[::-1]),
    ):
        assert (policy.act(changed, rng, "greedy").actions - greedy).abs().max() > 1e-6


@pytest.mark.parametrize("recompute", [False, True])
def test_shared_prefix_update_equals_separate_updates(recompute: bool) -> None:
    """K = 4 denoising steps of each decision in one pass over one prefix, or each with its own: same gradients."""
    policy, obs, out = _acted()
    set_gradient_checkpointing(policy, recompute)
    policy.evaluate(*tensors(obs), out.replay).log_prob.square().sum().backward()
    policy.zero_grad()
    policy.evaluate(*tensors(obs), out.replay).log_prob.sum().backward()
    shared = _gradients(policy)
    policy.zero_grad()
    set_gradient_checkpointing(policy, False)
    for m in range(4):
        part = {"points": out.replay["points"][:, m : m + 2], "step": out.replay["step"][:, m : m + 1]}
        policy.evaluate(*tensors(obs), part).log_prob.sum().backward()
    separate = _gradients(policy)
    assert shared.keys() == separate.keys()
    for name, gradient in shared.items():
        scale = separate[name].abs().max().clamp_min(1.0)
        assert (gradient - separate[name]).abs().max() <= 2e-5 * scale, name
    last = (
        "self_attn.q_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
        "post_attention_layernorm",
    )
    idle = {f"language.layers.3.{part}.weight" for part in last} | {"language.norm.weight", "lm_head.weight"}
    missing = {name for name, _ in policy.model.named_parameters()} - {name[6:] for name in shared}
    assert {name for name in missing if not name.startswith("value_head")} == idle


@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_prefix_is_kept_and_only_the_rest_learns(method: str) -> None:
    policy, obs, _ = _acted(method)
    policy.model.freeze_language_model()
    policy.prefix_cache = PrefixCache(1 << 30)
    out = policy.act(obs, decision_rng(6), "sample")
    kept = policy.evaluate(*tensors(obs), out.replay)
    assert (policy.prefix_cache.found, policy.prefix_cache.missed) == (6, 0)
    policy.prefix_cache = None
    torch.testing.assert_close(kept.log_prob, policy.evaluate(*tensors(obs), out.replay).log_prob, rtol=0, atol=1e-5)
    kept.log_prob.sum().backward()
    parts = {name.split(".")[1] for name in _gradients(policy)}
    assert {"expert", "state_proj"} <= parts
    assert not parts & {"vision", "projector", "language", "lm_head"}
    set_formats(policy.model, "bfloat16")
    policy.mixed_precision = True
    again = policy.evaluate(*tensors(obs), out.replay)
    assert again.log_prob.dtype == torch.float32
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=1.0)
    again.log_prob.sum().backward()


def test_imitation_learns_a_constant_action() -> None:
    policy = tiny_policy(FlowSettings(num_inference_steps=4, loss_samples=4))
    obs, actions = observation(3), torch.full((3, 5, 3), 0.3)
    adam = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for _ in range(80):
        adam.zero_grad()
        policy.sft_loss(*tensors(obs), actions).backward()
        adam.step()
    assert (policy.act(obs, decision_rng(3), "greedy").actions - 0.3).abs().mean() < 0.2  # 0.62 at the start


def test_options_of_evaluation_that_leave_nothing_out_change_nothing() -> None:
    policy, obs, _ = _acted()
    rng, whole = decision_rng(6), {}
    with torch.no_grad():
        prefix = policy.read_prefix(*tensors(obs), 1)
        x, step = torch.randn(6, 1, 5, 4), torch.zeros(6, 1, dtype=torch.int64)
        whole = policy.denoise_step(prefix, x, step).mean
        reused = replace(prefix, expert=DenoiseReuse(policy.model.expert, 2))
        torch.testing.assert_close(policy.denoise_step(reused, x, step).mean, whole)
        policy.model.pruner = VisualPruner(policy.model.language, 0, 8, 8)
        torch.testing.assert_close(policy.denoise_step(policy.read_prefix(*tensors(obs), 1), x, step).mean, whole)
    policy.model.pruner = VisualPruner(policy.model.language, 0, 8, 3)
    drop_layers([policy.model.language, policy.model.expert], [1])
    out = policy.act(obs, rng, "sample")
    again = policy.evaluate(*tensors(obs), out.replay)
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=2e-5)


def test_prompts_are_lerobots() -> None:
    tokenizer = Tokenizer(models.WordLevel({"open\n": 0, "pick_up it\n": 1, "?": 2}, unk_token="?"))
    prompt = SmolVLAPrompt(tokenizer, 3)
    assert prompt.batch(["pick_up it", "open\n"], None)[0].tolist() == [[1], [0]]
    words = SmolVLAPrompt(build_word_tokenizer(["a b"], 9, fixed=()), 9)
    ids, lengths = words.batch(["a " * 99, "a"], None)
    assert (ids.shape, lengths) == ((2, 48), [48, 2])
    with pytest.raises(UserError, match="has 3 tokens, the model 2"):
        SmolVLAPrompt(tokenizer, 2)


def test_save_load_save_is_bit_identical(tmp_path: Path) -> None:
    policy = tiny_policy(FlowSettings(exploration="flow_noise", num_inference_steps=3))
    policy.statistics = replace(policy.statistics, state=replace(policy.statistics.state, eps=1e-8))
    policy.robots = {policy.unnorm_key: replace(policy.robots[policy.unnorm_key], statistics=policy.statistics)}
    save_policy(policy, tmp_path / "a", {"seed": 1})
    loaded = load_policy(tmp_path / "a", SmolVLAPolicy)
    save_policy(loaded, tmp_path / "b", read_provenance(tmp_path / "a"))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    assert (loaded.config, loaded.flow, loaded.statistics.state.eps) == (policy.config, policy.flow, 1e-8)
    obs, rng = observation(2), decision_rng(2)
    np.testing.assert_array_equal(policy.act(obs, rng, "sample").actions, loaded.act(obs, rng, "sample").actions)
    with pytest.raises(UserError, match="architecture 'smolvla', not 'pi0': choose the matching --policy"):
        load_policy(tmp_path / "a")


@pytest.fixture
def tiny_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden file's language model stands for the published one."""
    monkeypatch.setattr(checkpoint, "preset", lambda _: tiny_vlm())


@pytest.mark.usefixtures("tiny_base")
def test_lerobots_files_load_and_save_bit_identical(tmp_path: Path) -> None:
    source = lerobot_folder(tmp_path / "lerobot")
    policy = load(source, SmolVLAOptions())
    assert (policy.config.horizon, policy.config.chunk_len, policy.config.lm_head_rows) == (5, 3, 64)
    save_published(policy, tmp_path / "a", ("a", "b"), {"command": "test"})
    again = load(tmp_path / "a", SmolVLAOptions())
    save_published(again, tmp_path / "b", ("a", "b"), {"command": "test"})
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "config.json",
        "model.safetensors",
        "policy_postprocessor.json",
        "policy_postprocessor_step_0_unnormalizer_processor.safetensors",
        "policy_preprocessor.json",
        "policy_preprocessor_step_5_normalizer_processor.safetensors",
        "provenance.json",
        "tokenizer.json",
    ]
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (source, tmp_path / "a"))
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    written, read = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "a", source))
    assert {name: value for name, value in written.items() if read[name] != value} == {}
    frozen = {name for name, p in again.model.named_parameters() if not p.requires_grad}
    assert frozen == {"lm_head.weight"}
    assert again.statistics.action.eps == 1e-8
    for name, tensor in policy.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    assert load(source, SmolVLAOptions(chunk_len=2)).chunk_len == 2


@pytest.mark.usefixtures("tiny_base")
def test_every_wrong_published_parameter_is_named(tmp_path: Path) -> None:
    file = lerobot_folder(tmp_path / "lerobot") / "model.safetensors"
    state = load_file(file)
    del state["model.state_proj.bias"]
    cross = "model.vlm_with_expert.lm_expert.layers.1.self_attn.k_proj.weight"
    save_file(state | {"normalize_inputs.mean": torch.zeros(3), cross: torch.zeros(16, 18)}, file)
    with pytest.raises(UserError) as error:
        load(file.parent, SmolVLAOptions())
    for part in (
        "missing model.state_proj.bias",
        "unexpected normalize_inputs.mean",
        f"{cross} is [16, 18], expected [16, 16]",
    ):
        assert part in str(error.value)


@pytest.mark.usefixtures("tiny_base")
def test_what_lerobots_files_lack_is_said(tmp_path: Path) -> None:
    folder = lerobot_folder(tmp_path / "lerobot")
    with pytest.raises(UserError, match=r"1\.\.5"):
        load(folder, SmolVLAOptions(chunk_len=6))
    statistics = folder / "policy_preprocessor_step_5_normalizer_processor.safetensors"
    # as in smolvla_base, whose statistics are those of its training data, each under a name of its own
    save_file({"so100.buffer.action.mean": torch.zeros(3)}, statistics)
    with pytest.raises(UserError, match=r"no statistics of state or observation\.state, only of so100\.buffer\.action"):
        load(folder, SmolVLAOptions())
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="name SmolVLM2's with the option tokenizer"):
        load(folder, SmolVLAOptions())
    save_policy(tiny_policy(), tmp_path / "ours", {})
    with pytest.raises(UserError, match="leave the option statistics out"):
        load(tmp_path / "ours", SmolVLAOptions(statistics="x"))
    assert load(tmp_path / "ours", SmolVLAOptions(chunk_len=1)).chunk_len == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_mode": "self_attn"}, "attention_mode is 'self_attn', and only 'cross_attn'"),
        ({"vlm_model_name": "HuggingFaceTB/SmolVLM-Instruct"}, "only 'HuggingFaceTB/SmolVLM2-500M-Video-Instruct'"),
        ({"num_expert_layers": 2}, "2 expert layers for 4"),
        ({"resize_imgs_with_padding": None}, r"must be \[32, 32\]"),
        ({"output_features": {}}, "lacks 'action'"),
        ({"normalization_mapping": {"STATE": "MIN_MAX", "ACTION": "MEAN_STD"}}, "one of MEAN_STD, QUANTILES for both"),
    ],
)
def test_configurations_of_another_network_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        described(golden()["config"] | changes, tiny_vlm())


def test_configurations_are_read_as_lerobot_means_them() -> None:
    data = golden()["config"]
    cameras = {
        "observation.images.wide": {"type": "VISUAL", "shape": [3, 48, 64]},
        "observation.images.empty_camera_0": {"type": "VISUAL", "shape": [3, 480, 640]},
    }
    state = {"observation.state": {"type": "STATE", "shape": [6]}}
    config, mode, steps = described(
        data
        | {
            "input_features": cameras | state,
            "num_steps": 7,
            "expert_width_multiplier": 0.5,
            "normalization_mapping": {"STATE": "QUANTILES", "ACTION": "QUANTILES"},
        },
        tiny_vlm(),
    )
    assert (config.num_cameras, config.frame_size, config.proprio_dim, config.expert.dim) == (1, 64, 6, 12)
    assert (mode, steps) == ("quantiles", 7)
    base = preset("smolvla_base")
    published = data | {"resize_imgs_with_padding": [512, 512], "num_vlm_layers": 16}
    assert described(published, base)[0].expert == base.expert
    for changes in ({"shuffle": 3}, {"self_attn_every": 0}, {"state_input": "prompt"}):
        with pytest.raises(ValueError):
            replace(base, **changes)
    with pytest.raises(UserError, match="Did you mean 'smolvla_base'"):
        preset("smolvla")


def test_what_cannot_be_published_is_refused(tmp_path: Path) -> None:
    own = SmolVLAPolicy.fresh(preset("nano"), ["open it"])
    with pytest.raises(UserError, match="this policy has its own"):
        save_published(own, tmp_path / "x", ("a", "b"), {})
    with pytest.raises(UserError, match="2 cameras, 1 names"):
        save_published(tiny_policy(), tmp_path / "x", ("a",), {})
    assert not (tmp_path / "x").exists()
    assert {name.split(".")[0] for name, _ in own.model.named_parameters()} >= {"camera_embed", "step_embed"}
    assert "camera_embed" in OURS_ALONE

"""LoRA on pi0, pi0.5 and SmolVLA: what adapts, gradients against a merged model, checkpoints, export."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.adapters import adapt
from embodied_rl.policies.checkpoints.shards import weight_files
from embodied_rl.policies.family import ExportRequest
from embodied_rl.policies.nn import lora
from embodied_rl.policies.pi0 import Pi0Config
from embodied_rl.policies.pi0.checkpoint import export, load_policy, prepare, save_policy
from embodied_rl.policies.pi0.hf_format import save_published
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions
from embodied_rl.policies.smolvla.checkpoint import load as load_smolvla
from embodied_rl.policies.smolvla.hf_format import save_published as save_smolvla
from embodied_rl.types import Observation
from tests.policies import smolvla_models
from tests.policies.pi0_models import decision_rng, observation, tensors, tiny_policy

KINDS = ("pi0", "pi05", "smolvla")
RANK = 4


def _policy(kind: str) -> Pi0Policy:
    return smolvla_models.tiny_policy() if kind == "smolvla" else tiny_policy(kind)


def _observation(kind: str, rows: int) -> Observation:
    return smolvla_models.observation(rows) if kind == "smolvla" else observation(rows)


def _move(network: nn.Module) -> None:
    """Adapters that change something."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if ".lora_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def _imitation(policy: Pi0Policy, obs: Observation) -> Tensor:
    shape = (len(obs.instruction), policy.config.horizon, policy.action_dim)
    actions = torch.rand(shape, generator=torch.Generator().manual_seed(3)) * 2 - 1
    policy.eval()
    return policy.sft_loss(*tensors(obs), actions)


@pytest.mark.parametrize("kind", KINDS)
def test_all_but_the_idle_layers_adapt_and_projections_train_whole(kind: str) -> None:
    policy, obs = _policy(kind), _observation(kind, 3)
    before = _imitation(policy, obs)
    lora.add_lora(policy.model, RANK)
    torch.testing.assert_close(_imitation(policy, obs), before, rtol=0, atol=1e-6)
    adapted = {name.partition(".lora_A.")[0] for name, _ in policy.model.named_parameters() if ".lora_A." in name}
    last = policy.config.decoder.layers - 1
    assert {"vision.blocks.0.attn.qkv", "projector", f"expert.layers.{last}.mlp.down_proj"} <= adapted
    assert f"language.layers.{last}.self_attn.k_proj" in adapted
    assert not [name for name in adapted if "head" in name or name == f"language.layers.{last}.mlp.up_proj"]
    whole = {name.split(".")[0] for name in lora.trained_whole(policy.model)}
    both = {"action_in_proj", "action_out_proj", "value_head", "noise_head"}
    time = {"time_mlp_in", "time_mlp_out"} if kind == "pi05" else {"action_time_mlp_in", "action_time_mlp_out"}
    assert whole == both | time | (set() if kind == "pi05" else {"state_proj"})


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_adapters_are_those_of_the_merged_weights(kind: str) -> None:
    """W = W0 + s B A: the loss's gradient G by W gives s G A^T by B and s B^T G by A."""
    policy, obs = _policy(kind), _observation(kind, 3)
    lora.add_lora(policy.model, RANK)
    _move(policy.model)
    merged = copy.deepcopy(policy)
    lora.merge_lora(merged.model)
    merged.model.requires_grad_(True)
    _imitation(policy, obs).backward()
    _imitation(merged, obs).backward()
    plain = dict(merged.model.named_parameters())
    checked = 0
    for name, module in policy.model.named_modules():
        if not hasattr(module, "lora_A"):
            continue
        layer: Any = module
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        scale, gradient = layer.scaling["default"], plain[f"{name}.weight"].grad
        assert gradient is not None, name
        torch.testing.assert_close(b.grad, scale * gradient @ a.T, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(a.grad, scale * b.T @ gradient, rtol=1e-4, atol=1e-6)
        checked += 1
    assert checked > 20
    for name in lora.trained_whole(policy.model):
        ours, theirs = policy.model.get_parameter(name).grad, plain[name].grad
        if theirs is None:
            assert ours is None, name
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("base", ["own", "openpi", "lerobot"])
def test_adapters_over_any_layout_round_trip_and_export_merged(base: str, tmp_path: Path) -> None:
    policy = tiny_policy()
    if base == "own":
        save_policy(policy, tmp_path / "base", {})
    else:
        save_published(policy, tmp_path / "base", base, ("image", "wrist"), {})  # type: ignore[arg-type]
    adapt(policy, tmp_path / "base", weight_files, RANK)
    _move(policy.model)
    save_policy(policy, tmp_path / "a", {})
    assert not (tmp_path / "a" / "model.safetensors").exists()
    again = load_policy(tmp_path / "a")
    for (name, one), two in zip(policy.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two), name
        assert one.requires_grad == two.requires_grad, name
    obs = observation(3)
    acted = policy.act(obs, decision_rng(3), "greedy").actions
    request = ExportRequest(out=tmp_path / "out", layout="native", cameras=(), provenance={}, dtype=None)
    export(again, request)
    assert again.base is None
    merged = load_policy(tmp_path / "out")
    assert not lora.has_lora(merged.model)
    torch.testing.assert_close(merged.act(obs, decision_rng(3), "greedy").actions, acted, rtol=0, atol=1e-5)
    assert (tiny_policy().act(obs, decision_rng(3), "greedy").actions - acted).abs().max() > 1e-3


def test_adapters_over_a_published_smolvla_round_trip(tmp_path: Path) -> None:
    policy = smolvla_models.tiny_policy()
    save_smolvla(policy, tmp_path / "base", tuple(f"c{i}" for i in range(policy.config.num_cameras)), {})
    adapt(policy, tmp_path / "base", weight_files, RANK)
    _move(policy.model)
    save_policy(policy, tmp_path / "a", {})
    again = load_smolvla(tmp_path / "a", SmolVLAOptions())
    assert all(torch.equal(one, two) for one, two in zip(policy.parameters(), again.parameters(), strict=True))


def test_adapters_of_the_action_expert_alone(tmp_path: Path) -> None:
    save_policy(tiny_policy(), tmp_path / "base", {})
    policy = load_policy(tmp_path / "base")
    config = Pi0Config(train_expert_only=True, lora_rank=RANK)
    prepare(policy, config, tmp_path / "base")
    adapted = {name.split(".")[0] for name, _ in policy.model.named_parameters() if ".lora_" in name}
    assert adapted == {"expert"}
    assert not any(parameter.requires_grad for parameter in policy.model.prefix_parameters())
    _move(policy.model)
    save_policy(policy, tmp_path / "a", {})
    again = load_policy(tmp_path / "a")
    prepare(again, config, tmp_path / "a")
    for (name, one), two in zip(policy.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two), name
        assert one.requires_grad == two.requires_grad, name
    with pytest.raises(UserError, match="has LoRA adapters of rank 4"):
        prepare(again, Pi0Config(lora_rank=2), tmp_path / "a")


def test_changed_weights_and_foreign_adapters_are_refused(tmp_path: Path) -> None:
    policy = tiny_policy()
    save_policy(policy, tmp_path / "base", {})
    adapt(policy, tmp_path / "base", weight_files, RANK)
    save_policy(policy, tmp_path / "a", {})
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b" / "lora_adapter" / "adapter_config.json"
    path.write_text(path.read_text().replace("language.layers.0", "language.layers.9"))
    with pytest.raises(UserError, match="adapts other layers than this policy has"):
        load_policy(tmp_path / "b")
    save_policy(tiny_policy(seed=1), tmp_path / "base", {})
    with pytest.raises(UserError, match=r"adapts other weights than those in .*base"):
        load_policy(tmp_path / "a")

"""LoRA through peft, gradient checkpointing, number formats, and checkpoints without the weights that they adapt."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from embodied_rl.algorithms.base import evaluate_rows
from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.algorithms.grpo import GRPO
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import RatioError
from embodied_rl.policies.checkpoints.folder import read_json
from embodied_rl.policies.nn import lora
from embodied_rl.policies.nn.checkpointing import set_gradient_checkpointing
from embodied_rl.policies.openvla.checkpoint import adapt_policy, export_policy, load_policy, save_policy
from embodied_rl.policies.openvla.config import nano, openvla_7b
from embodied_rl.policies.openvla.model import OpenVLAModel
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.types import ActOutput, EpisodeResult, EpisodeSpec, EvalOutput, Observation, RolloutBatch
from tests.policies.oft_policies import INSTRUCTIONS, PUBLISHED, observation, rng
from tests.policies.oft_policies import config as oft_config
from tests.policies.oft_policies import policy as oft_policy


def _policy(kind: str = "openvla", seed: int = 0) -> OpenVLAPolicy:
    if kind == "openvla_oft":
        return OpenVLAOFTPolicy.fresh(oft_config(head="l1", film=True), INSTRUCTIONS, seed=seed)
    config = nano(image_size=32, vision_dim=32, dim=64, mlp_dim=96, text_vocab=64, chunk_len=2)
    return OpenVLAPolicy.fresh(config, INSTRUCTIONS, seed=seed)


def _move_adapters(network: nn.Module) -> None:
    """Adapters that change something."""
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if ".lora_" in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


def _evaluate(policy: OpenVLAPolicy, obs: Observation, out: ActOutput) -> EvalOutput:
    return policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay)


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
def test_fresh_adapters_change_nothing_and_only_they_and_the_heads_train(kind: str) -> None:
    policy = _policy(kind)
    obs = observation(3, policy)  # type: ignore[arg-type]
    out = policy.act(obs, rng(3), "sample")
    lora.add_lora(policy.model, 4)
    again = policy.act(obs, rng(3), "sample")
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=2e-4)
    trained = {name for name, p in policy.model.named_parameters() if p.requires_grad and ".lora_" not in name}
    heads = {"value_head", "proprio_projector"} | ({"action_head"} if kind == "openvla_oft" else set())
    assert {name.split(".")[0] for name in trained if "vision_backbone" not in name} == heads
    assert any(".scale." in name for name in trained) == (kind == "openvla_oft")
    adapted = {name.partition(".lora_A.")[0] for name, _ in policy.model.named_parameters() if ".lora_A." in name}
    assert "language_model.model.layers.1.mlp.down_proj" in adapted
    assert "vision_backbone.fused_featurizer.blocks.0.attn.qkv" in adapted
    assert "projector.fc2" in adapted
    assert not [name for name in adapted if "lm_head" in name or "value_head" in name or "proprio" in name]


def test_layers_of_7b_that_never_run_get_no_adapter() -> None:
    with torch.device("meta"):
        model = OpenVLAModel(openvla_7b())
        lora.add_lora(model, 32)
    adapted = {name.partition(".lora_A.")[0] for name, _ in model.named_parameters() if ".lora_A." in name}
    assert not [name for name in adapted if "blocks.23." in name and ".featurizer" in name]
    assert not [name for name in adapted if "blocks.26." in name or "attn_pool" in name]
    assert len(adapted) == 23 * 4 + 26 * 4 + 3 + 32 * 7
    trained = sum(p.numel() for name, p in model.named_parameters() if p.requires_grad and "value" not in name)
    per_layer = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    towers = 23 * (2 * 1024 * 2 + 1024 * 2 + (1024 + 4096) * 2) + 26 * (1152 * 4 + 1152 * 2 + (1152 + 4304) * 2)
    projector = 2176 + 8704 + 8704 + 4096 + 4096 + 4096
    assert trained == 32 * (32 * per_layer + towers + projector)


def test_adapted_act_equals_adapted_evaluate() -> None:
    policy = _policy()
    lora.add_lora(policy.model, 4)
    _move_adapters(policy.model)
    policy.with_value = True
    obs = observation(4, policy)  # type: ignore[arg-type]
    out = policy.act(obs, rng(4), "sample")
    again = _evaluate(policy, obs, out)
    torch.testing.assert_close(again.log_prob.detach(), out.log_prob, rtol=0, atol=1e-5)
    (again.log_prob.sum() + again.value.sum()).backward()  # type: ignore[union-attr]
    silent = [name for name, p in policy.model.named_parameters() if p.requires_grad and p.grad is None]
    assert silent == []


def test_merging_keeps_the_function_and_leaves_a_plain_network() -> None:
    policy = _policy()
    names = policy.model.state_dict().keys()
    lora.add_lora(policy.model, 4)
    _move_adapters(policy.model)
    obs = observation(3, policy)  # type: ignore[arg-type]
    out = policy.act(obs, rng(3), "greedy")
    before = _evaluate(policy, obs, out).log_prob.detach()
    lora.merge_lora(policy.model)
    assert policy.model.state_dict().keys() == names
    torch.testing.assert_close(_evaluate(policy, obs, out).log_prob.detach(), before, rtol=0, atol=1e-5)


def test_peft_reads_our_adapters(tmp_path: Path) -> None:
    """`PeftModel.from_pretrained` on the plain network gives the adapted policy's outputs."""
    from peft import PeftModel

    policy = _policy()
    plain = copy.deepcopy(policy)
    lora.add_lora(policy.model, 4)
    _move_adapters(policy.model)
    for name, content in lora.lora_files(policy.model, 4).items():
        (tmp_path / name).write_bytes(content)
    assert read_json(tmp_path / "adapter_config.json")["lora_alpha"] == 4
    wrapped = PeftModel.from_pretrained(plain.model, str(tmp_path))
    plain.model = cast("OpenVLAModel", wrapped.base_model.model)
    obs = observation(3, policy)  # type: ignore[arg-type]
    out = policy.act(obs, rng(3), "greedy")
    torch.testing.assert_close(
        _evaluate(plain, obs, out).log_prob.detach(), _evaluate(policy, obs, out).log_prob.detach()
    )


def test_rank_and_second_adapters_are_refused() -> None:
    policy = _policy()
    with pytest.raises(UserError, match="at least 1, got 0"):
        lora.add_lora(policy.model, 0)
    lora.add_lora(policy.model, 2)
    with pytest.raises(UserError, match="has LoRA adapters already"):
        lora.add_lora(policy.model, 2)


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
def test_recomputing_gives_the_same_gradients(kind: str) -> None:
    gradients = []
    for recompute in (False, True):
        policy = _policy(kind)
        set_gradient_checkpointing(policy, recompute)
        obs = observation(3, policy)  # type: ignore[arg-type]
        out = policy.act(obs, rng(3), "sample")
        _evaluate(policy, obs, out).log_prob.sum().backward()
        gradients.append({name: p.grad for name, p in policy.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=1e-5, atol=1e-5)


def test_bfloat16_holds_frozen_weights_and_float32_what_trains() -> None:
    policy = _policy()
    lora.add_lora(policy.model, 4)
    lora.set_formats(policy.model, "bfloat16")
    for name, parameter in policy.model.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), name
    lora.set_formats(policy.model, "float32")
    assert {p.dtype for p in policy.parameters()} == {torch.float32}


@pytest.mark.parametrize("rank", [0, 4])
@pytest.mark.parametrize("kind", ["openvla", "openvla_oft"])
def test_mixed_precision_is_near_float32_and_its_logits_are_float32(kind: str, rank: int) -> None:
    exact, policy = _policy(kind), _policy(kind)
    exact.with_value = policy.with_value = True
    if rank:
        lora.add_lora(policy.model, rank)
    lora.set_formats(policy.model, "bfloat16")
    policy.mixed_precision = True
    obs = observation(3, exact)  # type: ignore[arg-type]
    out = exact.act(obs, rng(3), "sample")
    want, got = _evaluate(exact, obs, out), _evaluate(policy, obs, out)
    assert got.log_prob.dtype == got.value.dtype == torch.float32  # type: ignore[union-attr]
    # a difference of the L1 head's action is divided by its scale 0.05
    torch.testing.assert_close(got.log_prob, want.log_prob, rtol=0, atol=0.1 if kind == "openvla" else 2.0)
    assert not torch.equal(got.log_prob, want.log_prob)
    got.log_prob.sum().backward()
    acted = policy.act(obs, rng(3), "sample")
    assert torch.isfinite(acted.log_prob).all()
    assert torch.isfinite(acted.actions).all()


def _batch(policy: OpenVLAPolicy, rows: int = 8) -> RolloutBatch:
    """One decision an episode, two groups, half of each group successful."""
    obs = observation(rows, policy)  # type: ignore[arg-type]
    out = policy.act(obs, rng(rows), "sample")
    episodes = [
        EpisodeResult(EpisodeSpec(i, "t", 0, i, group=i // 4), i % 2 == 0, True, False, float(i % 2 == 0), 1, 2)
        for i in range(rows)
    ]
    return RolloutBatch(
        images=obs.images,
        proprio=obs.proprio,
        instruction=obs.instruction,
        replay=out.replay,
        log_prob=out.log_prob,
        value=None,
        reward=torch.tensor([episode.reward for episode in episodes]),
        mask=torch.ones_like(out.log_prob, dtype=torch.bool),
        episode=torch.arange(rows),
        episodes=episodes,
    )


def test_log_probs_recomputed_by_the_learner_make_every_ratio_one(tmp_path: Path) -> None:
    policy = _policy()
    lora.add_lora(policy.model, 4)
    _move_adapters(policy.model)
    lora.set_formats(policy.model, "bfloat16")
    policy.mixed_precision = True
    batch = _batch(policy)
    batch.log_prob = batch.log_prob + 0.05  # as much as a rollout in another order of sums may be off
    algorithm = GRPO(GRPOConfig(group_size=4, success_rate_range=None))
    strict = LearnerConfig(ratio_tolerance=1e-4, microbatch_size=4)
    with pytest.raises(RatioError):
        Learner(policy, algorithm, strict, seed=0, dump_dir=tmp_path).update(copy.deepcopy(batch))
    config = LearnerConfig(ratio_tolerance=1e-4, microbatch_size=4, recompute_old_log_probs=True, minibatch_size=8)
    before = {name: p.detach().clone() for name, p in policy.named_parameters()}
    metrics = Learner(policy, algorithm, config, seed=0, dump_dir=tmp_path).update(batch)
    assert 0.03 < metrics["train/log_prob_drift"] < 0.2
    moved = {name for name, p in policy.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(".lora_" in name or "proprio_projector" in name for name in moved)


def test_recomputed_log_probs_are_the_updates_own() -> None:
    policy = _policy()
    batch = _batch(policy)
    from embodied_rl.learner.off_policy import importance_correction

    batch.log_prob = torch.zeros_like(batch.log_prob)
    importance_correction(batch, policy, 3, all_rows=True)
    with torch.no_grad():
        assert torch.equal(batch.log_prob[3:6], evaluate_rows(policy, batch, torch.arange(3, 6)).log_prob)


def _adapted(tmp_path: Path) -> OpenVLAPolicy:
    """A policy with moved adapters over a checkpoint in tmp_path/base."""
    save_policy(_policy(), tmp_path / "base", {})
    policy = load_policy(tmp_path / "base")
    adapt_policy(policy, tmp_path / "base", 4)
    _move_adapters(policy.model)
    with torch.no_grad():
        policy.model.value_head.get_parameter("4.weight").fill_(0.25)
    return policy


def test_adapted_checkpoint_holds_no_base_and_round_trips(tmp_path: Path) -> None:
    policy = _adapted(tmp_path)
    save_policy(policy, tmp_path / "a", {})
    assert not (tmp_path / "a" / "model.safetensors").exists()
    again = load_policy(tmp_path / "a")
    for (name, one), two in zip(policy.model.named_parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, two), name
        assert one.requires_grad == two.requires_grad, name
    save_policy(again, tmp_path / "b", {})
    files = sorted(str(path.relative_to(tmp_path / "a")) for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert "lora_adapter/adapter_model.safetensors" in files
    for name in files:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name


def test_adapters_over_changed_or_missing_weights_are_refused(tmp_path: Path) -> None:
    save_policy(_adapted(tmp_path), tmp_path / "a", {})
    save_policy(_policy(seed=1), tmp_path / "base", {})
    with pytest.raises(UserError, match=r"adapts other weights than those in .*base"):
        load_policy(tmp_path / "a")
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(UserError, match="adapts weights that cannot be found"):
        load_policy(tmp_path / "a")


def test_export_merges_adapters(tmp_path: Path) -> None:
    plain = oft_policy(**PUBLISHED, stop_token=2)
    save_policy(plain, tmp_path / "base", {})
    policy = load_policy(tmp_path / "base")
    adapt_policy(policy, tmp_path / "base", 4)
    _move_adapters(policy.model)
    policy.with_value = plain.with_value = True
    obs = observation(3, plain)
    out = policy.act(obs, rng(3), "greedy")
    save_policy(policy, tmp_path / "run", {})
    export_policy(load_policy(tmp_path / "run"), tmp_path / "out", {}, None)
    merged = load_policy(tmp_path / "out")
    torch.testing.assert_close(_evaluate(merged, obs, out).log_prob.detach(), out.log_prob, rtol=0, atol=1e-5)
    assert (_evaluate(plain, obs, out).log_prob - out.log_prob).abs().max() > 1e-3


def test_the_seed_of_adapters_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one, two = _policy(), _policy()
    lora.add_lora(one.model, 4)
    lora.add_lora(two.model, 4)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))

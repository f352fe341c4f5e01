"""pi0 and pi0.5 behind the policy contract: `act` and `evaluate` agree, terms, sharing, critic, imitation, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.nn.checkpointing import set_gradient_checkpointing
from embodied_rl.policies.nn.lora import set_formats
from embodied_rl.policies.pi0.normalise import Normaliser, Pi0Statistics, fit, unit
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Observation
from tests.policies.pi0_models import (
    INSTRUCTIONS,
    KINDS,
    decision_rng,
    observation,
    statistics,
    tensors,
    tiny_config,
    tiny_policy,
)

METHODS = ("flow_sde", "flow_noise")
FLOWS = {method: FlowSettings(exploration=method, num_inference_steps=4) for method in METHODS}  # type: ignore[arg-type]


def _acted(kind: str, method: str, rows: int = 6) -> tuple[Pi0Policy, Observation, ActOutput]:
    policy = tiny_policy(kind, FLOWS[method])
    policy.with_value = True
    obs = observation(rows)
    return policy, obs, policy.act(obs, decision_rng(rows), "sample")


def _rows(replay: dict[str, Tensor], index: Any) -> dict[str, Tensor]:
    return {key: value[index] for key, value in replay.items()}


def _gradients(policy: Pi0Policy) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_evaluate_recomputes_what_act_did(kind: str, method: str) -> None:
    policy, obs, out = _acted(kind, method)
    assert out.actions.shape == (6, 3, 3)
    assert out.actions.dtype == torch.float32
    assert out.actions.abs().max() <= 1.0
    again = policy.evaluate(*tensors(obs), out.replay)
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=2e-5)
    torch.testing.assert_close(again.value, out.value, rtol=0, atol=1e-5)
    assert again.entropy.shape == again.log_prob.shape == (6, 9)
    assert out.value is not None
    assert out.value.shape == (6,)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_does_not_depend_on_its_neighbours(kind: str) -> None:
    policy, obs, out = _acted(kind, "flow_noise")
    rng = decision_rng(6)
    for row in (1, 4):
        alone = policy.act(
            Observation(obs.images[row : row + 1], obs.proprio[row : row + 1], [obs.instruction[row]]),
            DecisionRng(rng.seed[row : row + 1], rng.decision[row : row + 1]),
            "sample",
        )
        np.testing.assert_allclose(alone.actions[0], out.actions[row], atol=1e-5)
        torch.testing.assert_close(alone.replay["step"][0], out.replay["step"][row])


def test_observation_state_and_prompt_matter() -> None:
    for kind in KINDS:
        policy, obs, _ = _acted(kind, "flow_sde")
        images, proprio = 255 - obs.images, obs.proprio + 1
        for changed, matters in (
            (Observation(images, obs.proprio, obs.instruction), True),
            (Observation(obs.images, proprio, obs.instruction), kind != "pi05_no_state"),
            (Observation(obs.images, obs.proprio, obs.instruction[::-1]), True),
        ):
            one, two = (policy.act(o, decision_rng(6), "greedy").actions for o in (obs, changed))
            assert (np.abs(one - two).max() > 1e-6) == matters, kind


@pytest.mark.parametrize("method", METHODS)
def test_terms_belong_to_executed_steps_and_real_dimensions(method: str) -> None:
    """Where the path went at its last recorded point changes just the term of that step and dimension."""
    policy, obs, out = _acted("pi0", method)
    base = policy.evaluate(*tensors(obs), out.replay).log_prob
    for step in range(5):
        for dim in range(4):
            points = out.replay["points"].clone()
            points[:, -1, step, dim] += 0.1
            moved = policy.evaluate(*tensors(obs), out.replay | {"points": points}).log_prob
            changed = (moved - base).abs().amax(dim=0) > 1e-4
            wanted = torch.zeros(3, 3, dtype=torch.bool)
            if step < 3 and dim < 3:
                wanted[step, dim] = True
            assert torch.equal(changed.view(3, 3), wanted)


@pytest.mark.parametrize("method", METHODS)
def test_actions_are_the_end_of_the_path_in_the_data_sets_units(method: str) -> None:
    policy = tiny_policy("pi0", FLOWS[method])
    policy.flow = replace(policy.flow, num_inference_steps=2)
    obs, rng = observation(6), decision_rng(6)
    out = policy.act(obs, rng, "sample")
    last = out.replay["points"][:, -1]
    rows = (out.replay["step"][:, -1] == 1).nonzero()[:, 0]  # of these the recorded part reaches the end
    assert len(rows) > 0
    stats = statistics().action.stats
    low, high = stats["q01"], stats["q99"]
    wanted = (last[rows, :3, :3].numpy() + 1) / 2 * (high - low) + low
    np.testing.assert_allclose(out.actions[rows.numpy()], wanted.clip(-1, 1), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recompute", [False, True])
def test_shared_prefix_update_equals_separate_updates(kind: str, recompute: bool) -> None:
    """K = 4 denoising steps of each decision in one pass over one prefix, or each with its own: same gradients."""
    policy, obs, out = _acted(kind, "flow_noise")
    set_gradient_checkpointing(policy, recompute)
    weight = torch.randn(6, 9, generator=torch.Generator().manual_seed(2))
    whole = policy.evaluate(*tensors(obs), out.replay)
    assert whole.value is not None
    (whole.log_prob * weight).sum().backward()
    shared = _gradients(policy)
    policy.zero_grad()
    set_gradient_checkpointing(policy, False)
    total = torch.zeros(6, 9)
    for m in range(4):
        part = {"points": out.replay["points"][:, m : m + 2], "step": out.replay["step"][:, m : m + 1]}
        terms = policy.evaluate(*tensors(obs), part).log_prob
        (terms * weight).sum().backward()
        total += terms.detach()
    torch.testing.assert_close(whole.log_prob.detach(), total, rtol=1e-5, atol=2e-5)
    separate = _gradients(policy)
    assert shared.keys() == separate.keys()
    assert any(name.startswith("model.vision") for name in shared)
    for name, gradient in shared.items():
        scale = separate[name].abs().max().clamp_min(1.0)
        assert (gradient - separate[name]).abs().max() <= 1e-5 * scale, name


def test_the_critic_reads_the_documented_place_and_pulls_nothing_else() -> None:
    for kind in KINDS:
        policy, obs, out = _acted(kind, "flow_sde")
        value = policy.evaluate(*tensors(obs), out.replay).value
        assert value is not None
        value.sum().backward()
        assert {name.split(".")[1] for name in _gradients(policy)} == {"value_head"}
        # a critic on the prefix does not see the actions, one on the action tokens does
        points = out.replay["points"].clone()
        points[:, 0] += 0.5
        moved = policy.evaluate(*tensors(obs), out.replay | {"points": points}).value
        assert moved is not None
        assert ((moved - value).abs().max() > 1e-6) == (policy.config.critic_input == "action_tokens")


def test_greedy_is_the_same_again_and_follows_the_ode() -> None:
    policy = tiny_policy()
    obs, rng = observation(3), decision_rng(3)
    one, two = policy.act(obs, rng, "greedy"), policy.act(obs, rng, "greedy")
    assert torch.equal(one.actions, two.actions)
    noisy = policy.act(obs, rng, "sample")
    assert (noisy.actions - one.actions).abs().max() > 1e-3
    policy.flow = replace(policy.flow, noise_level=2.0)
    np.testing.assert_array_equal(policy.act(obs, rng, "greedy").actions, one.actions)


def test_expert_only_training_leaves_vision_and_language_alone() -> None:
    policy, obs, out = _acted("pi0", "flow_noise")
    policy.model.freeze_language_model()
    policy.evaluate(*tensors(obs), out.replay).log_prob.sum().backward()
    parts = {name.split(".")[1] for name in _gradients(policy)}
    assert "expert" in parts
    assert "state_proj" in parts
    assert not parts & {"vision", "projector", "language", "expert_head"}


def test_every_trained_parameter_gets_a_gradient() -> None:
    """Except those that nothing reads: the language model's last layer after its keys and values."""
    for kind in KINDS:
        policy, obs, out = _acted(kind, "flow_noise")
        evaluated = policy.evaluate(*tensors(obs), out.replay)
        assert evaluated.value is not None
        (evaluated.log_prob.sum() + evaluated.value.sum()).backward()
        idle = {name for name, p in policy.model.named_parameters() if p.requires_grad and p.grad is None}
        last = (
            "self_attn.q_proj",
            "self_attn.o_proj",
            "mlp.gate_proj",
            "mlp.up_proj",
            "mlp.down_proj",
            "post_attention_layernorm",
        )
        assert idle == {f"language.layers.2.{part}.weight" for part in last} | {"language.norm.weight"}, kind


def _actions(rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.rand(rows, 5, 3, generator=generator) * 1.6 - 0.8


def test_imitation_loss_is_the_mean_over_its_noise_draws() -> None:
    """Four draws that share a prefix against the loss written out draw by draw."""
    policy = tiny_policy(flow=FlowSettings(num_inference_steps=4, loss_samples=4)).eval()
    obs, actions = observation(3), _actions(3)
    loss = policy.sft_loss(*tensors(obs), actions)
    normal, uniform = policy._loss_noise(3, 4)
    wanted = torch.nn.functional.pad(policy.statistics.action.normalise(actions), (0, 1))
    losses = []
    for m in range(4):
        time = uniform[:, m].pow(1 / 1.5) * 0.999 + 0.001
        x = time[:, None, None] * normal[:, m] + (1 - time[:, None, None]) * wanted
        velocity, _ = policy.model.velocity(policy.read_prefix(*tensors(obs), 1), x[:, None], time[:, None])
        losses.append((velocity[:, 0] - (normal[:, m] - wanted)).square().mean())
    torch.testing.assert_close(loss, torch.stack(losses).mean(), rtol=1e-5, atol=1e-6)


def test_imitation_learns_a_constant_action() -> None:
    policy = tiny_policy(flow=FlowSettings(num_inference_steps=4, loss_samples=4))
    obs, actions = observation(3), torch.full((3, 5, 3), 0.3)
    adam = torch.optim.Adam(policy.parameters(), lr=5e-3)
    for _ in range(150):
        adam.zero_grad()
        policy.sft_loss(*tensors(obs), actions).backward()
        adam.step()
    error = (policy.act(obs, decision_rng(3), "greedy").actions - 0.3).abs().mean()
    assert error < 0.06


def test_imitation_noise_goes_on_where_a_resumed_run_left_it() -> None:
    policy, resumed = tiny_policy(), tiny_policy()
    obs, actions = observation(3), _actions(3)
    first, second = (policy.sft_loss(*tensors(obs), actions).item() for _ in range(2))
    assert first != second
    resumed.sft_loss(*tensors(obs), actions)
    again = tiny_policy()
    again.load_state_dict(resumed.state_dict())
    assert again.sft_loss(*tensors(obs), actions).item() == second
    policy.eval()
    assert len({policy.sft_loss(*tensors(obs), actions).item() for _ in range(3)}) == 1


def test_wrong_inputs_are_refused() -> None:
    policy, obs = tiny_policy(), observation(2)
    images, proprio, words = tensors(obs)
    with pytest.raises(ValueError, match=r"needs uint8 images \[N,2,28,28,3\]"):
        policy.sft_loss(images[:, :1], proprio, words, _actions(2))
    with pytest.raises(ValueError, match=r"needs proprio \[N,2\]"):
        policy.sft_loss(images, proprio[:, :1], words, _actions(2))
    with pytest.raises(ValueError, match=r"actions must be \[N,5,3\]"):
        policy.sft_loss(images, proprio, words, _actions(2)[:, :3])
    with pytest.raises(UserError, match="for 7 action and 2 state dimensions"):
        Pi0Policy.fresh(tiny_config(), INSTRUCTIONS, Pi0Statistics(unit(2), unit(7)))


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_len": 6},
        {"action_dim": 5},
        {"proprio_dim": 6},
        {"expert": replace(tiny_config().expert, layers=2)},
        {"expert": replace(tiny_config().expert, dim=15)},
    ],
)
def test_impossible_configs_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        tiny_config(**changes)


@pytest.mark.parametrize("mode", ["mean_std", "quantiles"])
def test_normalisation_is_openpis_and_invertible(mode: Any) -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=(500, 3)).astype(np.float32) * [0.1, 1.0, 0.0] + [3.0, 0.0, 0.5]
    normaliser = fit(values.astype(np.float32), mode)
    x = torch.from_numpy(values.astype(np.float32))
    scaled = normaliser.normalise(x)
    torch.testing.assert_close(normaliser.unnormalise(scaled), x, rtol=1e-5, atol=1e-5)
    stats = normaliser.stats
    if mode == "mean_std":
        wanted = (values - stats["mean"]) / (stats["std"] + 1e-6)
    else:
        wanted = (values - stats["q01"]) / (stats["q99"] - stats["q01"] + 1e-6) * 2 - 1
    np.testing.assert_allclose(scaled.numpy(), wanted, rtol=1e-4, atol=1e-4)


def test_unusable_statistics_are_refused() -> None:
    ones = np.ones(2, np.float32)
    for mode, stats, message in (
        ("quantiles", {"mean": ones, "std": ones}, "needs q01 and q99, the statistics have only mean, std"),
        ("mean_std", {"mean": ones, "std": -ones}, "std >= 0"),
        ("mean_std", {"mean": ones, "std": ones * np.nan}, "finite"),
        ("mean_std", {"mean": ones, "std": np.ones(3, np.float32)}, "one length"),
        ("q01_q99", {"mean": ones, "std": ones}, "use mean_std or quantiles"),
    ):
        with pytest.raises(UserError, match=message):
            Normaliser(mode, stats)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_a_frozen_bfloat16_network_with_a_float32_expert_acts_and_learns(kind: str, method: str) -> None:
    policy, obs, exact = _acted(kind, method)
    policy.model.freeze_language_model()
    set_formats(policy.model, "bfloat16")
    policy.mixed_precision = True
    out = policy.act(obs, decision_rng(6), "sample")
    np.testing.assert_allclose(out.actions, exact.actions, atol=0.1)
    again = policy.evaluate(*tensors(obs), out.replay)
    assert again.value is not None
    assert again.log_prob.dtype == again.value.dtype == torch.float32
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=1.0)
    (again.log_prob.sum() + again.value.sum()).backward()
    policy.sft_loss(*tensors(obs), torch.zeros(6, 5, 3)).backward()
    gradients = _gradients(policy)
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())
    assert {"expert", "value_head"} <= {name.split(".")[1] for name in gradients}

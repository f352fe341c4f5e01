"""A network of one's own: densities, critic, imitation, LoRA, checkpoints, and what is refused."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.preprocessing.tokens import decode_tokens, encode_actions
from embodied_rl.policies.wrapped.heads import ActionTokens, GaussianActions, VelocityField
from embodied_rl.policies.wrapped.policy import wrap_policy
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation
from tests.embodied_rl.algorithms.test_flow_algorithms import flow_policy
from tests.embodied_rl.scheduler.toys import Setup, assert_same_rows, pipelined, serial
from tests.env_info import env_info
from tests.policies.wrapped_networks import (
    FIELD_DIM,
    HORIZON,
    INFO,
    KINDS,
    VALUES,
    WIDTH,
    MeanNet,
    observation,
    wrapped,
)
from tests.toy import ACTION_DIM, CHUNK

TERMS = CHUNK * ACTION_DIM


def decisions(rows: int = 5) -> DecisionRng:
    return DecisionRng(np.arange(rows) + 3, np.arange(rows))


def again(policy: Any, obs: Observation, out: ActOutput) -> EvalOutput:
    return policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay)


@pytest.mark.parametrize("features", [True, False])
@pytest.mark.parametrize("mode", ["sample", "greedy"])
@pytest.mark.parametrize("kind", KINDS)
def test_evaluate_finds_what_act_said(kind: str, mode: ActMode, features: bool) -> None:
    """In a module that came with dropout switched on; of a chunk that is shorter than what the network predicts."""
    policy, obs = wrapped(kind, features=features), observation()
    policy.train()
    out = policy.act(obs, decisions(), mode)
    assert out.actions.shape == (5, CHUNK, ACTION_DIM)
    assert out.log_prob.shape == (5, TERMS)
    found = again(policy, obs, out)
    torch.testing.assert_close(found.log_prob, out.log_prob, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.value, out.value, rtol=0, atol=1e-6)
    assert found.entropy.shape == (5, TERMS)
    part = policy.act(obs.rows(slice(1, 3)), DecisionRng(decisions().seed[1:3], decisions().decision[1:3]), mode)
    assert torch.equal(part.actions, out.actions[1:3])
    if mode == "sample":
        found.log_prob.sum().backward()
        assert all(p.grad is not None for p in policy.module.parameters() if p.requires_grad)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_follow_the_density(kind: str) -> None:
    """By the policy gradient's first identity: the mean of the score over samples is zero."""
    policy, rows = wrapped(kind), 4000
    obs = observation(1).rows([0] * rows)
    out = policy.act(obs, DecisionRng(np.arange(rows), np.zeros(rows, np.int64)), "sample")
    terms = again(policy, obs, out).log_prob.sum(dim=1)
    for weight in (policy.module.last.bias, *policy.action_head.parameters()):
        mean = torch.autograd.grad(terms.sum() / rows, weight, retain_graph=True)[0]
        some = torch.stack([torch.autograd.grad(terms[i], weight, retain_graph=True)[0] for i in range(64)])
        assert (mean.abs() < 5 * some.std(dim=0) / rows**0.5 + 1e-7).all()


def test_tokens_are_torchs_categorical() -> None:
    policy, obs = wrapped("tokens", temperature=1.6), observation()
    out = policy.act(obs, decisions(), "sample")
    tokens = out.replay["tokens"].long()
    logits = policy.module(obs)[0][:, :CHUNK].flatten(1, 2)
    exact = torch.distributions.Categorical(logits=logits / 1.6)
    torch.testing.assert_close(out.log_prob, exact.log_prob(tokens))
    torch.testing.assert_close(again(policy, obs, out).entropy, exact.entropy())
    assert torch.equal(out.actions, VALUES[tokens].view(5, CHUNK, ACTION_DIM))
    greedy = policy.act(obs, decisions(), "greedy")
    assert torch.equal(greedy.replay["tokens"].long(), logits.argmax(-1))


def test_a_token_sees_those_before_it() -> None:
    """The log-prob of a chunk is that of its tokens one by one, each given the chosen ones."""
    policy, obs = wrapped("autoregressive"), observation()
    out = policy.act(obs, decisions(), "sample")
    tokens, context = out.replay["tokens"].long(), policy.module.hidden(obs)
    for t in range(TERMS):
        logits = policy.module.next_token(context, tokens[:, :t])[:, -1]
        expected = logits.log_softmax(-1).gather(1, tokens[:, t : t + 1])[:, 0]
        torch.testing.assert_close(out.log_prob[:, t], expected)


@pytest.mark.parametrize("learn_std", [True, False])
def test_the_gaussians_gradient_is_torchs(learn_std: bool) -> None:
    policy, obs = wrapped("gaussian", std=0.3, learn_std=learn_std), observation()
    out = policy.act(obs, decisions(), "sample")
    mean = policy.module(obs)[0][:, :CHUNK].flatten(1)
    std = policy.action_head.log_std.exp().flatten()
    exact = torch.distributions.Normal(mean, std)
    found = again(policy, obs, out)
    torch.testing.assert_close(found.log_prob, exact.log_prob(out.replay["drawn"]))
    torch.testing.assert_close(found.entropy, exact.entropy())
    weights = torch.randn(found.log_prob.shape, generator=torch.Generator().manual_seed(2))
    wanted = [p for p in policy.parameters() if p.requires_grad and p.shape != (1,)]
    ours = torch.autograd.grad((found.log_prob * weights).sum(), wanted, allow_unused=True)
    theirs = torch.autograd.grad((exact.log_prob(out.replay["drawn"]) * weights).sum(), wanted, allow_unused=True)
    for one, two in zip(ours, theirs, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            torch.testing.assert_close(one, two)
    assert policy.action_head.log_std.requires_grad is learn_std
    assert torch.equal(out.actions, out.replay["drawn"].view_as(out.actions).clamp(-1, 1))


class Pi0Network(nn.Module):
    """pi0's network as a user would hand it over."""

    def __init__(self, pi0: Pi0Policy) -> None:
        super().__init__()
        self.pi0 = pi0

    def encode(self, obs: Observation) -> Any:
        return self.pi0.read_prefix(obs.images, obs.proprio, obs.instruction, 1)

    def velocity(self, context: Any, x: Tensor, time: Tensor) -> Tensor:
        return self.pi0.model.velocity(context, x[:, None], time[:, None])[0][:, 0]


@pytest.mark.parametrize("mode", ["sample", "greedy"])
def test_a_velocity_field_is_pi0s_own(mode: ActMode) -> None:
    """Actions, log-probs, entropies, gradients and the imitation loss of the same network."""
    pi0, obs = flow_policy("flow_sde", with_value=False), observation()
    head = VelocityField(INFO, chunk_len=CHUNK, horizon=CHUNK + 1, field_dim=3, num_inference_steps=3, noise_level=0.8)
    policy = wrap_policy(Pi0Network(copy.deepcopy(pi0)), head)
    theirs, ours = pi0.act(obs, decisions(), mode), policy.act(obs, decisions(), mode)
    for name in ("actions", "log_prob"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-6)
    assert ours.replay.keys() == theirs.replay.keys()
    found, expected = again(policy, obs, ours), again(pi0, obs, theirs)
    torch.testing.assert_close(found.log_prob, expected.log_prob, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.entropy, expected.entropy)
    found.log_prob.sum().backward()
    expected.log_prob.sum().backward()
    mine = dict(policy.module.pi0.named_parameters())  # type: ignore[union-attr]
    for name, parameter in pi0.named_parameters():
        torch.testing.assert_close(mine[name].grad, parameter.grad, rtol=1e-4, atol=1e-6)
    actions = torch.rand(5, CHUNK + 1, ACTION_DIM) * 2 - 1
    mask = torch.tensor([[True] * row + [False] * (CHUNK + 1 - row) for row in (1, 2, 3, 1, 3)])
    arguments = (obs.images, obs.proprio, obs.instruction, actions, None, mask)
    for _ in range(2):  # each call draws noise of its own
        torch.testing.assert_close(policy.sft_loss(*arguments), pi0.sft_loss(*arguments))


def test_the_observation_is_encoded_once_a_decision() -> None:
    policy, obs = wrapped("velocity", num_inference_steps=4), observation()
    out = policy.act(obs, decisions(), "sample")
    assert policy.module.encodings == 1
    again(policy, obs, out)
    assert policy.module.encodings == 2


@pytest.mark.parametrize("kind", KINDS)
def test_steps_beyond_the_chunk_and_padded_dimensions_have_no_term(kind: str) -> None:
    """What the network says of them changes neither actions nor log-probs."""
    policy, obs = wrapped(kind), observation()
    out = policy.act(obs, decisions(), "sample")
    terms, bias = again(policy, obs, out).log_prob, policy.module.last.bias
    (gradient,) = torch.autograd.grad(terms.sum(), bias)
    if kind == "autoregressive":
        assert out.replay["tokens"].shape == (5, TERMS)
        return
    gradient = gradient.view(HORIZON, -1)
    assert gradient[:CHUNK].abs().sum() > 0
    assert gradient[CHUNK:].abs().sum() == 0
    if kind == "velocity":
        assert gradient.view(HORIZON, FIELD_DIM)[:, ACTION_DIM:].abs().sum() == 0


@pytest.mark.parametrize("features", [True, False])
def test_the_critic_reads_features_or_the_state_and_teaches_the_module_nothing(features: bool) -> None:
    sizes: Any = {"features": WIDTH} if features else {}
    head = GaussianActions(replace(INFO, state_dim=4), chunk_len=CHUNK, horizon=HORIZON, **sizes)
    policy = wrap_policy(MeanNet(features), head)
    policy.with_value = True
    nn.init.normal_(policy.value_head[-1].weight)  # type: ignore[index]
    obs = observation()
    obs.state = torch.randn(5, 4)
    out = policy.act(obs, decisions(), "sample")
    found = again(policy, obs, out)
    torch.testing.assert_close(found.value, out.value)
    assert found.value is not None
    found.value.sum().backward()
    assert {n.partition(".")[0] for n, p in policy.named_parameters() if p.grad is not None} == {"value_head"}
    obs.state = obs.state + 1
    moved = policy.act(obs, decisions(), "sample").value
    assert out.value is not None
    assert moved is not None
    assert torch.equal(moved, out.value) is features


@pytest.mark.parametrize("kind", KINDS)
def test_an_env_with_bounds_of_its_own_gets_actions_within_them(kind: str) -> None:
    """[-1, 1] is mapped to them, also of demonstrations; log-probs stay those of the network's own numbers."""
    low, high = (-3.0, 0.5), (1.0, 0.75)
    unit, scaled, obs = (
        wrapped(kind),
        wrapped(kind, info=replace(INFO, action_low=low, action_high=high)),
        observation(),
    )
    one, two = (policy.act(obs, decisions(), "sample") for policy in (unit, scaled))
    span = torch.tensor(high) - torch.tensor(low)
    torch.testing.assert_close(two.actions, torch.tensor(low) + (one.actions + 1) / 2 * span)
    assert torch.equal(one.log_prob, two.log_prob)
    actions = torch.rand(5, HORIZON, ACTION_DIM) * 2 - 1
    arguments = obs.images, obs.proprio, obs.instruction
    loss = scaled.sft_loss(*arguments, torch.tensor(low) + (actions + 1) / 2 * span)
    torch.testing.assert_close(loss, unit.sft_loss(*arguments, actions))


def test_openvlas_tokens_are_the_default() -> None:
    policy = wrap_policy(nn.Identity(), ActionTokens(INFO, chunk_len=CHUNK))
    actions = torch.rand(50, CHUNK, ACTION_DIM) * 2 - 1
    tokens = policy.encode(actions)
    assert np.array_equal(tokens.numpy(), encode_actions(actions.flatten(1).numpy()))
    back = policy.action_head.values[tokens]  # type: ignore[index]
    assert np.array_equal(back.numpy(), decode_tokens(tokens.numpy()))
    own = wrapped("tokens").encode(torch.tensor([[[-1.0, -0.6], [0.2, 0.9]]]).expand(1, 2, 2))
    assert own.tolist() == [[0, 1, 2, 4]]


@pytest.mark.parametrize("kind", KINDS)
def test_imitation_learns_the_targets_that_count(kind: str) -> None:
    policy, obs = wrapped(kind), observation(16)
    actions = VALUES[torch.from_numpy(np.random.default_rng(4).integers(0, len(VALUES), (16, HORIZON, ACTION_DIM)))]
    mask = torch.ones(16, HORIZON, dtype=torch.bool)
    mask[:, CHUNK:] = False
    policy.eval()  # the same noise in every call
    adam = torch.optim.Adam(policy.module.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        loss = policy.sft_loss(obs.images, obs.proprio, obs.instruction, actions, None, mask)
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    if kind != "autoregressive":
        spoilt = actions.clone()
        spoilt[:, CHUNK:] *= -1
        arguments = obs.images, obs.proprio, obs.instruction
        before, after = (policy.sft_loss(*arguments, wanted, None, mask) for wanted in (actions, spoilt))
        # the masked steps of a velocity field are seen by the others, as noise
        torch.testing.assert_close(before, after, rtol=0, atol=0.2 if kind == "velocity" else 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_lora_trains_adapters_critic_and_deviation_alone(kind: str) -> None:
    plain, policy, obs = wrapped(kind), wrapped(kind, lora_rank=2), observation()
    assert torch.equal(policy.act(obs, decisions(), "greedy").actions, plain.act(obs, decisions(), "greedy").actions)
    learns = {name for name, parameter in policy.named_parameters() if parameter.requires_grad}
    assert any(".lora_A." in name for name in learns)
    assert all(".lora_" in name or name.startswith(("value_head.", "action_head.")) for name in learns)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("mode", ["greedy", "sample"])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite_void_their_row(kind: str, mode: ActMode, value: float) -> None:
    policy, obs = wrapped(kind), observation()
    whole = policy.act(obs, decisions(), mode).actions
    obs.proprio[1] = torch.nan
    actions = policy.act(obs, decisions(), mode).actions
    assert torch.isnan(actions[1]).all()
    assert torch.equal(actions[[0, 2, 3, 4]], whole[[0, 2, 3, 4]])


PPO = PPOConfig(gamma=0.9, entropy_coef=0.01, critic_warmup_iterations=0, epochs=3)
GRPO = GRPOConfig(group_size=8, success_rate_range=None, epochs=3)


@pytest.mark.parametrize("algorithm", [PPO, GRPO], ids=["ppo", "grpo"])
@pytest.mark.parametrize("kind", KINDS)
def test_reinforcement_learning_learns_the_toy(kind: str, algorithm: AlgorithmConfig, tmp_path: Path) -> None:
    """Success rises; and the learner finds every first ratio at 1."""
    learner = LearnerConfig(lr=1e-2, value_lr=1e-2, minibatch_size=64, microbatch_size=64)
    setup = Setup(algorithm, groups=128 // getattr(algorithm, "group_size", 1), iterations=6, learner=learner)
    options: dict[str, Any] = {"velocity": {"noise_level": 1.5}, "gaussian": {"std": 1.0}}
    outcome = serial(setup, tmp_path, 16, policy=wrapped(kind, **options.get(kind, {})))
    rates = [np.mean([episode.success for episode in batch.episodes]) for batch in outcome.batches]
    assert np.mean(rates[-2:]) > rates[0] + 0.15


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_acts_as_the_policy_does(kind: str, tmp_path: Path) -> None:
    """Bit for bit: a pipelined run is the serial one, with adapters too."""
    setup = Setup(GRPOConfig(group_size=4, success_rate_range=None, entropy_coef=0.01))
    rank = 2 if kind == "gaussian" else 0
    one, two = (run(setup, tmp_path, policy=wrapped(kind, lora_rank=rank)) for run in (serial, pipelined))
    for first, second in zip(one.batches, two.batches, strict=True):
        assert_same_rows(first, second)
    assert all(torch.equal(one.weights[key], two.weights[key]) for key in one.weights)


class Wrong(nn.Module):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.answer = answer

    def forward(self, obs: Observation) -> Any:
        return self.answer

    def encode(self, obs: Observation) -> Any:
        return 0

    def velocity(self, context: Any, x: Tensor, time: Tensor) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("head", "answer", "message"),
    [
        (ActionTokens, torch.zeros(5, 4, 256), "Wrong's logits must be a tensor [5, 2, 2, 256], got [5, 4, 256]."),
        (GaussianActions, torch.zeros(5, 4), "Wrong's means must be a tensor [5, 2, 2], got [5, 4]."),
        (GaussianActions, (1, 2), "Wrong's means must be a tensor [5, 2, 2], got a tuple."),
        (VelocityField, torch.zeros(5, 2, 3), "Wrong.velocity must be a tensor [5, 2, 2], got [5, 2, 3]."),
        ("features", torch.zeros(5, 2, 2), "Wrong.forward must return its output and features [N, 7], got [5, 2, 2]."),
        (
            "features",
            (torch.zeros(5, 2, 2), torch.zeros(5, 8)),
            "Wrong.forward's features must be a tensor [5, 7], got [5, 8].",
        ),
    ],
)
def test_an_output_of_another_shape_is_one_line(head: Any, answer: Any, message: str) -> None:
    made = GaussianActions(INFO, chunk_len=CHUNK, features=7) if head == "features" else head(INFO, chunk_len=CHUNK)
    policy = wrap_policy(Wrong(answer), made)
    with pytest.raises(UserError) as caught:
        policy.act(observation(), decisions(), "sample")
    assert str(caught.value) == message


def test_what_does_not_go_together_is_one_line() -> None:
    images_only = env_info("toy", 2, proprio_dim=0)
    blind = wrap_policy(Wrong(torch.zeros(5, CHUNK, 2)), GaussianActions(images_only, chunk_len=CHUNK))
    assert blind.traits.critic is None
    blind.with_value = True
    calls: dict[str, Any] = {
        "Identity has no method encode(), which VelocityField calls": lambda: wrap_policy(
            nn.Identity(), VelocityField(INFO, chunk_len=2)
        ),
        "chunk_len must lie in 1..horizon (1), got 2": lambda: GaussianActions(INFO, chunk_len=2, horizon=1),
        "features is how many numbers": lambda: GaussianActions(INFO, chunk_len=2, features=0),
        "std of Gaussian actions": lambda: GaussianActions(INFO, chunk_len=2, std=0.0),
        "temperature of action tokens": lambda: ActionTokens(INFO, chunk_len=2, temperature=0.0),
        "values of action tokens": lambda: ActionTokens(INFO, chunk_len=2, values=torch.tensor([0.0, 2.0])),
        "denoising steps are too few": lambda: VelocityField(INFO, chunk_len=2, num_inference_steps=1),
        "suite 'toy' has actions without finite bounds": lambda: GaussianActions(
            replace(INFO, action_high=(1.0, np.inf)), chunk_len=2
        ),
        "field_dim must be 2 or more": lambda: VelocityField(INFO, chunk_len=2, field_dim=1),
        "no linear layer": lambda: wrap_policy(nn.Identity(), GaussianActions(INFO, chunk_len=2), lora_rank=2),
        "PPO's critic has nothing to read": lambda: blind.act(observation(), decisions(), "sample"),
        "imitation needs actions [N, 3, 2], got [5, 2, 2]": lambda: wrapped("gaussian").sft_loss(
            *(getattr(observation(), name) for name in ("images", "proprio", "instruction")), torch.zeros(5, 2, 2)
        ),
    }
    for message, call in calls.items():
        with pytest.raises(UserError) as caught:
            call()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

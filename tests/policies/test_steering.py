"""Best of N: which chunk is taken, what a checkpoint keeps of it, and what is refused where it would be lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.factory.policies import (
    UNSTEERED,
    PublishedOptions,
    export_policy,
    load_policy,
    load_weights,
    save_policy,
)
from embodied_rl.jobs.serve import spec_of
from embodied_rl.policies.family import ExportRequest
from embodied_rl.policies.steering import CANDIDATES, CHOSEN, SUMMARY, ChunkCritic, CriticConfig, Steering, features_of
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation
from tests.policies import oft_policies, pi0_models, smolvla_models
from tests.policies.test_openvla_policy import _observation, _policy

ROWS, COUNT = 3, 5
KINDS = ("pi0", "smolvla", "openvla", "openvla_oft", "oft_l1")


def made(kind: str) -> tuple[Any, Observation]:
    """A policy whose every parameter matters, and what it sees."""
    if kind == "pi0":
        return pi0_models.tiny_policy(), pi0_models.observation(ROWS)
    if kind == "smolvla":
        policy: Any = smolvla_models.tiny_policy()
        return policy, smolvla_models.observation(ROWS)
    if kind == "openvla":
        policy = _policy()
        policy.with_value = False
        return policy, _observation(ROWS, policy)
    policy = oft_policies.policy(head="l1") if kind == "oft_l1" else oft_policies.policy()
    policy.with_value = False
    return policy, oft_policies.observation(ROWS, policy)


def rng(decision: int = 0) -> DecisionRng:
    return DecisionRng(np.arange(ROWS) + 5, np.full(ROWS, decision))


def critic_for(policy: Any, obs: Observation, seed: int = 0) -> ChunkCritic:
    """Random weights that all matter, for what the policy makes of observations."""
    size = policy.traits.summarise(obs.images, obs.proprio, obs.instruction).shape[1] + obs.proprio.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = CriticConfig(features=size, chunk_len=policy.chunk_len, action_dim=policy.action_dim, width=16)
        critic = ChunkCritic(config)
        critic.standardise(torch.randn(50, size), torch.randn(50, policy.chunk_len, policy.action_dim))
    return critic


def steered(kind: str) -> tuple[Any, Observation]:
    policy, obs = made(kind)
    policy.steering = Steering(critic_for(policy, obs), COUNT)
    return policy, obs


def test_a_steered_policy_is_served_with_the_proprio_that_only_its_critic_reads() -> None:
    policy, obs = steered("openvla")
    policy.config = replace(policy.config, use_proprio=False)
    assert spec_of(policy).proprio_dim == obs.proprio.shape[1]
    policy.steering = None
    assert spec_of(policy).proprio_dim == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["greedy", "sample"])
def test_the_first_candidate_is_the_policys_own_and_the_others_differ(kind: str, mode: Any) -> None:
    policy, obs = made(kind)
    own, found = policy.act(obs, rng(), mode), policy.traits.propose(obs, rng(), mode, COUNT)
    chunks = found.act.actions.unflatten(0, (ROWS, COUNT))
    torch.testing.assert_close(chunks[:, 0], own.actions, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.act.log_prob[::COUNT], own.log_prob, rtol=0, atol=1e-3)
    assert all((chunks[:, 0] != chunks[:, other]).flatten(1).any(dim=1).all() for other in range(1, COUNT))
    torch.testing.assert_close(
        found.summary, policy.traits.summarise(obs.images, obs.proprio, obs.instruction), rtol=1e-4, atol=1e-5
    )
    alone = policy.traits.propose(obs.rows(slice(1, 2)), DecisionRng(rng().seed[1:2], rng().decision[1:2]), mode, COUNT)
    torch.testing.assert_close(alone.act.actions, chunks[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_chunk_of_the_highest_value_is_taken_and_its_density_is_the_policys(kind: str) -> None:
    policy, obs = steered(kind)
    out = policy.act(obs, rng(), "greedy")
    chunks, chosen = out.replay[CANDIDATES], out.replay[CHOSEN]
    value = policy.steering.critic.value(features_of(out.replay[SUMMARY], obs.proprio), chunks)
    assert chosen.tolist() == value.argmax(1).tolist()
    assert torch.equal(out.actions, chunks[torch.arange(ROWS), chosen])
    assert out.value is None
    again = policy.evaluate(obs.images, obs.proprio, obs.instruction, out.replay)
    torch.testing.assert_close(again.log_prob, out.log_prob, rtol=0, atol=1e-3)
    policy.steering = Steering(critic_for(policy, obs, seed=1), COUNT)
    assert policy.act(obs, rng(), "greedy").replay[CHOSEN].tolist() != chosen.tolist()


def test_the_lowest_head_counts_and_standardised_features_are_bounded() -> None:
    critic = ChunkCritic(CriticConfig(features=3, chunk_len=2, action_dim=2, width=8))
    critic.standardise(torch.tensor([[0.0, 5.0, 1.0], [2.0, 5.0, 3.0]]), torch.zeros(4, 2, 2))
    assert critic.get_buffer("feature_mean").tolist() == [1.0, 5.0, 2.0]
    assert critic.get_buffer("feature_std").tolist() == [1.0, 1.0, 1.0]  # of one that never changes 1
    features, chunks = torch.randn(4, 3), torch.randn(4, 6, 2, 2)
    assert torch.equal(critic.value(features, chunks), critic(features, chunks).min(dim=0).values)
    far = torch.full((1, 3), 1e6)
    assert torch.equal(critic(far, chunks[:1]), critic(2 * far, chunks[:1]))


def test_a_row_that_is_not_finite_has_no_action() -> None:
    policy, obs = steered("pi0")
    obs.proprio[1] = torch.nan
    actions = policy.act(obs, rng(), "greedy").actions
    assert actions.isnan().flatten(1).all(dim=1).tolist() == [False, True, False]
    assert actions[[0, 2]].isfinite().all()


@pytest.mark.parametrize("kind", ["pi0", "smolvla", "openvla"])
def test_a_checkpoint_keeps_it_bit_for_bit(kind: str, tmp_path: Path) -> None:
    policy, obs = steered(kind)
    save_policy(policy, tmp_path / "start", {})
    again = load_policy(tmp_path / "start")
    for mode in ("greedy", "sample"):
        first, second = policy.act(obs, rng(2), mode), again.act(obs, rng(2), mode)
        assert torch.equal(first.actions, second.actions)
        assert torch.equal(first.replay[CHOSEN], second.replay[CHOSEN])
    assert "steering.safetensors" in {path.name for path in again.source_files}  # so its digest tells critics apart
    assert again.steering is not None
    assert not any(parameter.requires_grad for parameter in again.steering.parameters())
    policy.steering = None
    save_policy(policy, tmp_path / "start", {})
    assert load_policy(tmp_path / "start").steering is None
    assert not (tmp_path / "start/steering.safetensors").exists()


def test_what_would_lose_the_critic_is_refused(tmp_path: Path) -> None:
    policy, obs = steered("pi0")
    save_policy(policy, tmp_path / "start", {})
    request = ExportRequest(out=tmp_path / "out", layout=None, cameras=(), provenance={}, dtype=None)
    with pytest.raises(UserError, match=r"no place for a critic, and the policy is steered .*: --layout native keeps"):
        export_policy(load_policy(tmp_path / "start"), request)
    assert not (tmp_path / "out").exists()
    export_policy(load_policy(tmp_path / "start"), replace(request, layout="native"))
    exported = load_policy(tmp_path / "out")
    assert torch.equal(exported.act(obs, rng(), "greedy").actions, policy.act(obs, rng(), "greedy").actions)
    with pytest.raises(UserError, match=UNSTEERED):
        load_weights(tmp_path / "start", PublishedOptions().options_for(tmp_path / "start", None))
    assert policy.traits.continue_chunk is None


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    policy, _ = steered("pi0")
    save_policy(policy, tmp_path / "start", {})
    (tmp_path / "start/checksums.json").unlink()
    path = tmp_path / "start/config.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps(about | {"steering": about["steering"] | {"candidates": 0}}))
    with pytest.raises(UserError, match="'steering' is damaged"):
        load_policy(tmp_path / "start")
    path.write_text(json.dumps(about | {"model": about["model"] | {"chunk_len": 2}}))
    with pytest.raises(UserError, match="critic of chunks of 3 steps of 3 numbers, and would act by 2 of 3"):
        load_policy(tmp_path / "start")
    path.write_text(json.dumps(about))
    (tmp_path / "start/steering.safetensors").unlink()
    with pytest.raises(UserError, match=r"steering.safetensors is missing"):
        load_policy(tmp_path / "start")


def test_candidates_have_numbers_of_their_own() -> None:
    each = rng(7).candidates(4)
    assert each.seed.tolist() == [seed for seed in (5, 6, 7) for _ in range(4)]
    drawn = each.normal(3)
    np.testing.assert_array_equal(drawn[::4], rng(7).normal(3))
    assert len({row.tobytes() for row in drawn}) == 12

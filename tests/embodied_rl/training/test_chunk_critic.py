"""A chunk critic on a problem of one number: choosing by it beats the policy, and not where outcomes are shuffled."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from embodied_rl.policies.steering import ChunkCritic, CriticConfig
from embodied_rl.training import chunk_critic
from embodied_rl.training.chunk_critic import Decisions, fit_critic, joined
from embodied_rl.types import Array

COUNT, LENGTH, K, STEPS = 8, 4, 2, 400
SMALL = CriticConfig(features=2, chunk_len=K, action_dim=1, width=32)


def episodes(number: int, seed: int, critic: ChunkCritic | None = None) -> tuple[Array, Array, Array, Array]:
    """From 0, by the sum of each of `LENGTH` random chunks, to beyond 1 on the side that is asked for.

    Returns features [E,T,2], candidates [E,T,M,K,1], chosen [E,T] and success [E].
    """
    draw = np.random.default_rng(seed)
    at, side = np.zeros(number), draw.choice([-1.0, 1.0], number)
    seen, drawn, chosen = [], [], []
    for _ in range(LENGTH):
        features = np.stack([at, side], axis=1).astype(np.float32)
        chunks = draw.uniform(-0.5, 0.5, (number, COUNT, K, 1)).astype(np.float32)
        best = np.zeros(number, np.int64)
        if critic is not None:
            with torch.no_grad():
                best = critic.value(torch.from_numpy(features), torch.from_numpy(chunks)).argmax(1).numpy()
        at = at + chunks[np.arange(number), best].sum(axis=(1, 2))
        seen.append(features)
        drawn.append(chunks)
        chosen.append(best)
    return np.stack(seen, 1), np.stack(drawn, 1), np.stack(chosen, 1), at * side > 1.0


def decisions(number: int, seed: int, *, shuffled: bool = False) -> Decisions:
    features, candidates, chosen, success = episodes(number, seed)
    if shuffled:
        success = np.random.default_rng(seed).permutation(success)
    rows = number * LENGTH
    last = np.tile(np.arange(LENGTH) == LENGTH - 1, number)
    flat = candidates.reshape(rows, COUNT, K, 1)
    return Decisions(
        torch.from_numpy(features.reshape(rows, 2)),
        torch.from_numpy(flat),
        torch.arange(rows),
        torch.from_numpy(flat[np.arange(rows), chosen.reshape(-1)]),
        torch.from_numpy((last * np.repeat(success, LENGTH)).astype(np.float32)),
        torch.from_numpy(np.where(last, 0.0, 0.97).astype(np.float32)),
        torch.from_numpy(np.where(last, -1, np.arange(rows) + 1)),
    )


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@cache
def fitted() -> tuple[ChunkCritic, float]:
    return fit_critic(decisions(200, 2), 0, STEPS, (0, 1), SMALL)


def test_best_of_n_beats_the_policy_and_not_by_shuffled_outcomes() -> None:
    alone = episodes(300, 1)[-1].mean()
    critic, loss = fitted()
    lied, _ = fit_critic(decisions(200, 2, shuffled=True), 0, STEPS, (0, 1), SMALL)
    steered, misled = episodes(300, 1, critic)[-1].mean(), episodes(300, 1, lied)[-1].mean()
    assert alone < 0.2
    assert steered > 0.8
    assert misled < 0.5 * steered
    assert 0 < loss < 0.1


def test_it_looks_ahead_over_the_next_candidates() -> None:
    """The broken variant: without what comes after a decision, only the last one of an episode has a value."""
    whole = decisions(200, 2)
    seeing, other = fitted()[0], fit_critic(replace(whole, discount=whole.discount * 0), 0, STEPS, (0, 1), SMALL)[0]
    first = torch.tensor([[0.0, 1.0]])
    right, left = torch.full((1, 1, K, 1), 0.5), torch.full((1, 1, K, 1), -0.5)
    with torch.no_grad():
        gain = float(seeing.value(first, right) - seeing.value(first, left))
        blinded = float(other.value(first, right) - other.value(first, left))
    assert gain > 0.2
    assert gain > 2 * blinded


def test_the_same_decisions_give_the_same_critic_and_another_round_another() -> None:
    data = decisions(20, 3)
    one, two, three = (fit_critic(data, 10, 12, (0, number), SMALL)[0].state_dict() for number in (1, 1, 2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not all(torch.equal(one[name], three[name]) for name in one)


def test_half_of_a_batch_are_demonstrated() -> None:
    rows = chunk_critic._half_and_half(np.random.default_rng(0), 10, 1000)
    assert (rows < 10).sum() == len(rows) // 2
    assert chunk_critic._half_and_half(np.random.default_rng(0), 0, 30).max() < 30
    assert chunk_critic._half_and_half(np.random.default_rng(0), 30, 30).max() < 30


def test_joined_parts_go_on_within_themselves() -> None:
    one, two = decisions(2, 1), decisions(3, 2)
    whole = joined([one, two])
    first = len(one.features)
    assert whole.at.tolist() == list(range(first + len(two.features)))
    assert torch.equal(whole.after[:first], one.after)
    ends = two.after < 0
    assert (whole.after[first:][ends] == -1).all()
    assert torch.equal(whole.features[whole.after[first:][~ends]], two.features[two.after[~ends]])

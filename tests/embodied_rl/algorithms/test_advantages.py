"""GAE and group-relative advantages: hand-worked values, an independent slow implementation, broken variants."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.advantages import gae, group_relative
from embodied_rl.types import EpisodeResult, EpisodeSpec


def episode(decisions: int, *, terminated: bool, final_value: float = 0.0) -> EpisodeResult:
    return EpisodeResult(
        EpisodeSpec(0, "t", 0, 0), terminated, terminated, not terminated, 0.0, decisions, decisions, final_value
    )


# Two episodes, gamma 0.5, lambda 0.5. The first terminates: rewards 0, 1; values 0.4, 0.6.
#   row 1: delta = 1 + 0 - 0.6 = 0.4;            A = 0.4
#   row 0: delta = 0 + 0.5 * 0.6 - 0.4 = -0.1;   A = -0.1 + 0.25 * 0.4 = 0
# The second runs out of time: rewards 0, 0; values 0.2, 0.4; the final observation is worth 0.8.
#   row 3: delta = 0 + 0.5 * 0.8 - 0.4 = 0;      A = 0
#   row 2: delta = 0 + 0.5 * 0.4 - 0.2 = 0;      A = 0
REWARD = torch.tensor([0.0, 1.0, 0.0, 0.0])
VALUE = torch.tensor([0.4, 0.6, 0.2, 0.4])
EPISODES = [episode(2, terminated=True), episode(2, terminated=False, final_value=0.8)]
ADVANTAGE = [0.0, 0.4, 0.0, 0.0]


def test_gae_by_hand() -> None:
    advantage, returns = gae(REWARD, VALUE, EPISODES, 0.5, 0.5)
    assert advantage.tolist() == pytest.approx(ADVANTAGE, abs=1e-6)
    assert returns.tolist() == pytest.approx([0.4, 1.0, 0.2, 0.4], abs=1e-6)


def test_treating_a_timeout_as_an_end_gives_another_value() -> None:
    swapped = [EPISODES[0], replace(EPISODES[1], terminated=True, truncated=False)]
    advantage, _ = gae(REWARD, VALUE, swapped, 0.5, 0.5)
    # row 3: delta = 0 - 0.4; row 2: 0 + 0.25 * -0.4
    assert advantage.tolist() == pytest.approx([0.0, 0.4, -0.1, -0.4], abs=1e-6)


def test_bootstrapping_past_a_termination_gives_another_value() -> None:
    swapped = [replace(EPISODES[0], terminated=False, truncated=True, final_value=0.8), EPISODES[1]]
    advantage, _ = gae(REWARD, VALUE, swapped, 0.5, 0.5)
    assert advantage.tolist() == pytest.approx([0.1, 0.8, 0.0, 0.0], abs=1e-6)


def test_a_final_value_after_termination_is_ignored() -> None:
    advantage, _ = gae(REWARD, VALUE, [replace(EPISODES[0], final_value=9.0), EPISODES[1]], 0.5, 0.5)
    assert advantage.tolist() == pytest.approx(ADVANTAGE, abs=1e-6)


def test_row_counts_must_agree() -> None:
    with pytest.raises(ValueError, match="2 rows, the batch has 4"):
        gae(REWARD, VALUE, EPISODES[:1], 0.5, 0.5)


def slow_gae(
    rewards: list[list[float]], values: list[list[float]], finals: list[float], gamma: float, lam: float
) -> list[float]:
    """The definition, A_t = sum_l (gamma lambda)^l delta_{t+l}, term by term; a final value of 0 marks termination."""
    out = []
    for reward, value, final in zip(rewards, values, finals, strict=True):
        following = [*value[1:], final]
        delta = [r + gamma * n - v for r, n, v in zip(reward, following, value, strict=True)]
        for t in range(len(delta)):
            out.append(sum((gamma * lam) ** (u - t) * delta[u] for u in range(t, len(delta))))
    return out


@given(st.data(), st.floats(0, 1), st.floats(0, 1))
@settings(deadline=None, max_examples=60)
def test_gae_agrees_with_the_definition(data: st.DataObject, gamma: float, lam: float) -> None:
    number = st.floats(-2, 2, width=32)
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    rewards = [data.draw(st.lists(number, min_size=n, max_size=n)) for n in lengths]
    values = [data.draw(st.lists(number, min_size=n, max_size=n)) for n in lengths]
    ended = [data.draw(st.booleans()) for _ in lengths]
    finals = [0.0 if e else data.draw(number) for e in ended]
    episodes = [episode(n, terminated=e, final_value=f) for n, e, f in zip(lengths, ended, finals, strict=True)]
    reward, value = (torch.tensor([x for row in rows for x in row]) for rows in (rewards, values))
    advantage, returns = gae(reward, value, episodes, gamma, lam)
    expected = slow_gae(rewards, values, finals, gamma, lam)
    np.testing.assert_allclose(advantage.numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(returns.numpy(), np.array(expected) + value.numpy(), rtol=1e-5, atol=1e-5)


def test_with_lambda_1_the_return_is_the_discounted_sum() -> None:
    reward, value = torch.tensor([1.0, 2.0, 4.0]), torch.tensor([3.0, -7.0, 5.0])
    _, returns = gae(reward, value, [episode(3, terminated=True)], 0.5, 1)
    assert returns.tolist() == pytest.approx([1 + 1 + 1, 2 + 2, 4])


def test_group_relative_by_hand() -> None:
    # Group 7: scores 1, 0, 0, 0: mean 1/4, sample variance (9/16 + 3/16) / 3 = 1/4, std 1/2.
    # Group 2: scores 2, 2: no contrast. Members come in any order.
    score = torch.tensor([0.0, 2.0, 1.0, 0.0, 2.0, 0.0])
    group = torch.tensor([7, 2, 7, 7, 2, 7])
    advantage = group_relative(score, group, 0.0 + 1e-12)
    assert advantage.tolist() == pytest.approx([-0.5, 0.0, 1.5, -0.5, 0.0, -0.5], abs=1e-6)


def test_eps_bounds_the_advantage() -> None:
    advantage = group_relative(torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), 0.5)
    assert advantage.tolist() == pytest.approx([0.5 / (2**-0.5 + 0.5), -0.5 / (2**-0.5 + 0.5)])


@given(st.lists(st.lists(st.floats(-3, 3, width=32), min_size=2, max_size=6), min_size=1, max_size=5), st.randoms())
@settings(deadline=None, max_examples=60)
def test_group_relative_agrees_with_numpy_and_ignores_order(scores: list[list[float]], random: object) -> None:
    rows = [(index, score) for index, group in enumerate(scores) for score in group]
    random.shuffle(rows)  # type: ignore[attr-defined]
    advantage = group_relative(torch.tensor([s for _, s in rows]), torch.tensor([g for g, _ in rows]), 1e-6)
    for (group, score), got in zip(rows, advantage.tolist(), strict=True):
        values = np.array(scores[group], dtype=np.float64)
        assert got == pytest.approx((score - values.mean()) / (values.std(ddof=1) + 1e-6), abs=1e-4)


def test_a_group_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least two"):
        group_relative(torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1]), 1e-6)

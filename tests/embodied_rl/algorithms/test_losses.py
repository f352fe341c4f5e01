"""Losses: hand-worked values, masks, levels, weights."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.config import LossNorm, RatioLevel
from embodied_rl.algorithms.losses import clipped_policy_loss, mean_entropy, unit_mask, unit_weights, units, value_loss

LEVELS: list[RatioLevel] = ["token", "action", "chunk"]


def log(*ratios: float) -> torch.Tensor:
    return torch.tensor([[math.log(ratio) for ratio in ratios]])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.0, 2.0, 2.0),
        (1.5, 2.0, 1.28 * 2),  # too likely already: no more gain
        (0.5, 2.0, 0.5 * 2),  # a good action became unlikely: full gradient
        (1.5, -2.0, 1.5 * -2),  # a bad action became likely: full gradient
        (0.5, -2.0, 0.8 * -2),  # unlikely already: no more gain
        (1.25, 2.0, 1.25 * 2),  # between 1 + clip_low and 1 + clip_high: clip-higher lets it pass
    ],
)
def test_clipping_by_hand(ratio: float, advantage: float, expected: float) -> None:
    loss, _ = clipped_policy_loss(log(ratio), torch.tensor([advantage]), torch.ones(1, 1), 0.2, 0.28)
    assert loss.item() == pytest.approx(-expected)


@pytest.mark.parametrize(
    ("ratio", "advantage", "cut"), [(1.5, 1, True), (0.5, 1, False), (1.5, -1, False), (0.5, -1, True)]
)
def test_the_gradient_is_cut_exactly_where_the_clip_fraction_says(ratio: float, advantage: float, cut: bool) -> None:
    log_ratio = log(ratio).requires_grad_()
    loss, metrics = clipped_policy_loss(log_ratio, torch.tensor([float(advantage)]), torch.ones(1, 1), 0.2, 0.28)
    loss.backward()
    assert log_ratio.grad is not None
    assert (log_ratio.grad.item() == 0) == cut == bool(metrics["clip_fraction"])


def test_the_policy_gradient_at_ratio_1_is_that_of_reinforce() -> None:
    log_ratio = torch.zeros(2, 2, requires_grad=True)
    weight = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    loss, metrics = clipped_policy_loss(log_ratio, torch.tensor([1.5, -2.0]), weight, 0.2, 0.2)
    loss.backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([[-0.15, -0.3], [0.6, 0.8]]))
    assert metrics["approx_kl"] == 0


def test_approx_kl_by_hand() -> None:
    _, metrics = clipped_policy_loss(log(2.0, 0.5), torch.ones(1), torch.tensor([[0.5, 0.5]]), 0.2, 0.2)
    # r - 1 - log r: 1 - 0.6931 and -0.5 + 0.6931
    assert metrics["approx_kl"].item() == pytest.approx(0.5 * (1 - math.log(2)) + 0.5 * (math.log(2) - 0.5), abs=1e-6)


def test_a_huge_log_ratio_stays_finite() -> None:
    log_ratio = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss, _ = clipped_policy_loss(log_ratio, torch.tensor([-1.0]), torch.tensor([[0.5, 0.5]]), 0.2, 0.2)
    loss.backward()
    assert math.isfinite(loss.item())
    assert log_ratio.grad is not None
    assert log_ratio.grad.isfinite().all()


def test_units_by_hand() -> None:
    terms = torch.tensor([[1.0, 2, 3, 4, 5, 6]])
    mask = torch.tensor([[True, True, True, True, False, False]])
    assert units(terms, mask, "token", 2).tolist() == [[1, 2, 3, 4, 0, 0]]
    assert units(terms, mask, "action", 2).tolist() == [[3, 7, 0]]
    assert units(terms, mask, "chunk", 2).tolist() == [[10]]
    assert unit_mask(mask, "token", 2).tolist() == mask.tolist()
    assert unit_mask(mask, "action", 2).tolist() == [[True, True, False]]
    assert unit_mask(mask, "chunk", 2).tolist() == [[True]]


@pytest.mark.parametrize("level", LEVELS)
def test_terms_of_steps_that_never_ran_have_no_say(level: RatioLevel) -> None:
    mask = torch.tensor([[True, True, False, False], [True] * 4])
    weight = unit_weights(unit_mask(mask, level, 2), torch.tensor([0, 1]), "token")

    def loss_of(terms: torch.Tensor) -> torch.Tensor:
        return clipped_policy_loss(units(terms, mask, level, 2), torch.tensor([1.0, -1.0]), weight, 0.2, 0.2)[0]

    terms = torch.linspace(-0.1, 0.1, 8).reshape(2, 4).requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(terms), terms)
    assert (gradient[0, 2:] == 0).all()
    assert (gradient[mask] != 0).all()
    with torch.no_grad():
        poisoned = terms.clone()
        poisoned[0, 2:] = float("nan")
        assert loss_of(poisoned) == loss_of(terms)


def test_weights_by_hand() -> None:
    valid = torch.tensor([[True, True], [True, False], [True, True]])  # episode 0 has three units, episode 1 has two
    member = torch.tensor([0, 0, 1])
    token = unit_weights(valid, member, "token")
    torch.testing.assert_close(token, torch.tensor([[0.2, 0.2], [0.2, 0], [0.2, 0.2]]))
    trajectory = unit_weights(valid, member, "trajectory")
    torch.testing.assert_close(trajectory, torch.tensor([[1, 1], [1, 0], [1.5, 1.5]]) / 6)


@given(st.data(), st.sampled_from(["token", "trajectory"]))
@settings(deadline=None, max_examples=40)
def test_weights_add_up_to_1(data: st.DataObject, norm: LossNorm) -> None:
    lengths = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    member = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    steps = torch.tensor(data.draw(st.lists(st.integers(1, 4), min_size=len(member), max_size=len(member))))
    valid = torch.arange(4) < steps[:, None]
    weight = unit_weights(valid, member, norm)
    assert weight.sum().item() == pytest.approx(1, abs=1e-5)
    assert (weight[~valid] == 0).all()
    if norm == "trajectory":
        shares = torch.zeros(len(lengths)).index_add(0, member, weight.sum(1))
        torch.testing.assert_close(shares, torch.full((len(lengths),), 1 / len(lengths)))


def test_mean_entropy_by_hand() -> None:
    entropy = torch.tensor([[1.0, 3.0], [5.0, 100.0]])
    mask = torch.tensor([[True, True], [True, False]])
    assert mean_entropy(entropy, mask, torch.tensor([0.25, 0.75])).item() == pytest.approx(0.25 * 2 + 0.75 * 5)


def test_value_loss_by_hand() -> None:
    value, old, returns = torch.tensor([1.0, 0.3]), torch.tensor([0.0, 0.2]), torch.tensor([2.0, 1.2])
    weight = torch.tensor([0.5, 0.5])
    plain = value_loss(value, old, returns, weight, None)
    assert plain.item() == pytest.approx(0.5 * 0.5 * (1 + 0.81))
    # Row 0 moved by 1: clipped to 0.2, its error is 1.8. Row 1 moved by 0.1: not clipped.
    clipped = value_loss(value, old, returns, weight, 0.2)
    assert clipped.item() == pytest.approx(0.5 * 0.5 * (1.8**2 + 0.81))

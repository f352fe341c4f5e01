"""The critic's losses: Huber's, and HL-Gauss with its targets."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms import losses
from embodied_rl.algorithms.base import Rows
from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.config.policies import MLPConfig, Pi0Config
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.utils.value_bins import ValueBins
from tests.embodied_rl.algorithms.test_algorithms import batch_for
from tests.toy import ToyPolicy

RANGES = st.tuples(st.floats(-5, 5), st.floats(0.1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def off_by(bins: ValueBins, returns: torch.Tensor) -> float:
    """Largest distance of a target's mean from its return, in widths of a bin."""
    wanted = returns.clamp(bins.low, bins.high)
    return float(((bins.targets(returns) @ bins.centres(returns)) - wanted).abs().max()) / bins.width


@settings(max_examples=60, deadline=None)
@given(RANGES, st.integers(8, 101), st.lists(st.floats(-0.5, 1.5), min_size=1, max_size=8))
def test_a_target_adds_up_to_one_and_its_mean_is_the_return(
    span: tuple[float, float], count: int, places: list[float]
) -> None:
    bins = ValueBins(count, *span)
    returns = span[0] + torch.tensor(places) * (span[1] - span[0])
    target = bins.targets(returns)
    assert target.shape == (len(places), count)
    assert (target >= 0).all()
    torch.testing.assert_close(target.sum(dim=1), torch.ones(len(places)))
    assert off_by(bins, returns) < 1e-3
    torch.testing.assert_close(bins.mean(target.clamp_min(1e-30).log()), returns.clamp(*span), rtol=1e-4, atol=1e-3)


def test_without_bins_beyond_the_ends_the_mean_would_be_off(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = torch.tensor([0.0, 1.0])
    assert off_by(ValueBins(51, 0.0, 1.0), ends) < 1e-3
    monkeypatch.setattr("embodied_rl.utils.value_bins._MARGIN", 0)
    assert off_by(ValueBins(51, 0.0, 1.0), ends) > 0.1


def test_hl_gauss_pulls_logits_to_the_target_and_weighs_rows() -> None:
    logits = torch.randn(4, 11, dtype=torch.float64, requires_grad=True)
    target, weight = ValueBins(11, 0.0, 1.0).targets(torch.rand(4).double()), torch.tensor([0.5, 0.0, 0.25, 0.25])
    loss = losses.distribution_loss(logits, target, weight.double())
    assert torch.autograd.gradcheck(losses.distribution_loss, (logits, target, weight.double()))
    (gradient,) = torch.autograd.grad(loss, logits)
    torch.testing.assert_close(gradient, (weight[:, None] * (logits.softmax(dim=1) - target)).detach())
    nearest = losses.distribution_loss(target.clamp_min(1e-300).log(), target, weight.double())
    assert nearest < loss


def test_huber_is_the_square_up_to_a_half_and_a_line_beyond() -> None:
    error = torch.tensor([-2.0, -0.5, 0.0, 0.3, 1.5], dtype=torch.float64, requires_grad=True)
    zero, weight = torch.zeros(5, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    value = losses.value_loss(error, zero, zero, weight, None, huber=True)
    (slope,) = torch.autograd.grad(value, error)
    torch.testing.assert_close(slope, error.detach().clamp(-0.5, 0.5))
    short = error.detach().clamp(-0.4, 0.4)
    one, two = (losses.value_loss(short, zero, zero, weight, 0.2, huber=huber) for huber in (True, False))
    assert torch.equal(one, two)


def test_the_squared_error_is_what_it_was() -> None:
    value, old, returns, weight = torch.rand(4, 64).unbind()
    moved = old + (value - old).clamp(-0.2, 0.2)
    before = 0.5 * (weight * torch.maximum((value - returns).square(), (moved - returns).square())).sum()
    assert torch.equal(losses.value_loss(value, old, returns, weight, 0.2), before)


def test_options_that_do_nothing_are_refused() -> None:
    for options, words in (
        ({"value_bins": 21}, "goes with"),
        ({"value_range": (0.0, 2.0), "value_loss": "huber"}, "goes with"),
        ({"value_loss": "hl_gauss", "value_bins": 7}, "at least 8"),
        ({"value_loss": "hl_gauss", "value_range": (1.0, 1.0)}, "smaller first"),
        ({"value_loss": "hl_gauss", "normalize_value_loss": True}, "normalize_value_loss"),
    ):
        with pytest.raises(UserError, match=words):
            PPOConfig(**options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="policy mlp"):
        TrainConfig(policy=MLPConfig(), algorithm=PPOConfig(value_loss="hl_gauss")).check()
    assert PPOConfig(value_loss="hl_gauss").bins == (51, (0.0, 1.0))
    assert PPOConfig().bins[0] == 1
    TrainConfig(policy=Pi0Config(), algorithm=PPOConfig(value_loss="hl_gauss")).check()


def test_hl_gauss_wants_a_policy_with_bins() -> None:
    policy, config = ToyPolicy(), PPOConfig(value_loss="hl_gauss")
    batch = batch_for(config, policy)
    algorithm = make_algorithm(config)
    weight, _ = algorithm.prepare(batch, 2)
    rows = Rows(batch, torch.arange(len(batch)), weight, torch.full((len(batch),), 1 / len(batch)))
    with pytest.raises(UserError, match="hl_gauss needs a policy"):
        algorithm.loss(policy, rows, 0)


def test_mixed_precision_does_not_round_the_value() -> None:
    bins, logits = ValueBins(51, 0.0, 1.0), torch.randn(16, 51)
    plain = bins.mean(logits)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bins.mean(logits), plain)


def test_a_fresh_distribution_is_even() -> None:
    bins = ValueBins(51, 0.0, 1.0)
    assert float(bins.mean(torch.zeros(51))) == pytest.approx(0.5)
    assert math.isclose(bins.width * 44, 1.0)

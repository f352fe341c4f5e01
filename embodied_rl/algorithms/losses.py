"""Clipped losses over rows of log-prob terms. Pure functions.

Units: the pieces that get one probability ratio each: single terms ('token'), the terms of one control step
('action'), or the whole decision ('chunk'). U is the number of units of a decision. Every loss is a weighted sum with
weights that add up to 1 over the whole batch, so minibatches and microbatches combine exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_rl.algorithms.config import LossNorm, RatioLevel
from embodied_rl.types import RolloutBatch

MAX_IMPORTANCE = 2.0
"""Importance weights of stale rows are truncated here: it bounds what one of them can do to the gradient."""

# exp(20) is 5e8: a ratio beyond it is clipped anyway, and must not overflow to inf * 0 = nan.
_MAX_LOG_RATIO = 20.0


def units(terms: Tensor, mask: Tensor, level: RatioLevel, terms_per_step: int) -> Tensor:
    """Sum the unmasked `terms` [B, L] into units [B, U]."""
    masked = torch.where(mask, terms, torch.zeros_like(terms))
    if level == "token":
        return masked
    if level == "action":
        return masked.unflatten(1, (-1, terms_per_step)).sum(dim=2)
    return masked.sum(dim=1, keepdim=True)


def unit_mask(mask: Tensor, level: RatioLevel, terms_per_step: int) -> Tensor:
    """bool [B, U]: units with an executed term."""
    if level == "token":
        return mask
    if level == "action":
        return mask.unflatten(1, (-1, terms_per_step)).any(dim=2)
    return mask.any(dim=1, keepdim=True)


def unit_weights(valid: Tensor, episode: Tensor, norm: LossNorm) -> Tensor:
    """float32 [B, U], zero where `valid` is not, adding up to 1 over the batch.

    'token': all valid units weigh the same. 'trajectory': all episodes (int64 [B]) weigh the same but those that are
    a person's from the first step on, and the units of one episode share its weight.
    """
    if norm == "token":
        return valid.float() / valid.sum().clamp_min(1)
    _, member = torch.unique(episode, return_inverse=True)
    count = torch.zeros(int(member.max()) + 1).index_add(0, member, valid.sum(dim=1).float())
    return valid.float() / (count[member][:, None].clamp_min(1) * (count > 0).sum().clamp_min(1))


def importance(log_importance: Tensor, mask: Tensor, level: RatioLevel, terms_per_step: int) -> Tensor:
    """float32 [B, U]: probability ratio of each unit, log_importance [B, L]: start of the update over who acted."""
    return units(log_importance, mask, level, terms_per_step).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def importance_weights(weight: Tensor, batch: RolloutBatch, level: RatioLevel, terms_per_step: int) -> Tensor:
    """Weights [B, U] of ratio units, those of stale rows times their truncated importance ratio.

    With them the clipped loss around the policy that the update starts from is decoupled PPO (Hilton et al. 2022,
    eq. 3) with truncated importance sampling (Ionides 2008).
    """
    if batch.log_importance is None:
        return weight
    return weight * importance(batch.log_importance, batch.mask, level, terms_per_step).clamp(max=MAX_IMPORTANCE)


def ratio_stats(terms: Tensor, mask: Tensor) -> Tensor:
    """float32 [3]: number of the rows, sum of the probability ratios of their decisions, and of these squared.

    terms: log pi_new - log pi_old [B, L]. With them `effective_sample_size` tells how far the policy has moved.
    """
    ratio = units(terms.detach(), mask, "chunk", 1).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    return torch.stack([ratio.new_tensor(len(ratio)), ratio.sum(), ratio.square().sum()])


def effective_sample_size(rows: float, ratios: float, squares: float) -> float:
    """Effective sample size over sample size, (sum r)^2 / (n sum r^2) of the ratios r of n rows, from their sums.

    1 where all ratios are equal, 1/n where one of them dominates (Kong 1992).
    """
    return ratios * ratios / (rows * squares)


def clipped_policy_loss(
    log_ratio: Tensor, advantage: Tensor, weight: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped surrogate (Schulman et al. 2017, eq. 7), with separate lower and upper clip (Yu et al. 2025).

    log_ratio: [B, U] log pi_new - log pi_old; advantage: [B]; weight: [B, U]. Returns the loss to minimise,
    -sum w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), and weighted sums: approx_kl = r - 1 - log r
    (Schulman's k3 estimator of KL(old || new)) and clip_fraction (units whose gradient is cut).
    """
    log_ratio = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    gain = advantage[:, None]
    plain = ratio * gain
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * gain
    loss = -(weight * torch.minimum(plain, clipped)).sum()
    with torch.no_grad():
        metrics = {
            "approx_kl": (weight * (ratio - 1 - log_ratio)).sum(),
            "clip_fraction": (weight * (clipped < plain)).sum(),
        }
    return loss, metrics


def mean_entropy(entropy: Tensor, mask: Tensor, row_weight: Tensor) -> Tensor:
    """sum over rows of row_weight [B] times the mean entropy of the row's executed terms [B, L]; a scalar."""
    terms = mask.sum(dim=1).clamp_min(1)  # a row in which a person did every step has none, and no weight
    per_row = torch.where(mask, entropy, torch.zeros_like(entropy)).sum(dim=1) / terms
    return (row_weight * per_row).sum()


def value_loss(value: Tensor, old: Tensor, returns: Tensor, row_weight: Tensor, clip: float | None) -> Tensor:
    """sum of row_weight [B] times half the squared error, all [B]; a scalar.

    With `clip`, the value counts as moved by at most `clip` from `old`, and the larger of both errors counts (as in
    the PPO of OpenAI Baselines).
    """
    error = (value - returns).square()
    if clip is not None:
        moved = old + (value - old).clamp(-clip, clip)
        error = torch.maximum(error, (moved - returns).square())
    return 0.5 * (row_weight * error).sum()

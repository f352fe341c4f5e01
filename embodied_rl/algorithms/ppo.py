"""PPO: proximal policy optimisation (Schulman et al. 2017) with generalised advantage estimation over decisions.

Top to bottom: advantages and returns of a batch, then the loss of some of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from embodied_rl.algorithms.advantages import gae
from embodied_rl.algorithms.base import LossOutput, PartWeight, Rows, evaluate_rows
from embodied_rl.algorithms.config import PPOConfig, RatioLevel
from embodied_rl.algorithms.explained_variance import LEAST_VARIANCE, return_moments, with_explained_variance
from embodied_rl.algorithms.losses import (
    clipped_policy_loss,
    importance_weights,
    mean_entropy,
    ratio_stats,
    unit_mask,
    unit_weights,
    units,
    value_loss,
)
from embodied_rl.policy import Policy
from embodied_rl.types import RolloutBatch

_STD_EPS = 1e-8


class PPO:
    """PPO as the learner and the rollout see it."""

    group_size = 1
    success_rate_range: tuple[float, float] | None = None
    max_oversampling = 1.0
    needs_value = True
    part_weight: PartWeight | None = None  # advantages may be normalised over all rows, and values count by rows

    def __init__(self, config: PPOConfig) -> None:
        self.config = config
        self.needs_final_value = config.bootstrap_truncated
        self.epochs = config.epochs
        self.ratio_level: RatioLevel = config.ratio_level

    def trains_policy(self, iteration: int) -> bool:
        """False in the critic's warm-up."""
        return iteration >= self.config.critic_warmup_iterations

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Say what share of the returns' variance the critic explained."""
        return with_explained_variance(metrics)

    def prepare(self, batch: RolloutBatch, terms_per_step: int) -> tuple[Tensor, dict[str, float]]:
        """Give each row its GAE advantage, normalised over the batch, and its return."""
        config = self.config
        if batch.value is None:
            raise RuntimeError("PPO needs a critic, and the policy returned no value; give it a value head.")
        advantage, returns = gae(batch.reward, batch.value, batch.episodes, config.gamma, config.gae_lambda)
        batch.returns = returns
        batch.advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + _STD_EPS)
        valid = unit_mask(batch.mask, self.ratio_level, terms_per_step)
        weight = importance_weights(
            unit_weights(valid, batch.episode, "token"), batch, self.ratio_level, terms_per_step
        )
        return weight, return_moments(returns, batch.value, len(batch.episodes))

    def loss(self, policy: Policy, rows: Rows, iteration: int) -> LossOutput:
        """-sum w min(r A, clip(r) A) - entropy_coef * entropy + value_coef * value loss; in warm-up the last alone."""
        config, batch, index = self.config, rows.batch, rows.index
        assert batch.advantage is not None, "prepare() first"
        assert batch.returns is not None, "prepare() first"
        assert batch.value is not None, "prepare() checks it"
        out = evaluate_rows(policy, batch, index)
        assert out.value is not None, "the policy acted with a critic and now has none"
        device = out.log_prob.device
        mask = batch.mask[index].to(device)
        terms = out.log_prob - batch.log_prob[index].to(device)
        log_ratio = units(terms, mask, self.ratio_level, policy.terms_per_step)
        advantage, returns = batch.advantage[index].to(device), batch.returns[index].to(device)
        weight, row_weight = rows.unit_weight.to(device), rows.row_weight.to(device)

        policy_loss, metrics = clipped_policy_loss(log_ratio, advantage, weight, config.clip_low, config.clip_high)
        entropy = mean_entropy(out.entropy, mask, weight.sum(dim=1))
        clip = None if config.value_clip is None else config.value_clip * _scale(batch.returns)
        critic_loss = value_loss(out.value, batch.value[index].to(device), returns, row_weight, clip)
        if config.normalize_value_loss:
            # Of the whole batch, not of these rows: the losses of microbatches must add up.
            critic_loss = critic_loss / batch.returns.var(correction=0).clamp_min(LEAST_VARIANCE).to(device)
        loss = config.value_coef * critic_loss
        if self.trains_policy(iteration):
            loss = loss + policy_loss - config.entropy_coef * entropy

        metrics |= {
            "policy_loss": policy_loss.detach(),
            "value_loss": critic_loss.detach(),
            "entropy": entropy.detach(),
        }
        ratio_error = torch.where(mask, terms.detach().expm1().abs(), 0.0).max()
        return LossOutput(loss, metrics, ratio_error, ratio_stats(terms, mask))


def _scale(returns: Tensor) -> float:
    """The root mean square of returns [B], at least 1: in a fixed range large values could not be learned."""
    return max(1.0, float(returns.square().mean().sqrt()))

"""GRPO: group-relative policy optimisation (Shao et al. 2024), with clip-higher and dynamic sampling (Yu et al. 2025).

No critic and no KL penalty. Top to bottom: advantages of a batch, then the loss of some of its rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from embodied_rl.algorithms.advantages import group_relative
from embodied_rl.algorithms.base import LossOutput, PartWeight, Rows, evaluate_rows
from embodied_rl.algorithms.config import GRPOConfig, RatioLevel
from embodied_rl.algorithms.losses import (
    clipped_policy_loss,
    importance_weights,
    mean_entropy,
    ratio_stats,
    unit_mask,
    unit_weights,
    units,
)
from embodied_rl.policy import Policy
from embodied_rl.types import RolloutBatch


class GRPO:
    """GRPO as the learner and the rollout see it."""

    needs_value = False
    needs_final_value = False

    def __init__(self, config: GRPOConfig) -> None:
        self.config = config
        self.group_size = config.group_size
        self.success_rate_range = config.success_rate_range
        self.max_oversampling = config.max_oversampling
        self.epochs = config.epochs
        self.ratio_level: RatioLevel = config.ratio_level
        self.part_weight: PartWeight | None = "episodes" if config.loss_norm == "trajectory" else "units"

    def trains_policy(self, iteration: int) -> bool:
        """Always."""
        return True

    def finish(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """As they are."""
        return dict(metrics)

    def prepare(self, batch: RolloutBatch, terms_per_step: int) -> tuple[Tensor, dict[str, float]]:
        """Give each row the group-relative advantage of its episode's summed reward."""
        score = torch.tensor([episode.reward for episode in batch.episodes])
        group = torch.tensor([episode.spec.group for episode in batch.episodes])
        advantage = group_relative(score, group)
        batch.advantage = advantage[batch.episode]
        valid = unit_mask(batch.mask, self.ratio_level, terms_per_step)
        weight = unit_weights(valid, batch.episode, self.config.loss_norm)
        weight = importance_weights(weight, batch, self.ratio_level, terms_per_step)
        contrast = group[advantage != 0].unique().numel() / group.unique().numel()
        return weight, {"train/groups_with_contrast": contrast}

    def loss(self, policy: Policy, rows: Rows, iteration: int) -> LossOutput:
        """-sum w min(r A, clip(r) A) - entropy_coef * entropy."""
        config, batch, index = self.config, rows.batch, rows.index
        assert batch.advantage is not None, "prepare() first"
        out = evaluate_rows(policy, batch, index)
        device = out.log_prob.device
        mask = batch.mask[index].to(device)
        terms = out.log_prob - batch.log_prob[index].to(device)
        log_ratio = units(terms, mask, self.ratio_level, policy.terms_per_step)
        advantage, weight = batch.advantage[index].to(device), rows.unit_weight.to(device)

        policy_loss, metrics = clipped_policy_loss(log_ratio, advantage, weight, config.clip_low, config.clip_high)
        entropy = mean_entropy(out.entropy, mask, weight.sum(dim=1))
        loss = policy_loss - config.entropy_coef * entropy

        metrics |= {"policy_loss": policy_loss.detach(), "entropy": entropy.detach()}
        ratio_error = torch.where(mask, terms.detach().expm1().abs(), 0.0).max()
        return LossOutput(loss, metrics, ratio_error, ratio_stats(terms, mask))

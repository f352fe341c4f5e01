"""Options of the algorithms. None has an option that it does not use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from embodied_rl.errors import UserError
from embodied_rl.rng import MAX_CANDIDATES
from embodied_rl.utils.options import Expert

RatioLevel = Literal["token", "action", "chunk"]
LossNorm = Literal["token", "trajectory"]


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """Group-relative policy optimisation (Shao et al. 2024) with clip-higher and dynamic sampling (Yu et al. 2025)."""

    group_size: int = 8
    """Episodes that share task and initial state; must divide the episodes of an iteration."""
    success_rate_range: tuple[float, float] | None = (0.1, 0.9)
    """Dynamic sampling: groups with a success rate outside this closed range are replaced; None keeps every group."""
    max_oversampling: Expert[float] = 3.0
    """Dynamic sampling stops after this many times the groups of an iteration, and trains on what it has."""
    clip_low: float = 0.2
    """The probability ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.28
    """The probability ratio is clipped above 1 + clip_high."""
    ratio_level: Expert[RatioLevel] = "token"
    """One ratio for every token, for every action (its tokens together) or for the whole chunk."""
    loss_norm: Expert[LossNorm] = "trajectory"
    """Weight every trajectory equally, or every token (ratio) of the batch equally."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    epochs: int = 1
    """Passes over the batch in one update."""
    demo_coef: Expert[float] = 0.0
    """Weight of the policy's imitation loss on demonstrations (--demos), added to the loss of every optimiser step."""
    demo_decay: Expert[float] = 0.95
    """By this demo_coef is multiplied after each update of the policy (DAPG's lambda_1); 1 keeps it."""

    def __post_init__(self) -> None:
        _require(self.group_size >= 2, f"algorithm.group_size must be at least 2, got {self.group_size}")
        _require(self.max_oversampling >= 1, "algorithm.max_oversampling must be at least 1")
        if self.success_rate_range is not None:
            low, high = self.success_rate_range
            _require(
                0 <= low <= high <= 1,
                f"algorithm.success_rate_range must satisfy 0 <= low <= high <= 1, got {low} {high}",
            )
            rates = [wins / self.group_size for wins in range(self.group_size + 1)]
            _require(
                any(low - 1e-9 <= rate <= high + 1e-9 for rate in rates),
                f"algorithm.success_rate_range {low:g} {high:g} holds no success rate of {self.group_size} episodes "
                "(algorithm.group_size), so every group would be left out",
            )
        _check_shared(self)


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """Proximal policy optimisation (Schulman et al. 2017) over decisions, with GAE (Schulman et al. 2016)."""

    gamma: float = 0.99
    """Discount of a decision."""
    gae_lambda: float = 0.95
    """Bias-variance trade-off of generalised advantage estimation."""
    bootstrap_truncated: Expert[bool] = True
    """At the horizon, count on the value of the last observation; off: running out of time is a failure worth 0."""
    clip_low: float = 0.2
    """The probability ratio is clipped below 1 - clip_low."""
    clip_high: float = 0.2
    """The probability ratio is clipped above 1 + clip_high."""
    ratio_level: Expert[RatioLevel] = "token"
    """One ratio for every token, for every action (its tokens together) or for the whole chunk."""
    value_coef: Expert[float] = 0.5
    """Weight of the value loss."""
    value_clip: Expert[float | None] = 0.2
    """The value may move by this much from the rollout's value before its loss stops improving; where the root mean
    square of the returns is above 1, by this share of it. None does not clip."""
    normalize_value_loss: Expert[bool] = False
    """Divide the value loss by the variance of the batch's returns: its weight is the same whatever rewards are in."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    epochs: int = 2
    """Passes over the batch in one update."""
    demo_coef: Expert[float] = 0.0
    """Weight of the policy's imitation loss on demonstrations (--demos), added to the loss of every optimiser step."""
    demo_decay: Expert[float] = 0.95
    """By this demo_coef is multiplied after each update of the policy (DAPG's lambda_1); 1 keeps it."""
    critic_warmup_iterations: Expert[int] = 0
    """First iterations in which only the value head learns."""

    def __post_init__(self) -> None:
        _require(0 <= self.gamma <= 1, f"algorithm.gamma must lie in [0, 1], got {self.gamma}")
        _require(0 <= self.gae_lambda <= 1, f"algorithm.gae_lambda must lie in [0, 1], got {self.gae_lambda}")
        _require(self.value_coef > 0, "algorithm.value_coef must be positive: PPO needs its critic")
        _require(self.value_clip is None or self.value_clip > 0, "algorithm.value_clip must be positive or None")
        _require(self.critic_warmup_iterations >= 0, "algorithm.critic_warmup_iterations must not be negative")
        _check_shared(self)


@dataclass(frozen=True, kw_only=True)
class ImitateConfig:
    """Filtered behaviour cloning: each iteration is a round of episodes, then imitation of the demonstrations (--demos)
    and of the policy's own successes of all rounds (self-imitation, Oh et al. 2018)."""

    kind: ClassVar[str] = "imitate"

    steps: int = 400
    """Optimiser steps of a round."""
    demo_share: float = 0.5
    """Share of each batch that is demonstrations, at least; the rest is own successes."""

    def __post_init__(self) -> None:
        _require(self.steps >= 1, f"algorithm.steps must be at least 1, got {self.steps}")
        _require(0 <= self.demo_share <= 1, f"algorithm.demo_share must lie in [0, 1], got {self.demo_share}")


@dataclass(frozen=True, kw_only=True)
class SteerConfig(ImitateConfig):
    """Best of N chunks of the policy by a chunk critic, which learns from every episode; the policy imitates its own
    successes beside it, as by imitate, or stays as it is."""

    kind: ClassVar[str] = "steer"

    imitate: bool = True
    """Imitate demonstrations and own successes too; off: the policy's weights stay as they are."""
    candidates: int = 8
    """Chunks that the policy draws for each decision, of which the critic chooses one (N)."""
    critic_steps: int = 1000
    """Optimiser steps of the critic after each round, from new weights."""
    gamma: Expert[float] = 0.9925
    """Discount of a control step, in the critic's value."""

    def __post_init__(self) -> None:
        ImitateConfig.__post_init__(self)
        usual = ImitateConfig()
        _require(
            self.imitate or (self.steps, self.demo_share) == (usual.steps, usual.demo_share),
            "algorithm.steps and algorithm.demo_share say how it imitates: leave them out with algorithm.imitate off",
        )
        _require(
            2 <= self.candidates <= MAX_CANDIDATES,
            f"algorithm.candidates must lie in 2..{MAX_CANDIDATES}, got {self.candidates}",
        )
        _require(self.critic_steps >= 1, f"algorithm.critic_steps must be at least 1, got {self.critic_steps}")
        _require(0 < self.gamma <= 1, f"algorithm.gamma must lie in (0, 1], got {self.gamma}")


OnPolicyConfig = GRPOConfig | PPOConfig
AlgorithmConfig = OnPolicyConfig | ImitateConfig


def demo_weight(config: OnPolicyConfig, update: int) -> float:
    """Weight of the imitation loss in `update` (0-based); 0 while only the critic learns."""
    learned = update - (config.critic_warmup_iterations if isinstance(config, PPOConfig) else 0)
    return config.demo_coef * config.demo_decay**learned if learned >= 0 else 0.0


def _check_shared(config: OnPolicyConfig) -> None:
    _require(0 < config.clip_low < 1, f"algorithm.clip_low must lie in (0, 1), got {config.clip_low}")
    _require(config.clip_high > 0, f"algorithm.clip_high must be positive, got {config.clip_high}")
    _require(config.entropy_coef >= 0, f"algorithm.entropy_coef must not be negative, got {config.entropy_coef}")
    _require(config.epochs >= 1, f"algorithm.epochs must be at least 1, got {config.epochs}")
    _require(config.demo_coef >= 0, f"algorithm.demo_coef must not be negative, got {config.demo_coef}")
    _require(0 < config.demo_decay <= 1, f"algorithm.demo_decay must lie in (0, 1], got {config.demo_decay}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UserError(message + ".")

"""Options of the optimiser and of checkpoints."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embodied_rl.errors import UserError
from embodied_rl.utils.options import Expert


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """AdamW over minibatches of valid rows."""

    lr: float = 1e-4
    """Learning rate of the policy."""
    value_lr: float = 3e-4
    """Learning rate of the value head (PPO)."""
    lr_warmup_updates: Expert[int] = 0
    """Updates over which both learning rates rise linearly to their values: AdamW's first steps are its largest."""
    lr_decay_updates: Expert[int] = 0
    """Updates over which both learning rates fall linearly to a tenth, where they stay; 0 keeps them constant."""
    average_updates: Expert[int] = 0
    """Evaluate and save a running mean of the weights, while the newest ones act and learn: a plain mean over so many
    updates, and then each update has a share of 1 / average_updates in it. 0: the newest weights."""
    weight_decay: Expert[float] = 0.0
    """Decoupled weight decay."""
    betas: Expert[tuple[float, float]] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moments."""
    max_grad_norm: float = 1.0
    """The gradient's global norm is clipped to this."""
    minibatch_size: int | None = 256
    """Rows (decisions) of one optimiser step, about: a batch is shuffled and cut into equal parts of roughly this size.
    Null: `minibatch_groups` decides."""
    minibatch_groups: int | None = None
    """Groups (PPO: episodes) of one optimiser step, in the order in which they were sampled; instead of minibatch_size.
    An update can then begin while other groups still run (scheduler pipelined); advantages are
    normalised within a minibatch."""
    microbatch_size: int = 64
    """Rows of one forward and backward pass; gradients add up exactly to those of the minibatch."""
    row_share: Expert[float] = 1.0
    """Share of the rows of each minibatch that are learned from: drawn by |advantage| and by how surprising the actions
    were, and weighted so that the gradient's expectation stays. Epochs draw anew."""
    ratio_tolerance: Expert[float] = 0.01
    """Before the first step of an update every probability ratio must be 1 within this."""
    recompute_old_log_probs: Expert[bool] = False
    """Compute the rollout's log-probs again before an update, as the update does: for bfloat16, whose rounding would
    otherwise move probability ratios; costs one forward pass over the batch."""
    num_processes: int = 1
    """Ranks to start on this machine: each has its share of the envs, its policy and on GPUs one of them, and learns
    from its own episodes; gradients are summed. torchrun and accelerate say it themselves."""
    fsdp: bool = False
    """FSDP2: each rank holds a part only of the gradients, the optimiser state and the weights as they learn, for
    policies whose training does not fit; slower, because weights travel for every microbatch."""

    def __post_init__(self) -> None:
        positive = (
            "lr",
            "value_lr",
            "max_grad_norm",
            "minibatch_size",
            "minibatch_groups",
            "microbatch_size",
            "ratio_tolerance",
            "num_processes",
        )
        for name in positive:
            value, option = getattr(self, name), f"--learner.{name.replace('_', '-')}"
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{option} must be positive and finite, got {value}.")
        if (self.minibatch_size is None) == (self.minibatch_groups is None):
            raise UserError(
                "give --learner.minibatch-size or --learner.minibatch-groups and set the other to None, as in "
                "--learner.minibatch-size None --learner.minibatch-groups 2."
            )
        for name in ("lr_warmup_updates", "lr_decay_updates", "average_updates"):
            if getattr(self, name) < 0:
                option = f"--learner.{name.replace('_', '-')}"
                raise UserError(f"{option} must not be negative, got {getattr(self, name)}.")
        if not 0 < self.row_share <= 1:
            raise UserError(f"--learner.row-share must lie in (0, 1], got {self.row_share}.")
        if self.weight_decay < 0:
            raise UserError(f"--learner.weight-decay must not be negative, got {self.weight_decay}.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise UserError(f"--learner.betas must lie in [0, 1), got {self.betas}.")

    def lr_factor(self, update: int) -> float:
        """Share of the learning rates in use in `update` (0-based)."""
        rise = min(1.0, (update + 1) / (self.lr_warmup_updates + 1))
        fall = 1.0 if self.lr_decay_updates == 0 else max(0.1, 1.0 - 0.9 * update / self.lr_decay_updates)
        return rise * fall


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save and how much to keep."""

    every: int = 5
    """Iterations between checkpoints; one is also saved at the end and on Ctrl-C."""
    keep: int = 2
    """Checkpoints kept; older ones are deleted."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.keep < 1:
            raise UserError("--checkpoint.every and --checkpoint.keep must be at least 1.")

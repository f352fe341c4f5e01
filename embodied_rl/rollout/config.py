"""Options of the rollout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from embodied_rl.errors import UserError
from embodied_rl.rollout.adaptive import UNIFORM_SHARE, AdaptiveDraws
from embodied_rl.utils.options import Expert


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How much experience an iteration gathers."""

    episodes_per_iteration: int = 64
    """Finished episodes of one update (GRPO: a multiple of the group size)."""
    sampler: Expert[Literal["uniform", "adaptive"]] = "uniform"
    """uniform: every task and initial state equally often. adaptive, for PPO: more of those that failed in the
    batches so far."""
    uniform_share: Expert[float | None] = None
    """adaptive: share of the episodes that are drawn uniformly, so that no task is left out (null: 0.25)."""

    def __post_init__(self) -> None:
        if self.episodes_per_iteration < 1:
            raise UserError(f"--rollout.episodes-per-iteration must be at least 1, got {self.episodes_per_iteration}.")
        if self.sampler not in ("uniform", "adaptive"):
            raise UserError(f"--rollout.sampler must be uniform or adaptive, got {self.sampler!r}.")
        if self.uniform_share is not None and self.sampler == "uniform":
            raise UserError("--rollout.uniform-share goes with --rollout.sampler adaptive.")
        if self.uniform_share is not None and not 0 < self.uniform_share <= 1:
            raise UserError(f"--rollout.uniform-share must lie in (0, 1], got {self.uniform_share}.")

    def draws(self, seed: int, tasks: Mapping[str, Sequence[int]], *, has_success: bool = True) -> AdaptiveDraws | None:
        """What an adaptive sampler draws episodes from; None: it draws uniformly.

        Args:
            seed: of the run.
            tasks: initial states by task name.
            has_success: of `EnvInfo`; UserError where an adaptive sampler has nothing to go by.
        """
        if self.sampler == "uniform":
            return None
        if not has_success:
            raise UserError("--rollout.sampler adaptive goes by success, which these tasks do not have: leave it out.")
        share = UNIFORM_SHARE if self.uniform_share is None else self.uniform_share
        return AdaptiveDraws(seed, tasks, share)

    def groups(self, group_size: int) -> int:
        """Return the groups of an iteration; raise UserError unless the group size divides its episodes."""
        groups, rest = divmod(self.episodes_per_iteration, group_size)
        if rest:
            low = groups * group_size
            raise UserError(
                f"--algorithm.group-size {group_size} does not divide --rollout.episodes-per-iteration "
                f"{self.episodes_per_iteration}; use {f'{low} or ' if low else ''}{low + group_size} episodes."
            )
        return groups

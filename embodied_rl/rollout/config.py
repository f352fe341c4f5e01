"""Options of the rollout."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How much experience an iteration gathers."""

    episodes_per_iteration: int = 64
    """Finished episodes of one update (GRPO: a multiple of the group size)."""

    def __post_init__(self) -> None:
        if self.episodes_per_iteration < 1:
            raise UserError(f"--rollout.episodes-per-iteration must be at least 1, got {self.episodes_per_iteration}.")

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

"""Runs of an episode that were lost: why, how often, and when it is enough."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import torch

from embodied_rl.errors import UserError
from embodied_rl.types import EpisodeSpec

MAX_ATTEMPTS = 5


class FailureCause(Enum):
    """Why a run of an episode does not count, as what happened to the episode."""

    SIMULATOR = "broke the simulator"
    POLICY = "got actions that are not finite from the policy"


_ADVICE = {
    FailureCause.SIMULATOR: "check that task and state with `embodied-rl eval`.",
    FailureCause.POLICY: "check the checkpoint with `embodied-rl doctor --policy`.",
}


def cause_of(actions: torch.Tensor) -> FailureCause:
    """Why a run failed after these actions of its row, [K, A]: the simulator gets finite ones only."""
    return FailureCause.SIMULATOR if torch.isfinite(actions).all() else FailureCause.POLICY


class RetryPolicy:
    """Counts the runs of each episode that were lost."""

    def __init__(self) -> None:
        self._lost: dict[int, list[FailureCause]] = {}

    def record_failure(self, spec: EpisodeSpec, cause: FailureCause) -> int:
        """Count a lost run and return how many there were; UserError if that was the last attempt."""
        causes = self._lost.setdefault(spec.episode_id, [])
        causes.append(cause)
        if len(causes) >= MAX_ATTEMPTS:
            what = " and ".join(f"{why.value} {_times(count)}" for why, count in Counter(causes).items())
            raise UserError(
                f"episode {spec.episode_id} of task '{spec.task}', initial state {spec.init_state}, {what}; "
                f"{_ADVICE[cause]}"
            )
        return len(causes)

    def forget(self, spec: EpisodeSpec) -> None:
        """The episode ended."""
        self._lost.pop(spec.episode_id, None)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

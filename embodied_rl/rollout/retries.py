"""Runs of an episode that were lost: why, how often, and when it is enough."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.types import Array, EpisodeSpec

MAX_ATTEMPTS = 5


class Cause(Enum):
    """Why a run of an episode does not count, as what happened to the episode."""

    SIMULATOR = "broke the simulator"
    POLICY = "got actions that are not finite from the policy"


_ADVICE = {
    Cause.SIMULATOR: "check that task and state with `embodied-rl eval`.",
    Cause.POLICY: "check the checkpoint with `embodied-rl doctor --policy`.",
}


def cause_of(actions: Array) -> Cause:
    """Why a run failed after these actions of its row, [K, A]: the simulator gets finite ones only."""
    return Cause.SIMULATOR if np.isfinite(actions).all() else Cause.POLICY


class Attempts:
    """Counts the runs of each episode that were lost."""

    def __init__(self) -> None:
        self._lost: dict[int, list[Cause]] = {}

    def lose(self, spec: EpisodeSpec, cause: Cause) -> int:
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

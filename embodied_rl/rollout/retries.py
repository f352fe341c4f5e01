"""Runs of an episode that were lost: why, how often, and when it is given up."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import torch

from embodied_rl.errors import UserError
from embodied_rl.types import ChunkResult, EpisodeSpec, Observation

MAX_ATTEMPTS = 5
"""Runs of a training episode. The second is identical, as a killed worker is not the episode's doing; later ones draw
a new seed, as an identical one would break a deterministic simulator again."""
MAX_LOST = 20
"""Runs of an episode that may be lost by what broke in another env; further ones count as attempts."""
EVALUATION_ATTEMPTS = 3
"""Runs of an evaluated episode, which are identical: further ones are for workers that are killed."""


class FailureCause(Enum):
    """Why a run of an episode does not count, as what happened to the episode."""

    SIMULATOR = "broke the simulator"
    POLICY = "got actions that are not finite from the policy"
    LOST = "was lost with another episode's simulator"


def cause_of(obs: Observation, actions: torch.Tensor, result: ChunkResult, row: int) -> FailureCause:
    """Why the run in a row of a decision failed: the policy is to blame only where it saw finite numbers.

    Args:
        obs: what the policy saw, N rows.
        actions: [N, K, A].
        result: what the simulator did with them.
    """
    if result.lost[row]:
        return FailureCause.LOST
    sound = torch.isfinite(actions[row]).all() or not finite_rows(obs.rows([row]))[0]
    return FailureCause.SIMULATOR if sound else FailureCause.POLICY


def finite_rows(obs: Observation) -> list[bool]:
    """Whether the numbers of each of N rows are finite."""
    parts = [obs.proprio] if obs.state is None else [obs.proprio, obs.state]
    return torch.stack([torch.isfinite(part).all(dim=1) for part in parts]).all(dim=0).tolist()


class RetryPolicy:
    """Counts the runs of each episode that were lost. attempts: how often a simulator may break in one."""

    def __init__(self, attempts: int = MAX_ATTEMPTS) -> None:
        self._attempts = attempts
        self._lost: dict[int, list[FailureCause]] = {}
        self._lost_beside: Counter[int] = Counter()

    def record_failure(self, spec: EpisodeSpec, cause: FailureCause) -> int | None:
        """Count a lost run.

        Returns:
            How many there were that count; None where the simulator broke so often that the episode is given up.

        Raises:
            UserError: That was the last attempt, and the policy gave actions that are not finite.
        """
        if cause is FailureCause.LOST:
            self._lost_beside[spec.episode_id] += 1
            if self._lost_beside[spec.episode_id] <= MAX_LOST:
                return len(self._lost.get(spec.episode_id, []))
        causes = self._lost.setdefault(spec.episode_id, [])
        causes.append(cause)
        if FailureCause.POLICY not in causes:
            return len(causes) if len(causes) < self._attempts else None
        if len(causes) >= MAX_ATTEMPTS:
            what = " and ".join(f"{why.value} {_times(count)}" for why, count in Counter(causes).items())
            raise UserError(
                f"episode {spec.episode_id} of task '{spec.task}', initial state {spec.init_state}, {what}; check the "
                "checkpoint with `embodied-rl doctor --policy`."
            )
        return len(causes)

    def forget(self, spec: EpisodeSpec) -> None:
        """The episode ended, or was given up."""
        self._lost.pop(spec.episode_id, None)
        self._lost_beside.pop(spec.episode_id, None)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"

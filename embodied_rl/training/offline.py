"""Offline: a policy learns from episodes that lie on disk. Nothing is run, and nothing is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from embodied_rl.rollout.metrics import empty_batch
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import RolloutBatch
from embodied_rl.vec_env import EnvInfo

CANDIDATES = "candidates"
"""Where a run's folder has what its start draws of the data, once; see `steer`."""


class NoSimulator:
    """A `vec_env.VecEnv` without envs, where nothing is run: it has only what policies see and do.

    Args:
        info: of the robot whose episodes are learned from.
    """

    num_envs = 0

    def __init__(self, info: EnvInfo) -> None:
        self.info = info

    def reset(self, *arguments: Any, **named: Any) -> NoReturn:
        """There is nothing to reset."""
        raise _nothing_runs()

    def step(self, *arguments: Any, **named: Any) -> NoReturn:
        """There is nothing to step."""
        raise _nothing_runs()

    def observe(self, *arguments: Any, **named: Any) -> NoReturn:
        """There is nothing to see."""
        raise _nothing_runs()

    def frame(self, *arguments: Any, **named: Any) -> NoReturn:
        """There is nothing to draw."""
        raise _nothing_runs()

    def new_observation(self, rows: int) -> NoReturn:
        """There is nothing to observe."""
        raise _nothing_runs()

    def close(self) -> None:
        """Nothing is open."""


def _nothing_runs() -> RuntimeError:
    return RuntimeError("a run that learns from data on disk has no simulator")


class OfflineScheduler:
    """A `scheduler.base.Scheduler` whose batches have no episodes: each says only that it is the next round's turn.

    Args:
        sampler: of the run, which is asked for nothing.
    """

    def __init__(self, sampler: EpisodeSampler) -> None:
        self._sampler = sampler

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the rounds start, ..., stop - 1."""
        for version in range(start, stop):
            yield empty_batch(version)

    def publish(self, version: int) -> None:
        """Nobody acts."""

    def paused(self) -> AbstractContextManager[None]:
        """Nothing runs in the background."""
        return nullcontext()

    def sampler_state(self) -> dict[str, Any]:
        """Where the sampler began."""
        return self._sampler.state_dict()

    def close(self) -> None:
        """Nothing to stop."""

"""The serial scheduler: collect a batch, wait for the update, repeat. The reference for faster ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeResult, RolloutBatch


class BatchCollector(Protocol):
    """Collects batch after batch: `Collector`, or over ranks `RankedCollector`."""

    sampler: EpisodeSampler

    def collect(self, version: int, on_episode: Callable[[EpisodeResult], None] | None = None) -> RolloutBatch:
        """Run the episodes of batch `version` and return their rows."""
        ...


class SerialScheduler:
    """Rollout and learner take turns on one copy of the weights, so every batch is on-policy."""

    def __init__(self, collector: BatchCollector, on_episode: Callable[[EpisodeResult], None] | None = None) -> None:
        self._collector = collector
        self._on_episode = on_episode
        self._published = 0

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        self._published = start
        for version in range(start, stop):
            if self._published != version:
                raise RuntimeError(f"batch {version} was asked for, but version {self._published} is the newest policy")
            yield self._collector.collect(version, self._on_episode)

    def publish(self, version: int) -> None:
        """Say that the weights are now those after `version` updates (they are shared: nothing is copied)."""
        self._published = version

    def paused(self) -> AbstractContextManager[None]:
        """Nothing runs in the background."""
        return nullcontext()

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream after the batches yielded so far."""
        return self._collector.sampler.state_dict()

    def close(self) -> None:
        """Nothing to stop."""

"""The pipelined scheduler: rollout threads gather while the caller's thread learns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from embodied_rl.rollout.engine import RolloutEngine
from embodied_rl.rollout.groups import Closed, Group, Verdict
from embodied_rl.rollout.store import Recording, gather
from embodied_rl.rollout.summary import empty_batch, summarise
from embodied_rl.rollout.timeline import LEARNER, Span
from embodied_rl.types import EpisodeResult, RolloutBatch

MIN_ESS = 0.8
"""Where rows that are an update old are worth less than this share (`Learner.ess`), the next rollout waits for its
policy."""


class PipelinedScheduler:
    """`SerialScheduler`'s place, with the rollout in threads of its own; the caller's thread is the learner's.

    install: brings the learner's weights to the policy that acts. poll: called while waiting; what it raises ends the
    wait. learn (overlap stream): gets every group that will be part of the batch under way, in the batch's order, while
    others still run. worked_until: `Learner.worked_until`. ess (overlap async): says how much stale rows are worth
    (`Learner.ess`); then the next rollout runs during the update, as far as the engine's `max_staleness` allows.
    `learning`: whether the owner is at work for the learner, whose own threads may be. Close it when done.
    """

    def __init__(
        self, engine: RolloutEngine, *, install: Callable[[], None], poll: Callable[[], None],
        learn: Callable[[RolloutBatch], None] | None = None, worked_until: Callable[[], float] = lambda: 0.0,
        ess: Callable[[], float] | None = None, on_episode: Callable[[EpisodeResult], None] | None = None,
    ) -> None:
        self._engine = engine
        self._install = install
        self._poll = poll
        self._learn = learn
        self._worked_until = worked_until
        self._ess = ess
        self._on_episode = on_episode or (lambda result: None)
        self._published = 0
        self._acting = -1
        self.learning = False

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        self._engine.stream.begin(start, stop)
        self._published, self._acting = start, -1
        for version in range(start, stop):
            if self._published != version:
                raise RuntimeError(f"batch {version} was asked for, but version {self._published} is the newest policy")
            self._release()
            batch = self._gather(version)
            self.learning = True
            yield batch

    def publish(self, version: int) -> None:
        """Say that the learner's weights are now those after `version` updates."""
        self._published = version
        self.learning = False
        if self._ess is not None:
            self._release()

    def paused(self) -> AbstractContextManager[None]:
        """A `with` block in which simulator and policy are free; episodes under way come to their end first."""
        return self._engine.paused(self._poll)

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream after the batches yielded so far, whatever is under way."""
        return self._engine.sampler_state()

    def close(self) -> None:
        """Stop the threads."""
        self._engine.close()

    def _charge(self, since: float) -> None:
        """Count what the learner's threads did on their own since it was called last."""
        until = min(self._worked_until(), time.perf_counter())
        if until > since:
            self._engine.clock.add(Span(LEARNER, "learn", since, until, 0.0))

    def _release(self) -> None:
        """Let the newest policy act."""
        if self._acting == self._published:
            return
        self._acting = self._published
        too_stale = self._ess is not None and self._ess() < MIN_ESS
        self._engine.publish(self._published, self._install, catch_up=too_stale)

    def _gather(self, version: int) -> RolloutBatch:
        kept: list[Recording] = []
        learned = math.inf
        while isinstance(event := self._engine.wait(self._on_episode, self._poll), Group):
            kept += event.members
            if self._learn is not None:
                self._charge(learned)
                self.learning = True
                with self._engine.clock.stage("learn"):
                    self._learn(gather(event.members, version))
                self.learning, learned = False, time.perf_counter()
        self._charge(learned)
        with self._engine.clock.stage("gather"):
            batch = gather(kept, version) if kept else empty_batch(version)
        self._engine.drop(kept)
        batch.info = summary_of(event, self._engine.stream.sampler.ledger.reissued)
        return batch


def summary_of(closed: Closed, reissued: int) -> dict[str, float]:
    """What a batch's groups tell the metrics; reissued: episodes run again since the start."""
    kept = sum(group.verdict is Verdict.KEPT for group in closed.groups)
    return summarise(
        [member.result for group in closed.groups for member in group.members],
        kept=kept,
        dropped=len(closed.groups) - kept,
        wanted=closed.wanted,
        reissued=reissued,
    ) | {"rollout/stopped": float(sum(group.stopped for group in closed.groups))}

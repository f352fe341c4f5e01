"""The pipelined scheduler: rollout threads gather while the caller's thread learns."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing
from typing import Any

from embodied_rl.learner.batches import join_batches, without_frames
from embodied_rl.learner.off_policy import DRIFT
from embodied_rl.rollout.groups import BatchEnd, Group
from embodied_rl.rollout.metrics import STOPPED, empty_batch, summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory, gather
from embodied_rl.scheduler.pipeline.engine import RolloutEngine
from embodied_rl.types import EpisodeResult, RolloutBatch
from embodied_rl.utils.profiler import LEARNER, Span
from embodied_rl.utils.threads import WorkerPool, torch_threads

_POLL_SECONDS = 0.1


class PipelinedScheduler:
    """`SerialScheduler`'s place, with the rollout in threads of its own; the caller's thread is the learner's.

    install: brings the learner's weights to the policy that acts. poll: called while waiting; what it raises ends the
    wait. learn: gets every group that will be part of the batch under way, in its order, while others still run.
    worked_until: `Learner.worked_until`. ess (overlap async): says how much stale rows are worth (`Learner.ess`); then
    new weights act as soon as they are published, and the next rollout begins before, as far as the engine's stream
    allows. correct: gives rows of a group what the policy that acts makes of them (`stale.correct`), in one of as many
    threads as there are `correctors`, before `learn` gets the group; what it returns (None: nothing to tell) is told as
    `DRIFT`. `learning`: whether the owner is at work for the learner, whose own threads may be.
    Batches that `learn` got are without frames: nobody reads them any more. Close it when done.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        load_weights: Callable[[], None],
        check_interrupt: Callable[[], None],
        learn: Callable[[RolloutBatch], None] | None = None,
        worked_until: Callable[[], float] = lambda: 0.0,
        ess: Callable[[], float] | None = None,
        correct: Callable[[RolloutBatch], float | None] | None = None,
        num_correctors: int = 1,
        on_episode: Callable[[EpisodeResult], None] | None = None,
    ) -> None:
        self._engine = engine
        self._load_weights = load_weights
        self._check_interrupt = check_interrupt
        self._learn = learn
        self._worked_until = worked_until
        self._ess = ess
        self._correct = correct
        self._others = None if correct is None else WorkerPool(num_correctors, "evaluate")
        self._on_episode = on_episode or (lambda result: None)
        self._drifts: list[float] = []
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
        return self._engine.paused(self._check_interrupt)

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream after the batches yielded so far, whatever is under way."""
        return self._engine.sampler_state()

    def close(self) -> None:
        """Stop the threads."""
        if self._others is not None:
            self._others.close()
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
        worth = 1.0 if self._ess is None else self._ess()
        self._engine.publish(self._published, self._load_weights, ess_ratio=worth)

    def _gather(self, version: int) -> RolloutBatch:
        # the cores are taken by those who act, simulate and learn
        with torch_threads(1):
            batch, closed = self._whole(version) if self._learn is None else self._streamed(version, self._learn)
        batch.info = summarize_rollout(closed, self._engine.stream.sampler.counts.requeued)
        batch.info[STOPPED] = float(closed.num_stopped)
        if self._drifts:
            batch.info[DRIFT] = max(self._drifts)
        return batch

    def _whole(self, version: int) -> tuple[RolloutBatch, BatchEnd]:
        kept: list[Trajectory] = []
        while not isinstance(event := self._engine.wait(self._on_episode, self._check_interrupt), BatchEnd):
            kept += event.members if event is not None else []
        with self._engine.clock.span("gather"):
            batch = gather(kept, version) if kept else empty_batch(version)
        self._engine.release(kept)
        return batch, event

    def _streamed(self, version: int, learn: Callable[[RolloutBatch], None]) -> tuple[RolloutBatch, BatchEnd]:
        kept: list[RolloutBatch] = []
        closed, learned = None, math.inf
        with closing(self._events(version)) as events:
            for event in events:
                if isinstance(event, BatchEnd):
                    closed = event
                    continue
                kept.append(without_frames(event))
                self._charge(learned)
                self.learning = True
                with self._engine.clock.span("learn"):
                    learn(event)
                self.learning, learned = False, time.perf_counter()
        assert closed is not None, "the last event"
        self._charge(learned)
        return join_batches(kept) if kept else empty_batch(version), closed

    def _events(self, version: int) -> Generator[RolloutBatch | BatchEnd]:
        """The groups of a batch, corrected, and at last what closed it."""
        jobs: deque[Future[RolloutBatch]] = deque()
        self._drifts = []
        closed: BatchEnd | None = None
        try:
            while closed is None or jobs:
                event = None if closed else self._engine.wait(self._on_episode, self._check_interrupt, block=not jobs)
                if isinstance(event, BatchEnd):
                    closed = event
                elif event is None:
                    yield self._result(jobs.popleft())
                elif self._others is None:
                    yield self._copied(event, version)
                else:  # begun with at once, and the next ones too, before any is learned from
                    jobs.append(self._others.submit(self._corrected, self._copied(event, version)))
            yield closed
        finally:
            for job in jobs:
                job.cancel()

    def _result(self, job: Future[RolloutBatch]) -> RolloutBatch:
        while not wait([job], _POLL_SECONDS).done:
            self._check_interrupt()
        return job.result()

    def _copied(self, group: Group, version: int) -> RolloutBatch:
        with self._engine.clock.span("gather"):
            batch = gather(group.members, version)
        self._engine.release(group.members)
        return batch

    def _corrected(self, group: RolloutBatch) -> RolloutBatch:
        assert self._correct is not None
        with self._engine.clock.span("evaluate"):
            drift = self._correct(group)
        if drift is not None:
            self._drifts.append(drift)
        return group

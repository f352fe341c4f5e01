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
from embodied_rl.scheduler.base import Callbacks, StreamingLearner
from embodied_rl.scheduler.pipeline.engine import RolloutEngine
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import LEARNER, Span
from embodied_rl.utils.threads import WorkerPool, torch_threads

_POLL_SECONDS = 0.1


class PipelinedScheduler:
    """A `Scheduler` whose rollout runs in threads of its own; the caller's thread is the learner's. Close it when done.

    With `learner.minibatch_groups` the learner gets every group of a batch as soon as it is complete, in the batch's
    order. The batch that is yielded then has no images and no replay data, as nobody reads them any more.

    Args:
        load_weights: copies the learner's weights into the acting policy.
        on_policy: no episode begins before its batch's policy is there. Otherwise new weights act as soon as they are
            published, and the next rollout begins before, as far as the engine's queue allows.
        correct: recomputes old log-probs of a group before it is learned from (`importance_correction`), in a pool of
            `num_correctors` threads. Returns the largest change of a log-prob, for the metrics, or None.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        learner: StreamingLearner,
        callbacks: Callbacks,
        *,
        load_weights: Callable[[], None],
        on_policy: bool = True,
        correct: Callable[[RolloutBatch], float | None] | None = None,
        num_correctors: int = 1,
    ) -> None:
        self._engine = engine
        self._learner = learner
        self._callbacks = callbacks
        self._load_weights = load_weights
        self._on_policy = on_policy
        self._correct = correct
        self._correctors = None if correct is None else WorkerPool(num_correctors, "evaluate")
        self._drifts: list[float] = []
        self._published = 0
        self._acting = -1

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        self._engine.queue.begin(start, stop)
        self._published, self._acting = start, -1
        for version in range(start, stop):
            if self._published != version:
                raise RuntimeError(f"batch {version} was asked for, but version {self._published} is the newest policy")
            self._let_act()
            yield self._gather(version)

    def publish(self, version: int) -> None:
        """Say that the learner's weights are now those after `version` updates."""
        self._published = version
        if not self._on_policy:
            self._let_act()

    def paused(self) -> AbstractContextManager[None]:
        """A `with` block in which simulator and policy are free; episodes under way come to their end first."""
        return self._engine.paused(self._callbacks.check_interrupt)

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream of episodes after the batches yielded so far, whatever is under way."""
        return self._engine.sampler_state()

    def close(self) -> None:
        """Stop the threads."""
        if self._correctors is not None:
            self._correctors.close()
        self._engine.close()

    def _let_act(self) -> None:
        """Let the newest policy act."""
        if self._acting == self._published:
            return
        self._acting = self._published
        ess_ratio = 1.0 if self._on_policy else self._learner.ess
        self._engine.publish(self._published, self._load_weights, ess_ratio=ess_ratio)

    def _gather(self, version: int) -> RolloutBatch:
        streams = self._learner.config.minibatch_groups is not None
        with torch_threads(1):  # the cores are taken by those who act, simulate and learn
            batch, end = self._streamed(version) if streams else self._whole(version)
        batch.info = summarize_rollout(end, self._engine.queue.sampler.counts.requeued)
        batch.info[STOPPED] = float(end.num_stopped)
        if self._drifts:
            batch.info[DRIFT] = max(self._drifts)
        return batch

    def _wait(self, *, block: bool = True) -> Group | BatchEnd | None:
        return self._engine.wait(self._callbacks.on_episode, self._callbacks.check_interrupt, block=block)

    def _whole(self, version: int) -> tuple[RolloutBatch, BatchEnd]:
        accepted: list[Trajectory] = []
        while not isinstance(event := self._wait(), BatchEnd):
            accepted += event.members if event is not None else []
        with self._engine.profiler.span("gather"):
            batch = gather(accepted, version) if accepted else empty_batch(version)
        self._engine.release(accepted)
        return batch, event

    def _streamed(self, version: int) -> tuple[RolloutBatch, BatchEnd]:
        accepted: list[RolloutBatch] = []
        end, learned = None, math.inf
        with closing(self._events(version)) as events:
            for event in events:
                if isinstance(event, BatchEnd):
                    end = event
                    continue
                accepted.append(without_frames(event))
                self._charge(learned)
                with self._engine.profiler.span("learn"):
                    self._learner.accumulate(event)
                learned = time.perf_counter()
        assert end is not None, "the last event"
        self._charge(learned)
        return join_batches(accepted) if accepted else empty_batch(version), end

    def _charge(self, since: float) -> None:
        """Count what the learner's threads did on their own since it was called last."""
        until = min(self._learner.cores.busy_until("learner"), time.perf_counter())
        if until > since:
            self._engine.profiler.add(Span(LEARNER, "learn", since, until, 0.0))

    def _events(self, version: int) -> Generator[RolloutBatch | BatchEnd]:
        """The groups of a batch, corrected, and at last what closed it."""
        jobs: deque[Future[RolloutBatch]] = deque()
        self._drifts = []
        end: BatchEnd | None = None
        try:
            while end is None or jobs:
                event = None if end else self._wait(block=not jobs)
                if isinstance(event, BatchEnd):
                    end = event
                elif event is None:
                    yield self._result(jobs.popleft())
                elif self._correctors is None:
                    yield self._copied(event, version)
                else:  # begun with at once, and the next ones too, before any is learned from
                    jobs.append(self._correctors.submit(self._corrected, self._copied(event, version)))
            yield end
        finally:
            for job in jobs:
                job.cancel()

    def _result(self, job: Future[RolloutBatch]) -> RolloutBatch:
        while not wait([job], _POLL_SECONDS).done:
            self._callbacks.check_interrupt()
        return job.result()

    def _copied(self, group: Group, version: int) -> RolloutBatch:
        with self._engine.profiler.span("gather"):
            batch = gather(group.members, version)
        self._engine.release(group.members)
        return batch

    def _corrected(self, group: RolloutBatch) -> RolloutBatch:
        assert self._correct is not None
        with self._engine.profiler.span("evaluate"):
            drift = self._correct(group)
        if drift is not None:
            self._drifts.append(drift)
        return group

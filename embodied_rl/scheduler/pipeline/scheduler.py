"""The pipelined scheduler: rollout threads gather while the caller's thread learns."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any

from embodied_rl.learner.batches import join_batches, without_frames
from embodied_rl.learner.off_policy import DRIFT
from embodied_rl.rollout.groups import BatchEnd, Group, GroupStatus
from embodied_rl.rollout.metrics import STOPPED, empty_batch, summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory, gather
from embodied_rl.scheduler.base import Callbacks, StreamingLearner
from embodied_rl.scheduler.exchange import GroupExchange
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
        exchange: of the engine's queue; several ranks go with `on_policy` only.
        load_weights: copies the learner's weights into the acting policy.
        on_policy: no episode begins before its batch's policy is there. Otherwise new weights act as soon as they are
            published, and the next rollout begins before, as far as the engine's queue allows.
        correct: recomputes old log-probs of a group before it is learned from (`importance_correction`), in a pool of
            `num_correctors` threads. Returns the largest change of a log-prob, for the metrics, or None.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        exchange: GroupExchange,
        learner: StreamingLearner,
        callbacks: Callbacks,
        *,
        load_weights: Callable[[], None],
        on_policy: bool = True,
        correct: Callable[[RolloutBatch], float | None] | None = None,
        num_correctors: int = 1,
    ) -> None:
        self._engine = engine
        self._exchange = exchange
        self._learner = learner
        self._callbacks = callbacks
        self._load_weights = load_weights
        self._on_policy = on_policy
        self._correct = correct
        self._correctors = None if correct is None else WorkerPool(num_correctors, "evaluate")
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
        # On policy no episode runs between batches; and a rank that leaves here would leave the others waiting.
        return self._engine.paused((lambda: None) if self._on_policy else self._callbacks.check_interrupt)

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
        if self._acting == self._published:  # async: `publish` has done it
            return
        self._acting = self._published
        # On policy no row of an older policy is trained on, so nothing limits the lookahead.
        ess_ratio = 1.0 if self._on_policy else self._learner.ess
        self._engine.publish(self._published, self._load_weights, ess_ratio=ess_ratio)

    def _gather(self, version: int) -> RolloutBatch:
        streams = self._learner.config.minibatch_groups is not None
        with torch_threads(1):  # the cores are taken by those who act, simulate and learn
            batch, end, drifts = self._streamed(version) if streams else self._whole(version)
        batch.info = summarize_rollout(end, self._engine.queue.sampler.counts.requeued)
        batch.info[STOPPED] = float(end.num_stopped)
        if drifts:
            batch.info[DRIFT] = max(drifts)
        return batch

    def _wait(self, *, block: bool = True) -> Group | BatchEnd | None:
        return self._engine.wait(self._callbacks.on_episode, self._callbacks.check_interrupt, block=block)

    def _whole(self, version: int) -> tuple[RolloutBatch, BatchEnd, list[float]]:
        accepted: list[Trajectory] = []
        while not isinstance(event := self._wait(), BatchEnd):
            accepted += event.members if event is not None else []
        with self._engine.profiler.span("gather"):
            batch = gather(accepted, version) if accepted else empty_batch(version)
        self._engine.release(accepted)
        return batch, event, []

    def _streamed(self, version: int) -> tuple[RolloutBatch, BatchEnd, list[float]]:
        accepted: list[RolloutBatch] = []
        end, learned = None, math.inf
        # Closed also where the learner raises: corrections that nobody waits for are cancelled.
        with closing(self._events(version)) as events:
            for event in events:
                if isinstance(event, BatchEnd):
                    end = event
                    continue
                accepted.append(without_frames(event))  # so that frames go with their minibatch
                self._charge(learned)
                with self._engine.profiler.span("learn"):
                    self._learner.accumulate(event)
                learned = time.perf_counter()
        assert end is not None, "the last event"
        self._charge(learned)
        drifts = [group.info[DRIFT] for group in accepted if DRIFT in group.info]
        return join_batches(accepted) if accepted else empty_batch(version), end, drifts

    def _charge(self, since: float) -> None:
        """Count what the learner's threads did on their own since it was called last."""
        until = min(self._learner.cores.busy_until("learner"), time.perf_counter())
        if until > since:
            self._engine.profiler.add(Span(LEARNER, "learn", since, until, 0.0))

    def _events(self, version: int) -> Generator[RolloutBatch | BatchEnd]:
        """The groups of a batch, corrected, and at last what closed it."""
        jobs: deque[Future[RolloutBatch]] = deque()
        end: BatchEnd | None = None
        try:
            while end is None or jobs:
                event = None if end else self._next(version, block=not jobs)
                if isinstance(event, BatchEnd):
                    end = event
                elif event is None:
                    yield self._result(jobs.popleft())
                elif event.index in self._exchange.rows:  # corrected before the other ranks heard of it
                    yield self._exchange.rows.pop(event.index)
                elif self._correctors is None:
                    yield self._copied(event, version)
                else:  # begun with at once, and the next ones too, before any is learned from
                    jobs.append(self._correctors.submit(self._corrected, self._copied(event, version)))
            yield end
        finally:
            for job in jobs:
                job.cancel()

    def _next(self, version: int, *, block: bool) -> Group | BatchEnd | None:
        """As `_wait`, over ranks; where the next group in order is another's, this one's rollout goes on meanwhile."""
        if not block:
            return self._wait(block=False)
        return self._exchange.next_event(self._wait, partial(self._ended, version), self._engine.settle)

    def _ended(self, version: int) -> list[tuple[Group, RolloutBatch | None]]:
        """This rank's groups that ended, with their rows for all ranks."""
        return [
            (group, self._corrected(self._copied(group, version)) if group.status is GroupStatus.ACCEPTED else None)
            for group in self._engine.finished_groups()
        ]

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
        if self._correct is None:
            return group
        with self._engine.profiler.span("evaluate"):
            drift = self._correct(group)
        if drift is not None:
            group.info[DRIFT] = drift
        return group

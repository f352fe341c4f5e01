"""Rollout workers on other machines, as Ray actors; the learner stays here.

Each worker has envs and a replica of the policy. It gets episodes, more than it has envs so that none is idle, and
returns their rows. `GroupQueue` decides here which episodes run. A thread talks to the workers, also while the learner
works, and replaces those that die or do not answer (`pool.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from embodied_rl.learner.batches import join_batches
from embodied_rl.rollout.groups import BatchEnd, Group, GroupReport, GroupStatus
from embodied_rl.rollout.metrics import STOPPED, empty_batch, summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.scheduler.base import Callbacks, StreamingLearner
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.ray.cluster import connect
from embodied_rl.scheduler.ray.pool import RayPool
from embodied_rl.scheduler.ray.weight_sync import WeightDeltaEncoder
from embodied_rl.types import EpisodeResult, RolloutBatch

_POLL_SECONDS = 0.1


class RayScheduler:
    """A `Scheduler` whose rollout runs on `config.workers` actors. Close it when done.

    Over ranks each has workers of its own for its groups; its batch is the same on every rank, but for the frames.
    """

    def __init__(
        self, config: RayConfig, learner: StreamingLearner, exchange: GroupExchange, callbacks: Callbacks
    ) -> None:
        assert callbacks.remote is not None, "the caller knows how to open envs elsewhere"
        assert isinstance(learner.policy, nn.Module)
        self._ray = connect(config)
        self._exchange = exchange
        self._queue = exchange.queue
        self._learner = learner
        self._callbacks = callbacks
        self._encoder = WeightDeltaEncoder(learner.policy)
        self._pieces: dict[int, RolloutBatch] = {}
        self._results: list[EpisodeResult] = []
        self._notes: list[str] = []
        self._published = 0
        self._pool = RayPool(
            self._ray,
            config,
            (callbacks.remote, learner.algorithm.needs_final_value, learner.needs_final_images),
            self._queue,
            full_state=self._encoder.full_state,
            log=self._notes.append,
        )
        self._error: BaseException | None = None
        self._closed = False
        self._lock = threading.RLock()
        self._owner_cv = threading.Condition(self._lock)  # the owner may find something
        self._pool_cv = threading.Condition(self._lock)  # there may be something to run
        self._thread = threading.Thread(target=self._serve, name="ray", daemon=True)

    @property
    def replaced(self) -> int:
        """Workers that this process lost."""
        return self._pool.replaced

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        with self._lock:
            self._queue.begin(start, stop)
            self._send(start, whole=True)  # whatever the workers began with
        if not self._thread.ident:  # not before the first weights are on their way
            self._thread.start()
        for version in range(start, stop):
            if self._published != version:
                raise RuntimeError(f"batch {version} was asked for, but version {self._published} is the newest policy")
            yield self._gather(version)

    def publish(self, version: int) -> None:
        """Send the workers what the last update changed; it acts from their next decision on."""
        with self._lock:
            self._send(version)
            self._queue.publish(version, self._learner.ess)
            self._pool_cv.notify()

    def paused(self) -> AbstractContextManager[None]:
        """Simulator and policy of this process are always free."""
        return nullcontext()

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream after the batches yielded so far, whatever is under way."""
        with self._lock:
            return self._queue.sampler.state_dict(self._queue.next_group)

    def close(self) -> None:
        """End the workers; episodes under way are lost."""
        with self._lock:
            self._closed = True
            self._pool.close()
            self._pool_cv.notify()
        if self._thread.ident:
            self._thread.join()

    def _send(self, version: int, *, whole: bool = False) -> None:
        buckets = self._encoder.changes()
        if whole:
            buckets = self._encoder.full_state()
        self._pool.send(version, buckets)
        self._published = version

    def _gather(self, version: int) -> RolloutBatch:
        kept: list[RolloutBatch] = []
        while isinstance(event := self._exchange.next_event(self._wait, self._ended, self._settle), Group):
            heard = self._exchange.rows.pop(event.index, None)
            kept.append(self._rows(event) if heard is None else heard)
        self._hear()
        with self._lock:
            info = summarize_rollout(event, self._queue.sampler.counts.requeued)
        batch = join_batches(kept) if kept else empty_batch(version)
        batch.version = version  # a worker numbers its rows by the policy that acted
        replaced = sum(self._exchange.collectives.gather(self.replaced))
        batch.info = info | {STOPPED: float(event.num_stopped), "rollout/workers_replaced": float(replaced)}
        return batch

    def _ended(self) -> list[tuple[Group, RolloutBatch | None]]:
        """This rank's groups that ended, with their rows for all ranks."""
        with self._lock:
            return [
                (group, self._rows(group) if group.status is GroupStatus.ACCEPTED else None)
                for group in self._queue.finished_groups()
            ]

    def _settle(self, reports: Sequence[GroupReport]) -> None:
        with self._lock:
            self._queue.settle(reports)
            self._pool_cv.notify()

    def _rows(self, group: Group) -> RolloutBatch:
        """The rows of a kept group, which are forgotten here."""
        return join_batches([self._pieces.pop(member.result.spec.episode_id) for member in group.members])

    def _wait(self) -> Group | BatchEnd | None:
        """The next kept group in order, or the end of the batch; None where other ranks must be heard before.

        Meanwhile the owner hears of what ended.
        """
        while True:
            with self._lock:
                if self._error is not None:
                    raise self._error
                event = self._queue.take()
                done = event is not None or self._queue.waits_for_others()
                if not done and not self._results and not self._notes:
                    self._owner_cv.wait(_POLL_SECONDS)
            self._hear()
            if done:
                return event
            self._callbacks.check_interrupt()

    def _hear(self) -> None:
        """Let the owner hear of what ended."""
        with self._lock:
            results, self._results = self._results, []
            notes = self._notes[:]
            self._notes.clear()  # not a new list: the pool appends to this one
        for result in results:
            self._callbacks.on_episode(result)
        for note in notes:
            self._callbacks.log(note)

    # The thread

    def _serve(self) -> None:
        try:
            while True:
                with self._lock:
                    if self._closed:
                        return
                    self._pool.feed()
                    awaited = self._pool.awaited()
                    if not awaited:
                        self._pool_cv.wait(_POLL_SECONDS)
                answered = self._answered(awaited) if awaited else []  # without the lock: the owner goes on meanwhile
                with self._lock:
                    if self._closed:
                        return
                    for piece in self._pool.collect(answered):
                        self._add(piece)
                    self._drop(self._pool.dropped)
                    self._pool.dropped = []
                    self._owner_cv.notify()
        except BaseException as error:  # noqa: BLE001 - the owner raises it
            with self._lock:
                self._error = error
                self._owner_cv.notify()

    def _answered(self, awaited: list[Any]) -> list[Any]:
        """All that is there as soon as anything is; nobody waits for another worker."""
        self._ray.wait(awaited, num_returns=1, timeout=_POLL_SECONDS)
        return self._ray.wait(awaited, num_returns=len(awaited), timeout=0)[0]

    def _add(self, piece: RolloutBatch) -> None:
        (result,) = piece.episodes
        self._pieces[result.spec.episode_id] = piece
        self._results.append(result)
        self._drop(self._queue.add(Trajectory(result)))

    def _drop(self, trajectories: Sequence[Trajectory]) -> None:
        for dropped in trajectories:
            self._pieces.pop(dropped.result.spec.episode_id, None)

"""The Ray actors of a run: given episodes and weights, asked for what has ended, replaced when they are lost.

Not thread-safe: `ray_scheduler` calls everything under its lock.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.scheduler.base import WorkerFactory
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.ray.weight_sync import Bucket
from embodied_rl.scheduler.ray.worker import RolloutWorker, TurnResult
from embodied_rl.types import EpisodeSpec, RolloutBatch

_CALLS = 2
"""Calls under way to a worker that holds episodes: while one's answer travels, the worker is at the next."""
_MAX_LOST = 5
"""Times that each worker may be lost on average before any of them returns episodes; more of it is no accident."""
_PATIENCE = 30.0
"""Seconds without any worker after which the user hears of it."""
_LOGS = "/tmp/ray/session_latest/logs"


@dataclass(eq=False)
class _Worker:
    """An actor.

    ready: answers once the actor is placed and open. up: it has answered; until then the actor gets nothing.
    num_envs: of the actor, once it is up.
    held: episodes that the actor has or, those in `fresh`, will get with its next call.
    calls: under way, oldest first, each with the `load_weights` calls that were sent before it.
    sent: `load_weights` calls since the last call. since: when it was started, came up, got or returned episodes.
    """

    actor: Any
    ready: Any
    up: bool = False
    num_envs: int = 0
    held: dict[int, EpisodeSpec] = field(default_factory=dict)
    fresh: list[EpisodeSpec] = field(default_factory=list)
    calls: deque[tuple[Any, list[Any]]] = field(default_factory=deque)
    sent: list[Any] = field(default_factory=list)
    since: float = 0.0


class RayPool:
    """`config.workers` actors, that run the episodes of `queue`.

    Args:
        arguments: of each `RolloutWorker`.
        full_state: all weights that learn, as last sent.
        log: gets one line when there is something to tell.

    Attributes:
        replaced: number of workers that were lost.
        dropped: trajectories whose rows nobody needs any more; who reads them takes them out.
    """

    def __init__(
        self,
        ray: Any,
        config: RayConfig,
        arguments: tuple[WorkerFactory, bool, bool],
        queue: GroupQueue,
        *,
        full_state: Callable[[], Sequence[Bucket]],
        log: Callable[[str], None],
    ) -> None:
        self._ray, self._config, self._queue = ray, config, queue
        self._full_state, self._log = full_state, log
        options = {
            "num_cpus": config.cpus_per_worker,
            "num_gpus": config.gpus_per_worker,
            "scheduling_strategy": "SPREAD",  # or all may land on one machine
        }
        actor = ray.remote(RolloutWorker).options(**options)
        self._start: Callable[[], Any] = lambda: actor.remote(*arguments)
        self._version = 0
        self._whole: list[Any] | None = None
        self.replaced = 0
        self.dropped: list[Trajectory] = []
        self._lost_in_a_row = 0
        self._none_since: float | None = None
        self._said = False
        self._workers = [self._open() for _ in range(config.workers)]

    def _open(self) -> _Worker:
        actor = self._start()
        return _Worker(actor, actor.num_envs.remote(), since=time.monotonic())

    def send(self, version: int, buckets: Sequence[Bucket]) -> None:
        """From now on version `version` acts, which differs from the one before by `buckets`."""
        self._version, self._whole = version, None
        shared = [self._ray.put(bucket) for bucket in buckets]  # once, however many workers
        for worker in self._workers:
            if worker.up:  # others get everything when they come up
                worker.sent.append(worker.actor.load_weights.remote(version, *shared))

    def feed(self) -> None:
        """Give out what there is to run, one by one to whoever holds least: twice as many as it has envs."""
        up = [worker for worker in self._workers if worker.up]
        while free := [worker for worker in up if len(worker.held) < 2 * worker.num_envs]:
            if (spec := self._queue.next_episode()) is None:
                break
            worker = min(free, key=lambda worker: len(worker.held))
            if not worker.held:
                worker.since = time.monotonic()
            worker.held[spec.episode_id] = spec
            worker.fresh.append(spec)
        for worker in up:
            while worker.held and len(worker.calls) < _CALLS:
                unwanted = [episode for episode, spec in worker.held.items() if self._queue.is_stopped(spec)]
                # An actor keeps the order of its calls, so it acts with the weights that were sent before.
                worker.calls.append((worker.actor.advance.remote(worker.fresh, unwanted), worker.sent))
                worker.fresh, worker.sent = [], []

    def awaited(self) -> list[Any]:
        """What answers next: a call of each worker that has one, and each worker that is not up yet."""
        calls = [worker.calls[0][0] for worker in self._workers if worker.calls]
        return calls + [worker.ready for worker in self._workers if not worker.up]

    def collect(self, answered: Collection[Any]) -> list[RolloutBatch]:
        """Take what has ended, an episode each; replace workers that are lost or do not answer.

        Runs that a simulator broke are begun again; `dropped` gets the trajectories that are not needed any more.

        UserError if there is no worker for too long, or they are lost again and again.
        """
        pieces: list[RolloutBatch] = []
        for worker in self._workers:
            late = time.monotonic() - worker.since > self._config.deadline_s
            if not worker.up:
                if worker.ready in answered:
                    self._admit(worker)
                elif late:  # it hangs while it opens, or was never placed: then nothing was lost
                    self._start_anew(worker)
            elif worker.calls and worker.calls[0][0] in answered:
                pieces += self._take(worker)
            elif worker.calls and late:
                self._replace(worker)
        self._watch()
        return pieces

    def close(self) -> None:
        """End the workers; episodes under way are lost."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []

    def _admit(self, worker: _Worker) -> None:
        """A worker is there: it gets the newest weights, and episodes from now on."""
        if not (num_envs := self._answers(worker, worker.ready)):
            return
        worker.up, worker.num_envs, worker.since = True, num_envs, time.monotonic()
        if self._whole is None:  # once for all workers that come up before the next update
            self._whole = [self._ray.put(bucket) for bucket in self._full_state()]
        worker.sent = [worker.actor.load_weights.remote(self._version, *self._whole)]

    def _take(self, worker: _Worker) -> list[RolloutBatch]:
        call, installed = worker.calls[0]
        if not self._answers(worker, installed):  # or it would go on with older weights
            return []
        ran = self._answers(worker, call)
        if not isinstance(ran, TurnResult):
            return []
        worker.calls.popleft()
        if ran.episodes or ran.failed:
            worker.since = time.monotonic()
        if ran.episodes:
            self._lost_in_a_row = 0
        ended = [piece.episodes[0].spec for piece in ran.episodes]
        for spec in (*ended, *(spec for spec, _ in ran.failed), *ran.skipped):
            del worker.held[spec.episode_id]
        for spec, cause in ran.failed:
            self.dropped += self._queue.retry(spec, cause)
        for spec in ran.skipped:
            self._queue.stop(spec)
        return ran.episodes

    def _answers(self, worker: _Worker, refs: Any) -> Any:
        """What a worker said (True in place of nothing), or None if it is lost and was replaced.

        An error of its own is raised, with its traceback: it would happen again elsewhere.
        """
        try:
            return self._ray.get(refs) or True
        except self._ray.exceptions.RayTaskError:
            raise
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise UserError(_why_not_opened(error)) from error
            self._replace(worker)
            return None

    def _replace(self, worker: _Worker) -> None:
        """Start another one in its place; what it held is run by whoever is free first."""
        self.replaced += 1
        self._lost_in_a_row += 1
        if self._lost_in_a_row > _MAX_LOST * self._config.workers:
            raise UserError(
                f"{self._lost_in_a_row} Ray workers in a row were lost before one had run its episodes: look for the "
                f"cause in the logs under {_LOGS} (too little memory?), then resume the run."
            )
        self._start_anew(worker)
        for spec in worker.held.values():
            self._queue.requeue_uncounted(spec)

    def _start_anew(self, worker: _Worker) -> None:
        self._ray.kill(worker.actor)
        self._workers[self._workers.index(worker)] = self._open()

    def _watch(self) -> None:
        """While no worker is up, nothing goes on: say so, and give up after the deadline."""
        if any(worker.up for worker in self._workers):
            self._none_since, self._said = None, False
            return
        if self._none_since is None:
            self._none_since = time.monotonic()
        count = len(self._workers)
        waited = time.monotonic() - self._none_since
        if waited > self._config.deadline_s:
            raise UserError(
                f"none of {count} Ray workers was placed and opened within --scheduler.deadline-s {waited:.0f}: see "
                f"`ray status` for what the cluster has free and the logs under {_LOGS}, then resume the run."
            )
        if waited > _PATIENCE and not any(node["Alive"] for node in self._ray.nodes()):
            raise UserError(f"the Ray cluster has no node left: see the logs under {_LOGS}, then resume the run.")
        if waited > _PATIENCE and not self._said:
            self._said = True
            self._log(
                f"waiting for Ray: none of {count} workers is placed and open yet (`ray status` says what the cluster "
                f"has free); the run ends after {self._config.deadline_s:.0f} s of it"
            )


def _why_not_opened(error: Exception) -> str:
    """One line from the traceback of a worker that could not begin."""
    cause = str(error).strip().splitlines()[-1].partition("UserError: ")
    return (
        f"a Ray worker could not open its envs and policy: {(cause[2] or cause[0]).rstrip('.')}. Code, assets and "
        "checkpoint must be at the same place on every machine."
    )

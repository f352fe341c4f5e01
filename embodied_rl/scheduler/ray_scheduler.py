"""Rollout workers on other machines, as Ray actors; the learner stays here.

Each worker has worlds of its own and a replica of the policy. It gets episodes, as many as it has slots, and returns
their rows. Which episodes run and what becomes of them is `GroupStream`'s ledger here: a worker that dies or does not
answer is replaced, gets the newest weights, and its episodes run again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from embodied_rl.errors import UserError
from embodied_rl.learner.batches import join_batches
from embodied_rl.rollout.attempts import Cause
from embodied_rl.rollout.groups import Closed, Group, GroupStream
from embodied_rl.rollout.store import Recording
from embodied_rl.rollout.summary import empty_batch
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.pipelined import summary_of
from embodied_rl.scheduler.ray_worker import Ran, RolloutWorker, WorkerFactory
from embodied_rl.scheduler.weights import Bucket, Outbox, nbytes
from embodied_rl.types import EpisodeResult, EpisodeSpec, RolloutBatch

_POLL_SECONDS = 0.1
_KNOCK_SECONDS = 5.0
_MAX_LOST = 5
"""Times that each worker may be lost on average before any of them returns episodes; more of it is no accident."""


def connect(config: RayConfig) -> Any:
    """The `ray` module, connected to the cluster at `config.address` (None: one is started on this machine).

    UserError if Ray is not installed, the cluster does not answer, or it is too small for the workers.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("--scheduler ray needs Ray: pip install 'embodied-rl[ray]'.") from error
    if not ray.is_initialized():
        address = config.address or "local"  # 'local': never whatever RAY_ADDRESS names
        alone: dict[str, Any] = {} if config.address else {"include_dashboard": False}
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False, **alone)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UserError(
                f"no Ray cluster answers at --scheduler.address {address} ({reason}): start one with `ray start "
                "--head`, or leave the address out to use this machine alone."
            ) from error
    _check_size(ray, config)
    return ray


def _knock(address: str) -> None:
    """OSError if nobody listens at HOST:PORT; Ray itself would try again for minutes, with a page of warnings."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _check_size(ray: Any, config: RayConfig) -> None:
    """UserError if the workers could never all run: Ray would let them wait for ever."""
    there = ray.cluster_resources()
    for kind, one, option in (("CPU", config.cpus_per_worker, "cpus"), ("GPU", config.gpus_per_worker, "gpus")):
        if config.workers * one > there.get(kind, 0.0):
            raise UserError(
                f"{config.workers} workers with scheduler.{option}_per_worker {one:g} need {config.workers * one:g} "
                f"{kind}s, and the Ray cluster has {there.get(kind, 0.0):g}: choose fewer --scheduler.workers, or add "
                "machines."
            )


@dataclass(eq=False)
class _Worker:
    """An actor; `specs` and `call`: what it runs now, since `began`; `sent`: weights on their way to it."""

    actor: Any
    sent: list[Any] = field(default_factory=list)
    specs: list[EpisodeSpec] = field(default_factory=list)
    call: Any = None
    began: float = 0.0


class RayScheduler:
    """`SerialScheduler`'s place, with the rollout on `config.workers` actors.

    factory: see `ray_worker.WorkerFactory`; slots: episodes that a worker gets at once. `replaced` counts workers that
    were lost; `sent_bytes` what the last `publish` sent to each. Close it when done.
    """

    def __init__(
        self, config: RayConfig, factory: WorkerFactory, policy: nn.Module, stream: GroupStream, *, slots: int,
        final_value: bool, on_episode: Callable[[EpisodeResult], None], poll: Callable[[], None],
    ) -> None:
        self._ray = connect(config)
        self._config, self._factory, self._slots, self._final_value = config, factory, slots, final_value
        self._stream = stream
        self._outbox = Outbox(policy)
        self._on_episode, self._poll = on_episode, poll
        self._pieces: dict[int, RolloutBatch] = {}
        self._published = 0
        self.replaced = 0
        self._lost_in_a_row = 0
        self.sent_bytes = 0
        options = {
            "num_cpus": config.cpus_per_worker, "num_gpus": config.gpus_per_worker, "scheduling_strategy": "SPREAD"
        }
        self._actor = self._ray.remote(RolloutWorker).options(**options)
        self._workers = [_Worker(self._actor.remote(factory, final_value)) for _ in range(config.workers)]

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        self._stream.begin(start, stop)
        self._outbox.changes()
        self._send(start, self._outbox.everything())  # whatever the workers began with
        for version in range(start, stop):
            if self._published != version:
                raise RuntimeError(f"batch {version} was asked for, but version {self._published} is the newest policy")
            yield self._gather(version)

    def publish(self, version: int) -> None:
        """Send the workers what the last update changed; episodes that they get from now on are run with it."""
        self._send(version, self._outbox.changes())
        self._feed()

    def paused(self) -> AbstractContextManager[None]:
        """Simulator and policy of this process are always free."""
        return nullcontext()

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream after the batches yielded so far, whatever is under way."""
        return self._stream.sampler.state_dict(self._stream.next_group)

    def close(self) -> None:
        """End the workers; episodes under way are lost."""
        for worker in self._workers:
            self._ray.kill(worker.actor)
        self._workers = []

    def _send(self, version: int, buckets: Sequence[Bucket]) -> None:
        self.sent_bytes = nbytes(buckets)
        shared = [self._ray.put(bucket) for bucket in buckets]  # once, however many workers
        for worker in self._workers:
            worker.sent.append(worker.actor.install.remote(version, *shared))
        self._published = self._stream.version = version

    def _gather(self, version: int) -> RolloutBatch:
        kept: list[RolloutBatch] = []
        while not isinstance(event := self._stream.take(), Closed):
            if isinstance(event, Group):
                kept += [self._pieces[member.result.spec.episode_id] for member in event.members]
                continue
            self._poll()
            self._feed()
            self._wait()
        for group in event.groups:
            for member in group.members:
                self._pieces.pop(member.result.spec.episode_id, None)
        batch = join_batches(kept) if kept else empty_batch(version)
        batch.version = version
        batch.info = summary_of(event, self._stream.sampler.ledger.reissued) | {
            "rollout/workers_replaced": float(self.replaced)
        }
        return batch

    def _feed(self) -> None:
        """Give idle workers what there is to run."""
        for worker in self._workers:
            if worker.call is not None:
                continue
            while len(worker.specs) < self._slots and (spec := self._stream.next_episode()) is not None:
                worker.specs.append(spec)
            if worker.specs:
                worker.call, worker.began = worker.actor.run.remote(worker.specs), time.monotonic()

    def _wait(self) -> None:
        """Take what has ended; replace workers that have not answered in time."""
        busy = [worker for worker in self._workers if worker.call is not None]
        ready, _ = self._ray.wait([worker.call for worker in busy], num_returns=len(busy), timeout=_POLL_SECONDS)
        for worker in busy:
            if worker.call in ready:
                self._collect(worker)
            elif time.monotonic() - worker.began > self._config.deadline_s:
                self._replace(worker)

    def _collect(self, worker: _Worker) -> None:
        try:
            self._ray.get(worker.sent)  # or it would go on with older weights
            ran: Ran = self._ray.get(worker.call)
        except self._ray.exceptions.RayTaskError:
            raise  # with the worker's own traceback: it would happen again elsewhere
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise UserError(_why_not_opened(error)) from error
            self._replace(worker)
            return
        self._lost_in_a_row = 0
        worker.call, worker.specs, worker.sent = None, [], []
        for piece in ran.episodes:
            piece.row_version = torch.full((len(piece),), ran.version)
            (result,) = piece.episodes
            self._pieces[result.spec.episode_id] = piece
            self._on_episode(result)
            for dropped in self._stream.add(Recording(result)):
                self._pieces.pop(dropped.result.spec.episode_id, None)
        for spec, cause in ran.lost:
            self._stream.retry(spec, cause)

    def _replace(self, worker: _Worker) -> None:
        """Start another one in its place; what it ran is run again, by whoever is free first."""
        self._ray.kill(worker.actor)
        lost, worker.specs, worker.call = worker.specs, [], None
        self.replaced += 1
        self._lost_in_a_row += 1
        if self._lost_in_a_row > _MAX_LOST * self._config.workers:
            raise UserError(
                f"{self._lost_in_a_row} Ray workers in a row were lost before one had run its episodes: look for the "
                "cause in the logs under /tmp/ray/session_latest/logs (too little memory?), then resume the run."
            )
        worker.actor = self._actor.remote(self._factory, self._final_value)
        weights = [self._ray.put(bucket) for bucket in self._outbox.everything()]
        worker.sent = [worker.actor.install.remote(self._published, *weights)]
        for spec in lost:
            self._stream.retry(spec, Cause.WORKER)


def _why_not_opened(error: Exception) -> str:
    """One line from the traceback of a worker that could not begin."""
    cause = str(error).strip().splitlines()[-1].partition("UserError: ")
    return (
        f"a Ray worker could not open its worlds and policy: {(cause[2] or cause[0]).rstrip('.')}. Code, assets and "
        "checkpoint must be at the same place on every machine."
    )

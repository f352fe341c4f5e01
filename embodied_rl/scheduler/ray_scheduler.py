"""Rollout workers on other machines, as Ray actors; the learner stays here.

Each worker has worlds of its own and a replica of the policy. It gets episodes, as many as it has slots, and returns
their rows. Which episodes run and what becomes of them is `GroupStream`'s ledger here: a worker that dies or does not
answer is replaced, gets the newest weights, and its episodes run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from embodied_rl.errors import UserError
from embodied_rl.learner.batches import join_batches
from embodied_rl.rollout.groups import Closed, Group, GroupStream
from embodied_rl.rollout.store import Recording
from embodied_rl.rollout.summary import empty_batch
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.pipelined import summary_of
from embodied_rl.scheduler.ray_worker import Ran, RolloutWorker, WorkerFactory
from embodied_rl.scheduler.weights import Bucket, Outbox, nbytes
from embodied_rl.types import EpisodeResult, EpisodeSpec, RolloutBatch

_POLL_SECONDS = 0.1


def connect(address: str | None) -> Any:
    """The `ray` module, connected to the cluster at `address` (None: started on this machine). UserError if absent."""
    try:
        import ray
    except ImportError as error:
        raise UserError("--scheduler ray needs Ray: pip install 'embodied-rl[ray]'.") from error
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False)
        except ConnectionError as error:
            raise UserError(f"there is no Ray cluster at {address}: start one with `ray start --head`.") from error
    return ray


@dataclass(eq=False)
class _Worker:
    """An actor; `specs` and `call`: what it runs now, since `began`."""

    actor: Any
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
        self._ray = connect(config.address)
        self._config, self._factory, self._slots, self._final_value = config, factory, slots, final_value
        self._stream = stream
        self._outbox = Outbox(policy)
        self._on_episode, self._poll = on_episode, poll
        self._pieces: dict[int, RolloutBatch] = {}
        self._published = 0
        self.replaced = 0
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
            worker.actor.install.remote(version, *shared)
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
            ran: Ran = self._ray.get(worker.call)
        except self._ray.exceptions.RayError:
            self._replace(worker)
            return
        worker.call, worker.specs = None, []
        for piece in ran.episodes:
            piece.row_version = torch.full((len(piece),), ran.version)
            (result,) = piece.episodes
            self._pieces[result.spec.episode_id] = piece
            self._on_episode(result)
            for dropped in self._stream.add(Recording(result)):
                self._pieces.pop(dropped.result.spec.episode_id, None)
        for spec in ran.lost:
            self._stream.retry(spec)

    def _replace(self, worker: _Worker) -> None:
        """Start another one in its place; what it ran is run again, by whoever is free first."""
        self._ray.kill(worker.actor)
        lost, worker.specs, worker.call = worker.specs, [], None
        self.replaced += 1
        worker.actor = self._actor.remote(self._factory, self._final_value)
        worker.actor.install.remote(self._published, *[self._ray.put(bucket) for bucket in self._outbox.everything()])
        for spec in lost:
            self._stream.retry(spec)

"""The serial scheduler: collect a batch, wait for the update, repeat. The reference for faster ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from embodied_rl.learner.batches import join_batches
from embodied_rl.policy import Policy
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.groups import BatchEnd, Group, GroupStatus
from embodied_rl.rollout.metrics import empty_batch, summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory, gather
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv


class Collector:
    """Collects on-policy batches: starts the groups that a batch needs, and runs all envs until they have ended.

    A batch is the same whatever the number of envs and the order in which episodes end. Some envs are idle at the end
    of each, because no group of the next batch starts before the policy is updated. Over ranks the batch is the same on
    every one, but for the frames: these stay where they were rendered.

    Args:
        exchange: the groups to run, with no lookahead; its `on_episode` hears of every episode.
        final_value: record the critic's value after the last step of truncated episodes.
        final_images: record the pictures after the last step of every episode.
        on_step: called before each decision; what it raises ends the collection.

    Example:
        >>> collector = Collector(env, policy, GroupExchange(GroupQueue(sampler, groups=8)), Profiler())
        >>> batch = collector.collect(version=0)
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        exchange: GroupExchange,
        clock: Profiler,
        *,
        final_value: bool = False,
        final_images: bool = False,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.sampler = exchange.queue.sampler
        self._exchange = exchange
        self._queue = exchange.queue
        self._runner = EnvRunner(
            env, policy, clock, record=True, final_value=final_value, final_images=final_images, on_step=on_step
        )
        self._clock = clock

    def collect(self, version: int) -> RolloutBatch:
        """Run the episodes of batch `version` and return their rows, in the order of the episodes.

        The batch is empty if every group was filtered out; `batch.info` has the rollout's metrics.

        Raises:
            Interrupted: some rank was asked to stop.
            RankError: another rank was lost.
        """
        self._queue.begin(version, version + 1)
        accepted: list[Group] = []
        ended = partial(self._ended, version)
        while isinstance(event := self._exchange.next_event(self._run, ended, self._queue.settle), Group):
            accepted.append(event)
        batch = self._joined(accepted, version) if accepted else empty_batch(version)
        batch.info = summarize_rollout(event, self.sampler.counts.requeued)
        return batch

    def _run(self) -> Group | BatchEnd | None:
        """What comes next in the batch; where that is not known, run what this rank may run to its end."""
        queue = self._queue
        if (event := queue.take()) is not None:
            return event
        for trajectory in self._runner.run(
            queue.next_episode, lambda *lost: self._release(queue.retry(*lost)), "sample"
        ):
            self._release(queue.add(trajectory))
            self._exchange.on_episode(trajectory.result)
        return queue.take()

    def _ended(self, version: int) -> list[tuple[Group, RolloutBatch | None]]:
        return [
            (group, self._copied([group], version) if group.status is GroupStatus.ACCEPTED else None)
            for group in self._queue.finished_groups()
        ]

    def _joined(self, accepted: Sequence[Group], version: int) -> RolloutBatch:
        if self._exchange.collectives.size > 1:
            return join_batches([self._exchange.rows.pop(group.index) for group in accepted])
        return self._copied(accepted, version)  # all at once: joining groups would copy every frame a second time

    def _copied(self, groups: Sequence[Group], version: int) -> RolloutBatch:
        """The rows of groups, whose memory in the pool is free then."""
        members = [member for group in groups for member in group.members]
        with self._clock.span("gather"):
            batch = gather(members, version)
        self._release(members)
        return batch

    def _release(self, trajectories: Sequence[Trajectory]) -> None:
        self._runner.store.release([row for trajectory in trajectories for row in trajectory.steps])


class SerialScheduler:
    """Rollout and learner take turns on one copy of the weights, so every batch is on-policy."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._published = 0

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        self._published = start
        for version in range(start, stop):
            if self._published != version:
                raise RuntimeError(f"batch {version} was asked for, but version {self._published} is the newest policy")
            yield self._collector.collect(version)

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

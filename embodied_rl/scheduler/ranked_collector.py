"""Serial collection over ranks: each runs its own groups to their end, then all hear of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embodied_rl.learner.batches import join_batches
from embodied_rl.policy import Policy
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.groups import BatchEnd, Group, GroupStatus
from embodied_rl.rollout.metrics import empty_batch, summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory, gather
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.types import EpisodeResult, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.signals import Interrupted
from embodied_rl.vec_env import VecEnv


class RankedCollector:
    """A `Collector` whose batch is the same on every rank, but for the frames: these stay where they were rendered."""

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
        self._runner = EnvRunner(
            env, policy, clock, record=True, final_value=final_value, final_images=final_images, on_step=on_step
        )
        self._clock = clock

    def collect(self, version: int, on_episode: Callable[[EpisodeResult], None] | None = None) -> RolloutBatch:
        """As `Collector.collect`.

        Raises:
            Interrupted: some rank was asked to stop.
            RankError: another rank was lost.
        """
        queue = self._exchange.queue
        queue.begin(version, version + 1)
        accepted: list[RolloutBatch] = []
        while True:
            stop = self._run_own(on_episode)
            ended = queue.finished_groups()
            with self._clock.span("gather"):
                rows = [self._rows(group, version) for group in ended]
            with self._clock.span("exchange"):
                reports, _ = self._exchange.share(list(zip(ended, rows, strict=True)), stop)
            queue.settle(reports)
            while (event := queue.take()) is not None:
                if isinstance(event, BatchEnd):
                    batch = join_batches(accepted) if accepted else empty_batch(version)
                    batch.info = summarize_rollout(event, self.sampler.counts.requeued)
                    return batch
                accepted.append(self._exchange.rows.pop(event.index))

    def _run_own(self, on_episode: Callable[[EpisodeResult], None] | None) -> bool:
        """Run what this rank may run; True if it was asked to stop."""
        queue = self._exchange.queue
        try:
            for trajectory in self._runner.run(
                queue.next_episode, lambda *lost: self._release(queue.retry(*lost)), "sample"
            ):
                self._release(queue.add(trajectory))
                if on_episode is not None:
                    on_episode(trajectory.result)
        except Interrupted:
            return True
        return False

    def _rows(self, group: Group, version: int) -> RolloutBatch | None:
        """A group's rows, whose memory in the pool is free then."""
        if group.status is not GroupStatus.ACCEPTED:
            return None
        batch = gather(group.members, version)
        self._release(group.members)
        return batch

    def _release(self, trajectories: Sequence[Trajectory]) -> None:
        self._runner.store.release([row for trajectory in trajectories for row in trajectory.steps])

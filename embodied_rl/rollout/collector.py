"""Serial collection of on-policy batches: start the groups that the batch needs, run all envs until they have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embodied_rl.policy import Policy
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.groups import BatchEnd, GroupQueue
from embodied_rl.rollout.metrics import empty_batch, summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory, gather
from embodied_rl.types import EpisodeResult, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv


class Collector:
    """Collects the batches of `queue`, one after the other.

    A batch is the same whatever the number of envs and the order in which episodes end. Some envs are idle at the end
    of each, because no group of the next batch starts before the policy is updated.

    Args:
        queue: which groups to run, with no lookahead.
        final_value: record the critic's value after the last step of truncated episodes.
        final_images: record the pictures after the last step of every episode.
        on_step: called before each decision; what it raises ends the collection.

    Example:
        >>> collector = Collector(env, policy, GroupQueue(sampler, groups=8), Profiler())
        >>> batch = collector.collect(version=0)
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        queue: GroupQueue,
        clock: Profiler,
        *,
        final_value: bool = False,
        final_images: bool = False,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.sampler = queue.sampler
        self._queue = queue
        self._runner = EnvRunner(
            env, policy, clock, record=True, final_value=final_value, final_images=final_images, on_step=on_step
        )
        self._clock = clock

    def collect(self, version: int, on_episode: Callable[[EpisodeResult], None] | None = None) -> RolloutBatch:
        """Run the episodes of batch `version` and return their rows, in the order of the episodes.

        The batch is empty if every group was filtered out; `batch.info` has the rollout's metrics.
        """
        queue = self._queue
        queue.begin(version, version + 1)
        for trajectory in self._runner.run(
            queue.next_episode, lambda *lost: self._release(queue.retry(*lost)), "sample"
        ):
            self._release(queue.add(trajectory))
            if on_episode is not None:
                on_episode(trajectory.result)
        accepted: list[Trajectory] = []
        while not isinstance(event := queue.take(), BatchEnd):
            assert event is not None, "every episode has ended"
            accepted += event.members
        with self._clock.span("gather"):
            batch = gather(accepted, version) if accepted else empty_batch(version)
        self._release(accepted)
        batch.info = summarize_rollout(event, self.sampler.counts.requeued)
        return batch

    def _release(self, trajectories: Sequence[Trajectory]) -> None:
        self._runner.store.release([row for trajectory in trajectories for row in trajectory.steps])

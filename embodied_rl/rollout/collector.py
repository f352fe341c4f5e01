"""One iteration's experience: groups are issued only while the batch still needs them, then the envs drain.

A further group is issued only if the batch would still not be full when every undecided group passed. So the batch is
the shortest prefix of the group stream that holds enough kept groups: the same whatever the number of envs or the
order in which episodes end, and always on-policy. The price is idle envs at the end of an iteration.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from embodied_rl.policy import Policy
from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.metrics import empty_batch, summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory, gather
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeResult, EpisodeSpec, RolloutBatch
from embodied_rl.utils.timers import StageClock
from embodied_rl.vec_env import VecEnv

SuccessRateRange = tuple[float, float]


class _Iteration:
    """The groups of one iteration: which are undecided, kept or dropped."""

    def __init__(self, sampler: EpisodeSampler, groups: int, keep: SuccessRateRange | None, max_groups: int) -> None:
        self.sampler = sampler
        self.wanted = groups
        self.keep = keep
        self.max_groups = max_groups
        self.undecided: dict[int, list[Trajectory]] = {}
        self.kept: list[list[Trajectory]] = []
        self.dropped: list[list[Trajectory]] = []
        self._queue: deque[EpisodeSpec] = deque()

    def next_episode(self) -> EpisodeSpec | None:
        """The next episode to run, or None while the groups in flight may be enough."""
        if not self._queue:
            issued = len(self.undecided) + len(self.kept) + len(self.dropped)
            if len(self.undecided) + len(self.kept) >= self.wanted or issued >= self.max_groups:
                return None
            self._queue.extend(self.sampler.next_group())
            self.undecided[self._queue[0].group] = []
        return self._queue.popleft()

    def add(self, recording: Trajectory) -> list[Trajectory]:
        """Count a finished episode; return the recordings that are dropped because of it."""
        spec = recording.result.spec
        self.sampler.finish(spec)
        group = self.undecided[spec.group]
        group.append(recording)
        if len(group) < self.sampler.group_size:
            return []
        del self.undecided[spec.group]
        group.sort(key=lambda member: member.result.spec.episode_id)
        if self._passes(group):
            self.kept.append(group)
            return []
        self.dropped.append(group)
        return group

    def _passes(self, group: list[Trajectory]) -> bool:
        if self.keep is None:
            return True
        rate = sum(member.result.success for member in group) / len(group)
        # A rate such as 1/10 must count as inside [0.1, 0.9] whatever the rounding.
        return self.keep[0] - 1e-9 <= rate <= self.keep[1] + 1e-9


class Collector:
    """Gathers `groups` groups an iteration.

    keep: success rates (closed range) of the groups that are trained on; at most `max_factor` times `groups` are run to
    find them. final_value: record the critic's value after the last step of truncated episodes.
    on_round: called before each decision.
    """

    def __init__(
        self,
        env: VecEnv,
        policy: Policy,
        sampler: EpisodeSampler,
        clock: StageClock,
        *,
        groups: int,
        success_rate_range: SuccessRateRange | None = None,
        max_oversampling: float = 1.0,
        final_value: bool = False,
        on_step: Callable[[], None] | None = None,
    ) -> None:
        self.sampler = sampler
        self._driver = EnvRunner(env, policy, clock, record=True, final_value=final_value, on_step=on_step)
        self._clock = clock
        self._groups = groups
        self._keep = success_rate_range
        self._max_groups = math.ceil(groups * max_oversampling) if success_rate_range is not None else groups

    def collect(self, version: int, on_episode: Callable[[EpisodeResult], None] | None = None) -> RolloutBatch:
        """Run episodes until the batch is full (or `max_factor` is reached) and return it.

        `batch.info` says how many groups were dropped and whether the batch came out short; a batch may be empty.
        """
        iteration = _Iteration(self.sampler, self._groups, self._keep, self._max_groups)
        store = self._driver.store
        for recording in self._driver.run(iteration.next_episode, self.sampler.requeue, "sample"):
            store.release([row for dropped in iteration.add(recording) for row in dropped.steps])
            if on_episode is not None:
                on_episode(recording.result)
        kept = sorted(iteration.kept, key=lambda group: group[0].result.spec.group)
        recordings = [member for group in kept for member in group]
        with self._clock.span("gather"):
            batch = gather(recordings, version) if recordings else empty_batch(version)
        store.release([row for recording in recordings for row in recording.steps])
        batch.info = summarize_rollout(
            [member.result for group in [*iteration.kept, *iteration.dropped] for member in group],
            accepted=len(iteration.kept),
            filtered=len(iteration.dropped),
            wanted=iteration.wanted,
            requeued=self.sampler.counts.requeued,
        )
        return batch

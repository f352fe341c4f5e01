"""The groups of a training run as the pipelined rollout issues, judges and hands them on: in the order of the stream.

Batch b is the shortest run of groups after batch b - 1 that holds `groups` kept ones, or `max_groups` of any kind. So
it is fixed by the episode stream and by what the episodes do, never by who finished first. A further group is issued
only if the batch that it can fall into at the latest may still be fed by the present policy: with `max_staleness` 0
that is the rule of `collector.Collector`. Of later batches only so many groups begin as `Lookahead` allows.

Not thread-safe: the engine calls everything under its lock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from embodied_rl.rollout.lookahead import ON_POLICY, Lookahead
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.rollout.retries import FailureCause
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeSpec

SuccessRateRange = tuple[float, float]


class GroupStatus(Enum):
    """What became of a group: nothing yet, trained on, or not."""

    OPEN = 0
    ACCEPTED = 1
    FILTERED = 2


@dataclass(slots=True)
class Group:
    """A group under way. `stopped` of its episodes were not run to their end, because the group was dropped before."""

    index: int
    size: int
    members: list[Trajectory] = field(default_factory=list)
    status: GroupStatus = GroupStatus.OPEN
    stopped: int = 0

    @property
    def finished(self) -> bool:
        """No episode of it runs or will run."""
        return len(self.members) + self.stopped == self.size


@dataclass(slots=True)
class BatchEnd:
    """A whole batch: its groups, kept and dropped, in the order of the stream; kept ones were handed out before.

    wanted: how many were to be kept.
    """

    version: int
    groups: list[Group]
    num_wanted: int

    @property
    def num_stopped(self) -> int:
        """Episodes that were not run to their end, because their group had been filtered out already."""
        return sum(group.stopped for group in self.groups)


class GroupQueue:
    """Issues episodes, judges groups, hands kept ones out in order and says where a batch ends.

    groups, keep, max_factor: as in `collector.Collector`. ahead: how far the policy that acts may be older than the one
    that its rows improve.
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        *,
        groups: int,
        success_rate_range: SuccessRateRange | None = None,
        max_oversampling: float = 1.0,
        lookahead: Lookahead = ON_POLICY,
    ) -> None:
        self.sampler = sampler
        self.version = 0
        self.paused = False
        self._max_lookahead = self._lookahead = lookahead
        self.num_wanted = groups
        self._success_rate_range = success_rate_range
        self._max_groups = math.ceil(groups * max_oversampling) if success_rate_range is not None else groups
        self._batch, self._end = 0, 0
        self._groups: list[Group] = []  # of the open batch and of later ones, in order
        self._by_index: dict[int, Group] = {}
        self._yielded = 0
        self._queue: deque[EpisodeSpec] = deque()
        self._retries: deque[EpisodeSpec] = deque()

    def begin(self, start: int, stop: int) -> None:
        """Batches start, ..., stop - 1 are wanted, beginning with the next group of the stream."""
        if self._groups:
            raise RuntimeError(f"batch {self._batch} is still under way")
        self.version = self._batch = start
        self._end = stop

    def publish(self, version: int, ess_ratio: float = 1.0) -> None:
        """From now on version `version` acts; worth: of rows an update old (`Lookahead.given`), as far as is known."""
        self.version = version
        self._lookahead = self._max_lookahead.limited_by_ess(ess_ratio, self.num_wanted)

    @property
    def next_group(self) -> int:
        """Index of the first group that no closed batch holds: where a resumed run must go on."""
        return self._groups[0].index if self._groups else self.sampler.position

    def next_episode(self) -> EpisodeSpec | None:
        """The next episode to run, or None while there is nothing to run."""
        if self.paused:
            return None
        if self._retries:
            return self._retries.popleft()
        if not self._queue:
            if not self._may_issue():
                return None
            specs = self.sampler.next_group()
            group = Group(specs[0].group, len(specs))
            self._groups.append(group)
            self._by_index[group.index] = group
            self._queue.extend(specs)
        return self._queue.popleft()

    def _may_issue(self) -> bool:
        """Whether the batch of a further group is wanted and not too far ahead, were all undecided groups to pass."""
        batch, kept, count, ahead = self._batch, 0, 0, 0
        for group in self._groups:
            count += 1
            ahead += batch > self.version
            kept += group.status is not GroupStatus.FILTERED
            if kept == self.num_wanted or count == self._max_groups:
                batch, kept, count = batch + 1, 0, 0
        if batch >= self._end or batch - self.version > self._lookahead.max_staleness:
            return False
        return batch <= self.version or self._lookahead.groups is None or ahead < self._lookahead.groups

    def add(self, recording: Trajectory) -> list[Trajectory]:
        """Count a finished episode; return the recordings that are dropped because of it."""
        spec = recording.result.spec
        self.sampler.finish(spec)
        group = self._by_index[spec.group]
        group.members.append(recording)
        if group.status is GroupStatus.FILTERED:
            return [recording]
        if not self._can_pass(group):
            self._drop(group)
            return list(group.members)
        if len(group.members) == group.size:
            group.members.sort(key=lambda member: member.result.spec.episode_id)
            group.status = GroupStatus.ACCEPTED
        return []

    def _can_pass(self, group: Group) -> bool:
        """Whether some outcome of the episodes that are left puts the success rate into `keep`."""
        if self._success_rate_range is None:
            return True
        wins, left = sum(member.result.success for member in group.members), group.size - len(group.members)
        # A rate such as 1/10 must count as inside [0.1, 0.9] whatever the rounding.
        low, high = self._success_rate_range[0] - 1e-9, self._success_rate_range[1] + 1e-9
        return any(low <= (wins + more) / group.size <= high for more in range(left + 1))

    def _drop(self, group: Group) -> None:
        """Nothing that its other episodes do can make the group pass: those that wait are never begun."""
        group.status = GroupStatus.FILTERED
        for waiting in (self._queue, self._retries):
            for spec in [spec for spec in waiting if spec.group == group.index]:
                waiting.remove(spec)
                self.stop(spec)

    def is_stopped(self, spec: EpisodeSpec) -> bool:
        """Whether the episode's group is dropped already, so that how it ends no longer matters."""
        return self._by_index[spec.group].status is GroupStatus.FILTERED

    def stop(self, spec: EpisodeSpec) -> None:
        """Give up an episode of a dropped group: it counts as finished, without a result."""
        self.sampler.finish(spec)
        self._by_index[spec.group].stopped += 1

    def retry(self, spec: EpisodeSpec, cause: FailureCause = FailureCause.SIMULATOR) -> None:
        """Run an episode again that was lost."""
        if self.is_stopped(spec):
            self.stop(spec)
        else:
            self._retries.append(self.sampler.requeue(spec, cause))

    def requeue_uncounted(self, spec: EpisodeSpec) -> None:
        """Run an episode again that was lost with its machine: no attempt that broke its simulator."""
        if self.is_stopped(spec):
            self.stop(spec)
        else:
            self._retries.append(self.sampler.requeue_uncounted(spec))

    def take(self) -> Group | BatchEnd | None:
        """The next kept group of the open batch, in order, or the end of that batch; None: not decided yet."""
        while True:
            head = self._groups[: self._yielded]
            kept = sum(group.status is GroupStatus.ACCEPTED for group in head)
            if kept == self.num_wanted or self._yielded == self._max_groups:
                return self._close(head)
            if self._yielded == len(self._groups):
                return None
            group = self._groups[self._yielded]
            if group.status is GroupStatus.OPEN:
                return None
            self._yielded += 1
            if group.status is GroupStatus.ACCEPTED:
                return group

    def _close(self, groups: list[Group]) -> BatchEnd | None:
        if not all(group.finished for group in groups):
            return None
        del self._groups[: self._yielded]
        for group in groups:
            del self._by_index[group.index]
        self._yielded = 0
        self._batch += 1
        return BatchEnd(self._batch - 1, groups, self.num_wanted)

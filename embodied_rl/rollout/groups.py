"""The groups of a training run as the pipelined rollout issues, judges and hands them on: in the order of the stream.

Batch b is the shortest run of groups after batch b - 1 that holds `groups` kept ones, or `max_groups` of any kind. So
it is fixed by the episode stream and by what the episodes do, never by who finished first. A further group is issued
only if the batch that it can fall into at the latest may still be fed by the present policy: with `max_staleness` 0
that is the rule of `collect.Collector`. Of later batches only so many groups begin as `Ahead` allows.

Not thread-safe: the engine calls everything under its lock.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from embodied_rl.rollout.lookahead import ON_POLICY, Ahead
from embodied_rl.rollout.observation_pool import Recording
from embodied_rl.rollout.retries import Cause
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeSpec

Keep = tuple[float, float]


class Verdict(Enum):
    """What became of a group: nothing yet, trained on, or not."""

    OPEN = 0
    KEPT = 1
    DROPPED = 2


@dataclass(slots=True)
class Group:
    """A group under way. `stopped` of its episodes were not run to their end, because the group was dropped before."""

    index: int
    size: int
    members: list[Recording] = field(default_factory=list)
    verdict: Verdict = Verdict.OPEN
    stopped: int = 0

    @property
    def settled(self) -> bool:
        """No episode of it runs or will run."""
        return len(self.members) + self.stopped == self.size


@dataclass(slots=True)
class Closed:
    """A whole batch: its groups, kept and dropped, in the order of the stream; kept ones were handed out before.

    wanted: how many were to be kept.
    """

    version: int
    groups: list[Group]
    wanted: int


class GroupStream:
    """Issues episodes, judges groups, hands kept ones out in order and says where a batch ends.

    groups, keep, max_factor: as in `collect.Collector`. ahead: how far the policy that acts may be older than the one
    that its rows improve.
    """

    def __init__(
        self, sampler: EpisodeSampler, *, groups: int, keep: Keep | None, max_factor: float, ahead: Ahead = ON_POLICY
    ) -> None:
        self.sampler = sampler
        self.version = 0
        self.paused = False
        self._most = self._ahead = ahead
        self._wanted = groups
        self._keep = keep
        self._max_groups = math.ceil(groups * max_factor) if keep is not None else groups
        self._batch, self._end = 0, 0
        self._groups: list[Group] = []  # of the open batch and of later ones, in order
        self._by_index: dict[int, Group] = {}
        self._handed = 0
        self._queue: deque[EpisodeSpec] = deque()
        self._again: deque[EpisodeSpec] = deque()

    def begin(self, start: int, stop: int) -> None:
        """Batches start, ..., stop - 1 are wanted, beginning with the next group of the stream."""
        if self._groups:
            raise RuntimeError(f"batch {self._batch} is still under way")
        self.version = self._batch = start
        self._end = stop

    def publish(self, version: int, worth: float = 1.0) -> None:
        """From now on version `version` acts; worth: of rows an update old (`Ahead.given`), as far as is known."""
        self.version = version
        self._ahead = self._most.given(worth, self._wanted)

    @property
    def next_group(self) -> int:
        """Index of the first group that no closed batch holds: where a resumed run must go on."""
        return self._groups[0].index if self._groups else self.sampler.position

    def next_episode(self) -> EpisodeSpec | None:
        """The next episode to run, or None while there is nothing to run."""
        if self.paused:
            return None
        if self._again:
            return self._again.popleft()
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
            kept += group.verdict is not Verdict.DROPPED
            if kept == self._wanted or count == self._max_groups:
                batch, kept, count = batch + 1, 0, 0
        if batch >= self._end or batch - self.version > self._ahead.max_staleness:
            return False
        return batch <= self.version or self._ahead.groups is None or ahead < self._ahead.groups

    def add(self, recording: Recording) -> list[Recording]:
        """Count a finished episode; return the recordings that are dropped because of it."""
        spec = recording.result.spec
        self.sampler.finish(spec)
        group = self._by_index[spec.group]
        group.members.append(recording)
        if group.verdict is Verdict.DROPPED:
            return [recording]
        if not self._can_pass(group):
            self._drop(group)
            return list(group.members)
        if len(group.members) == group.size:
            group.members.sort(key=lambda member: member.result.spec.episode_id)
            group.verdict = Verdict.KEPT
        return []

    def _can_pass(self, group: Group) -> bool:
        """Whether some outcome of the episodes that are left puts the success rate into `keep`."""
        if self._keep is None:
            return True
        wins, left = sum(member.result.success for member in group.members), group.size - len(group.members)
        # A rate such as 1/10 must count as inside [0.1, 0.9] whatever the rounding.
        low, high = self._keep[0] - 1e-9, self._keep[1] + 1e-9
        return any(low <= (wins + more) / group.size <= high for more in range(left + 1))

    def _drop(self, group: Group) -> None:
        """Nothing that its other episodes do can make the group pass: those that wait are never begun."""
        group.verdict = Verdict.DROPPED
        for waiting in (self._queue, self._again):
            for spec in [spec for spec in waiting if spec.group == group.index]:
                waiting.remove(spec)
                self.stop(spec)

    def is_stopped(self, spec: EpisodeSpec) -> bool:
        """Whether the episode's group is dropped already, so that how it ends no longer matters."""
        return self._by_index[spec.group].verdict is Verdict.DROPPED

    def stop(self, spec: EpisodeSpec) -> None:
        """Give up an episode of a dropped group: it counts as finished, without a result."""
        self.sampler.finish(spec)
        self._by_index[spec.group].stopped += 1

    def retry(self, spec: EpisodeSpec, cause: Cause = Cause.SIMULATOR) -> None:
        """Run an episode again that was lost."""
        if self.is_stopped(spec):
            self.stop(spec)
        else:
            self._again.append(self.sampler.reissue(spec, cause))

    def hand_back(self, spec: EpisodeSpec) -> None:
        """Run an episode again that was lost with its machine: no attempt that broke its simulator."""
        if self.is_stopped(spec):
            self.stop(spec)
        else:
            self._again.append(self.sampler.again(spec))

    def take(self) -> Group | Closed | None:
        """The next kept group of the open batch, in order, or the end of that batch; None: not decided yet."""
        while True:
            head = self._groups[: self._handed]
            kept = sum(group.verdict is Verdict.KEPT for group in head)
            if kept == self._wanted or self._handed == self._max_groups:
                return self._close(head)
            if self._handed == len(self._groups):
                return None
            group = self._groups[self._handed]
            if group.verdict is Verdict.OPEN:
                return None
            self._handed += 1
            if group.verdict is Verdict.KEPT:
                return group

    def _close(self, groups: list[Group]) -> Closed | None:
        if not all(group.settled for group in groups):
            return None
        del self._groups[: self._handed]
        for group in groups:
            del self._by_index[group.index]
        self._handed = 0
        self._batch += 1
        return Closed(self._batch - 1, groups, self._wanted)

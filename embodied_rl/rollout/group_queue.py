"""The groups of episodes of a training run: which start, which are accepted, and which batch they belong to.

Batches are consecutive slices of the group sequence: each ends once it has `groups` accepted groups or `max_groups` in
total. So they depend on the episodes, but not on which finished first. A new group starts only if its batch is within
the lookahead, assuming that all open groups will be accepted.

All episodes of a group that is filtered out run to their end, though it is known before: given up would be those that
take long, which are the failing ones, and what is said of the rollout would be too good.

A group of which an episode broke the simulator in every attempt is left out, and counts for nothing: another one is
drawn in its place. So every group that is trained on is whole, and its mean is over as many episodes as any other's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from embodied_rl.rollout.groups import BatchEnd, Group, GroupReport, GroupStatus
from embodied_rl.rollout.lookahead import ON_POLICY, Lookahead
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.rollout.retries import FailureCause
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeSpec

SuccessRateRange = tuple[float, float]


class GroupQueue:
    """Issues episodes, accepts or filters groups, and yields accepted groups and batch ends in order.

    Not thread-safe: schedulers call it under a lock.

    Args:
        groups: accepted groups of a batch.
        success_rate_range: success rates (closed range) of accepted groups; None accepts all.
        max_oversampling: at most so many times `groups` are run for a batch, if there is a range.
        lookahead: how far the rollout may run ahead of the learner.
        rank, size: of `size` ranks, this one runs the groups g with g % size == rank. Every rank issues the same groups
            and yields them in the same order, and so ends each batch alike.

    Example:
        >>> queue = GroupQueue(EpisodeSampler(seed, tasks, group_size=8), groups=4, success_rate_range=(0.1, 0.9))
        >>> queue.begin(0, iterations)
        >>> spec = queue.next_episode()
    """

    def __init__(
        self,
        sampler: EpisodeSampler,
        *,
        groups: int,
        success_rate_range: SuccessRateRange | None = None,
        max_oversampling: float = 1.0,
        lookahead: Lookahead = ON_POLICY,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        self.sampler = sampler
        self.version = 0
        self.paused = False
        self._max_lookahead = self._lookahead = lookahead
        self.num_wanted = groups
        self._success_rate_range = success_rate_range
        self._max_groups = math.ceil(groups * max_oversampling) if success_rate_range is not None else groups
        self._batch, self._end = 0, 0
        # Which batch a group is in is computed anew each time: it moves up when one before it is filtered out.
        self._groups: list[Group] = []  # of the open batch and of later ones, in order
        self._by_index: dict[int, Group] = {}
        self._yielded = 0
        self._queue: deque[EpisodeSpec] = deque()
        self._retries: deque[EpisodeSpec] = deque()
        self._rank = rank
        self._size = size
        self._reported: set[int] = set()  # own groups that `finished_groups` gave
        self._settled: set[int] = set()  # groups of any rank that every rank has heard of

    def begin(self, start: int, stop: int) -> None:
        """Batches start, ..., stop - 1 are wanted; the first begins with the next group of the sampler."""
        if self._groups:
            raise RuntimeError(f"batch {self._batch} is still under way")
        self.version = self._batch = start
        self._end = stop

    def publish(self, version: int, ess_ratio: float = 1.0) -> None:
        """From now on version `version` acts. ess_ratio: of one-update-old rows, which limits the lookahead."""
        self.version = version
        # From the widest each time: an update that changed little opens it again.
        self._lookahead = self._max_lookahead.limited_by_ess(ess_ratio, self.num_wanted)

    @property
    def next_group(self) -> int:
        """Index of the first group after the last ended batch: where a resumed run continues."""
        return self._groups[0].index if self._groups else self.sampler.position  # groups begun ahead are drawn again

    def next_episode(self) -> EpisodeSpec | None:
        """The next episode to run, or None while there is nothing to run."""
        if self.paused:
            return None
        if self._retries:  # first: the oldest groups wait for them
            return self._retries.popleft()
        while not self._queue:
            if not self._issue():
                return None
        return self._queue.popleft()

    def _issue(self) -> bool:
        """Issue the next group, if there may be one."""
        batch = self._batch_of_next()
        if batch is None:
            return False
        # Drawn from batches that have ended whenever this group may begin, so that draws do not depend on timing.
        specs = self.sampler.next_group(batch - self._max_lookahead.max_staleness)
        group = Group(specs[0].group, len(specs), specs[0].task, specs[0].init_state)
        self._groups.append(group)
        self._by_index[group.index] = group
        # Groups of other ranks are issued too: samplers stay alike, and each rank sees whose turn it is.
        if self._runs_here(group.index):
            self._queue.extend(specs)
        return True

    def _runs_here(self, index: int) -> bool:
        """Whether this rank runs the episodes of the group."""
        return index % self._size == self._rank

    def _is_known(self, group: Group) -> bool:
        """Whether the batch may go on by what became of a group: over ranks only once all have heard of it."""
        return group.index in self._settled if self._size > 1 else group.status is not GroupStatus.OPEN

    def _batch_of_next(self) -> int | None:
        """The batch of a new group if all open ones are accepted; None if it is not wanted or beyond the lookahead."""
        batch, kept, count, ahead = self._batch, 0, 0, 0
        for group in self._groups:
            count += group.status is not GroupStatus.BROKEN  # in place of a broken one another is drawn
            ahead += batch > self.version
            kept += group.status in (GroupStatus.OPEN, GroupStatus.ACCEPTED)  # so none begins that might not be needed
            if kept == self.num_wanted or count == self._max_groups:
                batch, kept, count = batch + 1, 0, 0
        if batch >= self._end or batch - self.version > self._lookahead.max_staleness:
            return None
        within = batch <= self.version or self._lookahead.groups is None or ahead < self._lookahead.groups
        return batch if within else None

    def add(self, trajectory: Trajectory) -> list[Trajectory]:
        """Count a finished episode; return the trajectories that are not needed any more because of it."""
        spec = trajectory.result.spec
        self.sampler.finish(spec)
        group = self._by_index[spec.group]
        group.members.append(trajectory)
        if group.status is not GroupStatus.OPEN:  # filtered or left out while it ran: its rows are not needed
            return [trajectory]
        if not self._can_pass(group):
            group.status = GroupStatus.FILTERED
            self._check_broken()  # what became of groups behind this one may be known now
            return list(group.members)
        if not group.finished:
            return []
        if group.broken:
            self._leave_out(group)
            return list(group.members)
        # Rows come in this order, whichever episode ended first.
        group.members.sort(key=lambda member: member.result.spec.episode_id)
        group.status = GroupStatus.ACCEPTED
        return []

    def _can_pass(self, group: Group) -> bool:
        """Whether some outcome of the remaining episodes puts the success rate into the range."""
        if self._success_rate_range is None:
            return True
        wins, left = sum(member.result.success for member in group.members), group.size - len(group.members)
        # A rate such as 1/10 must count as inside [0.1, 0.9] whatever the rounding.
        low, high = self._success_rate_range[0] - 1e-9, self._success_rate_range[1] + 1e-9
        return any(low <= (wins + more) / group.size <= high for more in range(left + 1))

    def _leave_out(self, group: Group) -> None:
        """The group breaks the simulator and counts for nothing; those of its episodes that wait are never begun."""
        group.status = GroupStatus.BROKEN
        for waiting in (self._queue, self._retries):
            for spec in [spec for spec in waiting if spec.group == group.index]:
                waiting.remove(spec)
                self.stop(spec)
        self._check_broken()

    def is_stopped(self, spec: EpisodeSpec) -> bool:
        """Whether the episode's group breaks the simulator, so that how the episode ends does not matter."""
        return self._by_index[spec.group].status is GroupStatus.BROKEN

    def stop(self, spec: EpisodeSpec) -> None:
        """Give up an episode of a group that breaks the simulator: it counts as finished, without a result."""
        self.sampler.finish(spec)
        self._by_index[spec.group].stopped += 1

    def retry(self, spec: EpisodeSpec, cause: FailureCause = FailureCause.SIMULATOR) -> list[Trajectory]:
        """Run a lost episode again, or leave its group out after the last attempt.

        A group whose success rate has a range runs on: what its other episodes show may filter it out, and that must
        not depend on which episode ends first.

        Returns:
            The trajectories that are not needed any more because of it.
        """
        if self.is_stopped(spec):
            self.stop(spec)
            return []
        if (again := self.sampler.requeue(spec, cause)) is not None:
            self._retries.append(again)
            return []
        group = self._by_index[spec.group]
        self.sampler.finish(spec)
        group.broken += 1
        if group.status is GroupStatus.FILTERED or (self._success_rate_range is not None and not group.finished):
            return []
        self._leave_out(group)
        return list(group.members)

    def _check_broken(self) -> None:
        """Raise UserError where too many groups broke, of those up to the first of which that is not known."""
        broken: list[tuple[str, int]] = []
        for group in takewhile(self._is_known, self._groups):
            if group.status is GroupStatus.BROKEN:
                broken.append((group.task, group.init_state))
                self.sampler.broken.check(group.index + 1, broken)

    def requeue_uncounted(self, spec: EpisodeSpec) -> None:
        """Run an episode again whose machine was lost; this counts as no failed attempt."""
        if self.is_stopped(spec):
            self.stop(spec)
        else:
            self._retries.append(self.sampler.requeue_uncounted(spec))

    def waits_for_others(self) -> bool:
        """Whether other ranks must be heard before the batch goes on, as nothing that still runs here decides it."""
        if self._size == 1:
            return False
        # Whose turn it is shows only once the next group is issued.
        if self._yielded == len(self._groups):
            self._issue()
        if self._yielded == len(self._groups):
            return True
        head = self._groups[self._yielded]
        # Finished and yet not yielded: the others have not heard of it.
        return head.finished or not self._runs_here(head.index)

    def finished_groups(self) -> list[Group]:
        """This rank's groups that ended since the last call, in order.

        None of them is after one that is left out and still runs: other ranks could not tell why it was begun.
        """
        found: list[Group] = []
        for group in self._groups:
            if not self._runs_here(group.index) or group.index in self._reported:
                continue
            if group.finished:
                found.append(group)
            elif group.status is not GroupStatus.OPEN:
                break
        self._reported |= {group.index for group in found}
        return found

    def settle(self, reports: Sequence[GroupReport]) -> None:
        """Take in what became of some groups of any rank, this one's own included."""
        for report in sorted(reports, key=lambda report: report.index):
            # Another rank may have begun groups that this one has not come to.
            while report.index not in self._by_index:
                if not self._issue():
                    raise RuntimeError(f"group {report.index} is not of this batch: the ranks disagree")
            self._settled.add(report.index)
            if self._runs_here(report.index):  # `add` has counted it
                continue
            group = self._by_index[report.index]
            # Without steps: rows of other ranks come through `GroupExchange.rows`.
            group.members = [Trajectory(result) for result in report.results]
            group.stopped, group.broken = report.stopped, report.broken
            group.status = report.status
            self.sampler.finish_group(report.index)

    def take(self) -> Group | BatchEnd | None:
        """The next accepted group of the open batch, in order, or the end of that batch; None: not known yet."""
        self._check_broken()
        while True:
            head = self._groups[: self._yielded]
            kept = sum(group.status is GroupStatus.ACCEPTED for group in head)
            count = sum(group.status is not GroupStatus.BROKEN for group in head)
            if kept == self.num_wanted or count == self._max_groups:
                return self._close(head)
            if self._yielded == len(self._groups):
                return None
            group = self._groups[self._yielded]
            if not self._is_known(group):
                return None
            self._yielded += 1
            if group.status is GroupStatus.ACCEPTED:
                return group

    def _close(self, groups: list[Group]) -> BatchEnd | None:
        # Filtered ones run on, as their results count in the metrics.
        if not all(group.finished for group in groups):
            return None
        del self._groups[: self._yielded]
        for group in groups:
            del self._by_index[group.index]
        ended = {group.index for group in groups}
        self._settled -= ended
        self._reported -= ended
        self._yielded = 0
        self._batch += 1
        end = BatchEnd(self._batch - 1, groups, self.num_wanted)
        broken = [(group.task, group.init_state) for group in groups if group.status is GroupStatus.BROKEN]
        self.sampler.broken.add(end.version, broken)
        end.info = self.sampler.close_batch(end.version, end.results, self._max_lookahead.max_staleness)
        return end

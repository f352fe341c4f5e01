"""The group queue of one rank of several: it runs every `size`-th group and hears of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from embodied_rl.rollout.groups import BatchEnd, Group, GroupQueue, GroupStatus
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.types import EpisodeResult


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What became of a group: its finished episodes, how many were given up or broke, and whether it is trained on."""

    index: int
    results: list[EpisodeResult]
    stopped: int
    broken: int
    status: GroupStatus


class DealtGroups(GroupQueue):
    """A `GroupQueue` of which rank r of n runs the groups g with g % n == r.

    Every rank issues the same groups and yields them in the same order, and so ends each batch alike: `take` gives only
    groups that `settle` was told of. What this rank knows of its own groups before lets it start further ones early;
    those are always of the batch.

    Args:
        rank, size: this rank, and how many there are.
        options: of `GroupQueue`.

    Example:
        >>> queue = DealtGroups(0, 2, sampler, groups=8)
        >>> spec = queue.next_episode()  # of group 0, 2, 4 or 6
    """

    def __init__(self, rank: int, size: int, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._rank = rank
        self._size = size
        self._reported: set[int] = set()
        self._settled: set[int] = set()

    def _runs_here(self, index: int) -> bool:
        return index % self._size == self._rank

    def _is_known(self, group: Group) -> bool:
        return group.index in self._settled

    def waits_for_own(self) -> bool:
        """Whether the next group in order is this rank's and still runs, or has not begun."""
        if self._yielded == len(self._groups):
            self._issue()
        if self._yielded == len(self._groups):
            return False
        head = self._groups[self._yielded]
        return self._runs_here(head.index) and not head.finished

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
            while report.index not in self._by_index:
                if not self._issue():
                    raise RuntimeError(f"group {report.index} is not of this batch: the ranks disagree")
            self._settled.add(report.index)
            if self._runs_here(report.index):
                continue
            group = self._by_index[report.index]
            group.members = [Trajectory(result) for result in report.results]
            group.stopped, group.broken = report.stopped, report.broken
            group.status = report.status
            self.sampler.finish_group(report.index)

    def take(self) -> Group | BatchEnd | None:
        """As `GroupQueue.take`, of what all ranks know."""
        event = super().take()
        if isinstance(event, BatchEnd):
            ended = {group.index for group in event.groups}
            self._settled -= ended
            self._reported -= ended
        return event

"""The groups of a batch in order, whichever rank runs them.

One rank has them all. Of several each runs its own; where the next group in order is another's, all tell each other of
the groups that ended, with their rows but for the frames, which stay where they were rendered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from embodied_rl.learner.batches import frames_elsewhere
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.groups import BatchEnd, Group, GroupReport
from embodied_rl.types import EpisodeResult, RolloutBatch
from embodied_rl.utils.signals import Interrupted


@dataclass(slots=True)
class _Message:
    """What one rank tells the others. stop: it was asked to end the run. requeued: episodes that it ran again."""

    stop: bool
    requeued: int
    reports: list[GroupReport]
    rows: list[RolloutBatch]


def _ignore(result: EpisodeResult) -> None:
    """Default of `on_episode`."""


class GroupExchange:
    """Yields the groups of `queue` in order, and keeps those of all ranks alike.

    Args:
        queue: of this rank.
        collectives: the ranks.
        on_episode: gets every episode that ends; here those of other ranks.
        frames_too: every rank gets all frames, for a policy that takes in whole batches
            (`PolicyTraits.update_normalizer`).

    Attributes:
        rows: of each accepted group that all ranks have heard of, by its index; of other ranks' without frames. Who
            reads them takes them out. Empty where there is one rank.

    Example:
        >>> collector = Collector(env, policy, GroupExchange(GroupQueue(sampler, groups=8)), Profiler())
    """

    def __init__(
        self,
        queue: GroupQueue,
        collectives: Collectives = SINGLE_PROCESS,
        on_episode: Callable[[EpisodeResult], None] = _ignore,
        *,
        frames_too: bool = False,
    ) -> None:
        self.queue = queue
        self.collectives = collectives
        self.on_episode = on_episode
        self.rows: dict[int, RolloutBatch] = {}
        self._frames_too = frames_too
        self._requeued = 0

    def next_event(
        self,
        wait: Callable[[], Group | BatchEnd | None],
        ended: Callable[[], Sequence[tuple[Group, RolloutBatch | None]]],
        settle: Callable[[Sequence[GroupReport]], None],
    ) -> Group | BatchEnd:
        """The next accepted group in order, or the end of the batch. Every rank must call it.

        Args:
            wait: `GroupQueue.take`, and while that gives nothing, wait for this rank's own groups; None where the next
                group in order is another rank's.
            ended: `GroupQueue.finished_groups`, with their rows if accepted.
            settle: `GroupQueue.settle`.

        Raises:
            Interrupted: some rank was asked to stop.
            RankError: another rank was lost.
        """
        while True:
            stop = False
            try:
                if (event := wait()) is not None:
                    return event
            except Interrupted:
                # The others wait in `share`: told there, they leave too, instead of waiting for ever.
                stop = True
            assert stop or self.collectives.size > 1, "one rank waits for its own groups only"
            settle(self.share([] if stop else ended(), stop))

    def share(self, ended: Sequence[tuple[Group, RolloutBatch | None]], stop: bool) -> list[GroupReport]:
        """Tell all ranks of this one's ended groups, with their rows if accepted; every rank must call it.

        Returns:
            What became of all ranks' groups, for `GroupQueue.settle`.

        Raises:
            Interrupted: some rank was asked to stop.
        """
        counts = self.queue.sampler.counts
        requeued = counts.requeued  # another thread may count one more while this one waits for the others
        message = _Message(
            stop,
            requeued - self._requeued,
            [_report(group) for group, _ in ended],
            [self._portable(batch) for _, batch in ended if batch is not None],
        )
        found = self.collectives.gather(message)
        if any(part.stop for part in found):
            raise Interrupted("interrupted")
        for rank, part in enumerate(found):
            if rank != self.collectives.rank:
                counts.requeued += part.requeued
                requeued += part.requeued
                self._take(part)
        self._requeued = requeued
        # those of other ranks are in host memory, and are joined with these
        own = {group.index: replace(batch, proprio=batch.proprio.cpu()) for group, batch in ended if batch is not None}
        self.rows |= own
        return [report for part in found for report in part.reports]

    def _take(self, part: _Message) -> None:
        for report in part.reports:
            for result in report.results:
                self.on_episode(result)
        self.rows |= {batch.episodes[0].spec.group: batch for batch in part.rows}

    def _portable(self, batch: RolloutBatch) -> RolloutBatch:
        if self._frames_too:
            return batch
        return frames_elsewhere(batch, self.collectives.example_rows)


def _report(group: Group) -> GroupReport:
    results = [member.result for member in group.members]
    return GroupReport(group.index, results, group.stopped, group.broken, group.status)

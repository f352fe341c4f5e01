"""What ranks tell each other of a rollout: which groups ended how, and their rows without the frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from embodied_rl.learner.batches import frames_elsewhere
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.rollout.dealt_groups import DealtGroups, GroupReport
from embodied_rl.rollout.groups import Group
from embodied_rl.types import EpisodeResult, RolloutBatch
from embodied_rl.utils.signals import Interrupted


@dataclass(slots=True)
class _Message:
    """What one rank tells the others. stop: it was asked to end the run. requeued: episodes that it ran again."""

    stop: bool
    requeued: int
    reports: list[GroupReport]
    rows: list[RolloutBatch]
    drifts: list[float]


@dataclass(slots=True)
class GroupExchange:
    """Keeps the groups of all ranks alike. `rows` has each accepted group's rows, of other ranks' without frames.

    frames_too: every rank gets all frames, for a policy that takes in whole batches (`PolicyTraits.absorb`).
    """

    collectives: Collectives
    queue: DealtGroups
    on_episode: Callable[[EpisodeResult], None]
    frames_too: bool = False
    rows: dict[int, RolloutBatch] = field(default_factory=dict)
    _requeued: int = 0

    def share(
        self, ended: Sequence[tuple[Group, RolloutBatch | None]], stop: bool, drifts: Sequence[float] = ()
    ) -> tuple[list[GroupReport], list[float]]:
        """Tell all ranks of this one's ended groups, with their rows if accepted; every rank must call it.

        Returns:
            What became of all ranks' groups, for `DealtGroups.settle`, and all ranks' `drifts`.

        Raises:
            Interrupted: some rank was asked to stop.
        """
        counts = self.queue.sampler.counts
        told = counts.requeued  # another thread may count one more while this one waits for the others
        message = _Message(
            stop,
            told - self._requeued,
            [_report(group) for group, _ in ended],
            [self._portable(batch) for _, batch in ended if batch is not None],
            list(drifts),
        )
        found = self.collectives.gather(message)
        if any(part.stop for part in found):
            raise Interrupted("interrupted")
        for rank, part in enumerate(found):
            if rank != self.collectives.rank:
                counts.requeued += part.requeued
                told += part.requeued
                self._take(part)
        self._requeued = told
        # those of other ranks are in host memory, and are joined with these
        own = {group.index: replace(batch, proprio=batch.proprio.cpu()) for group, batch in ended if batch is not None}
        self.rows |= own
        return [report for part in found for report in part.reports], [drift for part in found for drift in part.drifts]

    def _take(self, part: _Message) -> None:
        for report in part.reports:
            for result in report.results:
                self.on_episode(result)
        self.rows |= {batch.episodes[0].spec.group: batch for batch in part.rows}

    def _portable(self, batch: RolloutBatch) -> RolloutBatch:
        if self.frames_too:
            return batch
        return frames_elsewhere(batch, self.collectives.example_rows)


def _report(group: Group) -> GroupReport:
    results = [member.result for member in group.members]
    return GroupReport(group.index, results, group.stopped, group.broken, group.status)

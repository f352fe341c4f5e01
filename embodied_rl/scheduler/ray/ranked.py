"""Ray's workers over ranks: each rank's own workers run its own groups, all learn from every group in order."""

from __future__ import annotations

from typing import Any

from embodied_rl.rollout.groups import BatchEnd, Group, GroupStatus
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.ray.scheduler import RayScheduler
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.signals import Interrupted


class RankedRayScheduler(RayScheduler):
    """A `RayScheduler` whose groups are dealt over ranks; its batch is the same on every rank, but for the frames."""

    def __init__(self, exchange: GroupExchange, *args: Any) -> None:
        super().__init__(*args)
        self._exchange = exchange

    def _next_event(self) -> Group | BatchEnd:
        """As `RayScheduler._next_event`.

        Where the next group in order is another rank's, this one waits for that; its own workers go on meanwhile.

        Raises:
            Interrupted: some rank was asked to stop.
            RankError: another rank was lost.
        """
        queue = self._exchange.queue
        while True:
            with self._lock:
                if (event := queue.take()) is not None:
                    return event
            stop = self._await_own()
            with self._lock:
                ended = [(group, self._own_rows(group)) for group in queue.finished_groups()]
            reports, _ = self._exchange.share(ended, stop)
            with self._lock:
                queue.settle(reports)
                self._pool_cv.notify()

    def _await_own(self) -> bool:
        """Wait while the next group in order is this rank's and runs; True if it was asked to stop."""
        try:
            self._wait(lambda: None if self._exchange.queue.waits_for_own() else True)
        except Interrupted:
            return True
        return False

    def _own_rows(self, group: Group) -> RolloutBatch | None:
        return super()._rows(group) if group.status is GroupStatus.ACCEPTED else None

    def _rows(self, group: Group) -> RolloutBatch:
        return self._exchange.rows.pop(group.index)

    def _num_replaced(self) -> int:
        return sum(self._exchange.collectives.gather(self.replaced))

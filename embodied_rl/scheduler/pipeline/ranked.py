"""The pipelined scheduler over ranks: each runs its own groups in threads, all learn from every group in order."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

from embodied_rl.rollout.groups import BatchEnd, Group, GroupStatus
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.pipeline.ranked_engine import RankedEngine
from embodied_rl.scheduler.pipeline.scheduler import PipelinedScheduler
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.signals import Interrupted


class RankedPipelinedScheduler(PipelinedScheduler):
    """A `PipelinedScheduler` of mode on_policy whose groups are dealt over ranks."""

    def __init__(self, exchange: GroupExchange, engine: RankedEngine, *args: Any, **options: Any) -> None:
        super().__init__(engine, *args, **options)
        self._ranked_engine = engine
        self._exchange = exchange

    def paused(self) -> AbstractContextManager[None]:
        """As `PipelinedScheduler.paused`; between batches of mode on_policy nothing runs that it would wait for."""
        return self._engine.paused(lambda: None)

    def _events(self, version: int) -> Generator[RolloutBatch | BatchEnd]:
        """The groups of a batch, corrected, and at last what closed it.

        Where the next group in order is another rank's, this one waits for that; its own rollout goes on meanwhile.
        """
        queue, engine = self._exchange.queue, self._ranked_engine
        self._drifts = []
        while True:
            event = engine.call(queue.take)
            if isinstance(event, BatchEnd):
                yield event
                return
            if event is not None:
                yield self._exchange.rows.pop(event.index)
                continue
            stop = self._await_own()
            earlier, self._drifts = self._drifts, []
            ended = [(group, self._rows(group, version)) for group in engine.call(queue.finished_groups)]
            reports, drifts = self._exchange.share(ended, stop, self._drifts)
            self._drifts = earlier + drifts
            engine.settle(queue, reports)

    def _await_own(self) -> bool:
        """Wait while the next group in order is this rank's and runs; True if it was asked to stop."""
        queue, callbacks = self._exchange.queue, self._callbacks
        try:
            self._ranked_engine.wait_while(queue.waits_for_own, callbacks.on_episode, callbacks.check_interrupt)
        except Interrupted:
            return True
        return False

    def _rows(self, group: Group, version: int) -> RolloutBatch | None:
        if group.status is not GroupStatus.ACCEPTED:
            return None
        batch = self._copied(group, version)
        return batch if self._correct is None else self._corrected(batch)

"""A rollout engine whose owner learns of other ranks' groups while it runs its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from embodied_rl.rollout.dealt_groups import DealtGroups, GroupReport
from embodied_rl.scheduler.pipeline.engine import POLL_SECONDS, RolloutEngine
from embodied_rl.types import EpisodeResult

_T = TypeVar("_T")


class RankedEngine(RolloutEngine):
    """A `RolloutEngine` for a queue of `DealtGroups`."""

    def wait_while(
        self,
        condition: Callable[[], bool],
        on_episode: Callable[[EpisodeResult], None],
        check_interrupt: Callable[[], None],
    ) -> None:
        """Wait while `condition`, called under the lock, holds; the rest as for `wait`."""
        waiting = True
        while waiting:
            check_interrupt()
            with self._lock:
                self._raise()
                waiting = condition()
                results, self._results = self._results, []
                if waiting and not results:
                    self._owner_cv.wait(POLL_SECONDS)
            for result in results:
                on_episode(result)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call something of the queue under the lock."""
        with self._lock:
            return function()

    def settle(self, queue: DealtGroups, reports: Sequence[GroupReport]) -> None:
        """Tell the engine's queue of all ranks' groups, and begin what may run because of it."""
        with self._lock:
            queue.settle(reports)
            self._wake()

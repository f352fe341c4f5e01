"""What ranks tell each other of a rollout is told once and whole."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.pipeline.engine import RolloutEngine
from embodied_rl.scheduler.ray.scheduler import RayScheduler
from embodied_rl.scheduler.serial import Collector
from embodied_rl.utils.signals import Interrupted
from tests.toy import TASKS


class Slow(Collectives):
    """Rank 0 of two; while it waits for the other, an episode of its own is lost and will run again."""

    def __init__(self, sampler: EpisodeSampler) -> None:
        super().__init__(0, 2)
        self.said: list[int] = []
        self._sampler = sampler

    def gather(self, value: Any) -> list[Any]:
        self.said.append(value.requeued)
        self._sampler.counts.requeued += 1
        other = type(value)(stop=False, requeued=2, reports=[], rows=[])
        return [value, other]


def test_an_episode_that_is_lost_while_ranks_talk_is_told_of_the_next_time() -> None:
    sampler = EpisodeSampler(3, TASKS, 1)
    ranks = Slow(sampler)
    exchange = GroupExchange(GroupQueue(sampler, groups=2, rank=0, size=2), ranks)
    for _ in range(3):
        exchange.share([], stop=False)
    assert ranks.said == [0, 1, 1]
    assert sampler.counts.requeued == 3 * (1 + 2)


class Stopped(Collectives):
    """Rank 0 of two, which the other one tells whether it was asked to stop."""

    def __init__(self, *, other: bool) -> None:
        super().__init__(0, 2)
        self.said: list[bool] = []
        self._other = other

    def gather(self, value: Any) -> list[Any]:
        self.said.append(value.stop)
        return [value, type(value)(stop=self._other, requeued=0, reports=[], rows=[])]


@pytest.mark.parametrize("here", [True, False])
def test_a_rank_that_was_asked_to_stop_tells_the_others_before_it_leaves(here: bool) -> None:
    sampler = EpisodeSampler(3, TASKS, 1)
    ranks = Stopped(other=not here)
    exchange = GroupExchange(GroupQueue(sampler, groups=2, rank=0, size=2), ranks)

    def wait() -> None:
        if here:
            raise Interrupted("interrupted")

    with pytest.raises(Interrupted):
        exchange.next_event(wait, list, exchange.queue.settle)
    assert ranks.said == [here]


def interrupt() -> None:
    raise Interrupted("interrupted")


WAITS: dict[str, Any] = {
    "serial": Collector._run,
    "pipelined": lambda parts: RolloutEngine.wait(parts, lambda result: None, interrupt),
    "ray": RayScheduler._wait,
}


@pytest.mark.parametrize("schedule", WAITS)
def test_a_stop_is_heard_where_nothing_more_is_known(schedule: str) -> None:
    """All ranks then leave after the same group: what is known on one is known on all, but who was asked to stop."""
    events = iter(["a group", None])
    lock = threading.RLock()
    queue = SimpleNamespace(take=lambda: next(events), waits_for_others=lambda: False, next_episode=lambda: None)
    parts: Any = SimpleNamespace(
        queue=queue,
        _queue=queue,
        _runner=SimpleNamespace(run=lambda *how: interrupt()),
        _callbacks=SimpleNamespace(check_interrupt=interrupt),
        _lock=lock,
        _owner_cv=SimpleNamespace(wait=lambda seconds: None),
        _results=[],
        _notes=[],
        _error=None,
        _raise=lambda: None,
        _hear=lambda: None,
    )
    assert WAITS[schedule](parts) == "a group"
    with pytest.raises(Interrupted):
        WAITS[schedule](parts)

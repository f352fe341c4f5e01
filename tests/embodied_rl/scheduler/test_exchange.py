"""What ranks tell each other of a rollout is told once and whole."""

from __future__ import annotations

from typing import Any

from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
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

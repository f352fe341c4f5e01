"""The bookkeeping of the pipelined rollout, under every order in which episodes can end."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.rollout.groups import BatchEnd, Group, GroupQueue, GroupStatus, SuccessRateRange
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeResult, EpisodeSpec

GROUP = 4


def success(spec: EpisodeSpec) -> bool:
    return random.Random(spec.episode_id).random() < 0.4


def finished(spec: EpisodeSpec) -> Trajectory:
    return Trajectory(EpisodeResult(spec, success(spec), True, False, float(success(spec)), 1, 1))


def expected(wanted: int, keep: SuccessRateRange | None, limit: int, batches: int) -> list[tuple[list[int], list[int]]]:
    """(kept, dropped) groups of each batch, by the definition: walk the stream until the batch is full."""
    sampler = EpisodeSampler(3, {"a": range(5), "b": range(7)}, GROUP)
    found, index = [], 0
    for _ in range(batches):
        kept: list[int] = []
        dropped: list[int] = []
        while len(kept) < wanted and len(kept) + len(dropped) < limit:
            rate = sum(map(success, sampler.group(index))) / GROUP
            (kept if keep is None or keep[0] <= rate <= keep[1] else dropped).append(index)
            index += 1
        found.append((kept, dropped))
    return found


@dataclass
class Told:
    """What the stream handed out."""

    batches: list[tuple[list[int], list[int]]]
    staleness: int
    ahead: int


def play(stream: GroupQueue, env_ids: int, batches: int, order: random.Random) -> Told:
    """Run the stream with `envs` envs; which running episode ends, fails or is noticed next is drawn at random."""
    running: list[EpisodeSpec] = []
    begun_at: dict[int, int] = {}
    failed: set[int] = set()
    kept: list[int] = []
    told = Told([], 0, 0)
    stream.begin(0, batches)
    while len(told.batches) < batches:
        while len(running) < env_ids and (spec := stream.next_episode()) is not None:
            running.append(spec)
            begun_at.setdefault(spec.group, stream.version)
        if running and order.random() < 0.8:
            spec = running.pop(order.randrange(len(running)))
            if order.random() < 0.1 and spec.episode_id not in failed:
                failed.add(spec.episode_id)
                stream.retry(spec)
            elif stream.is_stopped(spec) and order.random() < 0.5:
                stream.stop(spec)
            else:
                stream.add(finished(spec))
            continue
        event = stream.take()
        if isinstance(event, Group):
            assert event.status is GroupStatus.ACCEPTED
            assert [member.result.spec.group for member in event.members] == [event.index] * GROUP
            kept.append(event.index)
        elif isinstance(event, BatchEnd):
            assert event.version == len(told.batches)
            assert [group.index for group in event.groups if group.status is GroupStatus.ACCEPTED] == kept
            told.staleness = max([told.staleness, *(event.version - begun_at[index] for index in kept)])
            told.ahead = max(told.ahead, sum(begun_at[index] < event.version for index in kept))
            told.batches.append((kept, [g.index for g in event.groups if g.status is GroupStatus.FILTERED]))
            kept = []
            stream.publish(stream.version + 1)
        else:
            assert running or stream.paused, "nothing runs and nothing is decided"
    assert running == []
    return told


@given(
    env_ids=st.integers(1, 12),
    wanted=st.integers(1, 5),
    keep=st.sampled_from([None, (0.25, 0.75), (0.5, 0.5)]),
    factor=st.sampled_from([1.0, 1.5, 3.0]),
    most=st.integers(0, 3),
    ahead=st.sampled_from([None, 0, 1, 2, 5]),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=150)
def test_batches_are_those_of_the_stream_and_no_group_begins_too_early(
    env_ids: int, wanted: int, keep: SuccessRateRange | None, factor: float, most: int, ahead: int | None, seed: int
) -> None:
    sampler = EpisodeSampler(3, {"a": range(5), "b": range(7)}, GROUP)
    stream = GroupQueue(
        sampler, groups=wanted, success_rate_range=keep, max_oversampling=factor, lookahead=Lookahead(most, ahead)
    )
    told = play(stream, env_ids, 4, random.Random(seed))
    limit = wanted if keep is None else math.ceil(wanted * factor)
    assert told.batches == expected(wanted, keep, limit, 4)
    assert told.staleness <= most
    assert ahead is None or told.ahead <= ahead
    assert sampler.counts.outstanding == {}
    assert sampler.counts.issued == sampler.counts.finished == stream.next_group * GROUP


def test_a_pause_begins_nothing() -> None:
    stream = GroupQueue(
        EpisodeSampler(3, {"a": range(5)}, GROUP), groups=2, success_rate_range=None, max_oversampling=1.0
    )
    stream.begin(0, 1)
    first = stream.next_episode()
    assert first is not None
    stream.paused = True
    assert stream.next_episode() is None
    stream.retry(first)
    assert stream.next_episode() is None
    stream.paused = False
    assert stream.next_episode() == first

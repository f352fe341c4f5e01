"""The bookkeeping of the pipelined rollout, under every order in which episodes can end."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.rollout.group_queue import GroupQueue, SuccessRateRange
from embodied_rl.rollout.groups import BatchEnd, Group, GroupReport, GroupStatus
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.rollout.metrics import summarize_rollout
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeResult, EpisodeSpec

GROUP = 4


def success(spec: EpisodeSpec, world: int = 0) -> bool:
    return random.Random(spec.episode_id + 10**6 * world).random() < 0.4


def finished(spec: EpisodeSpec, world: int = 0) -> Trajectory:
    won = success(spec, world)
    return Trajectory(EpisodeResult(spec, won, True, False, float(won), 1, 1))


def expected(
    wanted: int, keep: SuccessRateRange | None, limit: int, batches: int, world: int = 0
) -> list[tuple[list[int], list[int]]]:
    """(kept, dropped) groups of each batch, by the definition: walk the stream until the batch is full."""
    sampler = EpisodeSampler(3, {"a": range(5), "b": range(7)}, GROUP)
    found, index = [], 0
    for _ in range(batches):
        kept: list[int] = []
        dropped: list[int] = []
        while len(kept) < wanted and len(kept) + len(dropped) < limit:
            rate = sum(success(spec, world) for spec in sampler.group(index)) / GROUP
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


def test_the_metrics_count_no_group_that_was_left_out() -> None:
    def ran(early: int) -> dict[str, float]:
        """A batch of one group, before which one was left out of which so many episodes had ended."""
        stream = GroupQueue(EpisodeSampler(0, {"a": range(20)}, 3), groups=1)
        stream.begin(0, 1)
        first = [stream.next_episode() for _ in range(3)]
        for spec in first[:early]:
            assert spec is not None
            stream.add(Trajectory(EpisodeResult(spec, True, True, False, 1.0, 1, 1)))
        lost = first[-1]
        while lost is not None:
            stream.retry(lost)
            lost = None if stream.is_stopped(lost) else stream.next_episode()
        for spec in first[early:-1]:
            assert spec is not None
            stream.retry(spec)
        for reward in (0.0, 1.0, 1.0):
            spec = stream.next_episode()
            assert spec is not None
            stream.add(Trajectory(EpisodeResult(spec, True, True, False, reward, 1, 1)))
        group, end = stream.take(), stream.take()
        assert isinstance(group, Group)
        assert isinstance(end, BatchEnd)
        assert end.num_broken == 1
        return summarize_rollout(end, 0)

    assert ran(0) == ran(1) == ran(2)
    assert ran(1)["rollout/groups_without_contrast"] == 0.0
    assert ran(1)["rollout/episodes"] == 3.0


def ranks_of(size: int, wanted: int, keep: SuccessRateRange | None) -> list[GroupQueue]:
    return [
        GroupQueue(
            EpisodeSampler(3, {"a": range(5), "b": range(7)}, GROUP),
            groups=wanted,
            success_rate_range=keep,
            max_oversampling=3.0,
            rank=rank,
            size=size,
        )
        for rank in range(size)
    ]


def run_a_while(
    queue: GroupQueue, running: list[EpisodeSpec], env_ids: int, order: random.Random, world: int
) -> list[EpisodeSpec]:
    """As a rank does before it tells the others: episodes end in any order, until the next group is not its own."""
    ended: list[EpisodeSpec] = []
    while True:
        while len(running) < env_ids and (spec := queue.next_episode()) is not None:
            running.append(spec)
        if queue.waits_for_others() and (not running or order.random() < 0.2):
            return ended
        spec = running.pop(order.randrange(len(running)))
        ended.append(spec)
        if queue.is_stopped(spec) and order.random() < 0.5:
            queue.stop(spec)
        else:
            queue.add(finished(spec, world))


@given(
    size=st.integers(2, 4),
    env_ids=st.integers(1, 12),
    wanted=st.integers(1, 6),
    keep=st.sampled_from([None, (0.25, 0.75), (0.5, 0.5)]),
    seed=st.integers(0, 10**6),
)
@settings(deadline=None, max_examples=50)
def test_ranks_end_the_batches_of_the_stream_together(
    size: int, env_ids: int, wanted: int, keep: SuccessRateRange | None, seed: int
) -> None:
    order, batches = random.Random(seed), 3
    ranks = ranks_of(size, wanted, keep)
    running: list[list[EpisodeSpec]] = [[] for _ in ranks]
    ran: list[EpisodeSpec] = []
    told: list[list[tuple[list[int], list[int]]]] = [[] for _ in ranks]
    for queue in ranks:
        queue.begin(0, batches)
    for _ in range(10_000):
        if len(told[0]) == batches:
            break
        for queue, here in zip(ranks, running, strict=True):
            ran += run_a_while(queue, here, env_ids, order, seed)
        reports = [
            GroupReport(group.index, [member.result for member in group.members], group.stopped, 0, group.status)
            for queue in ranks
            for group in queue.finished_groups()
        ]
        for queue, found in zip(ranks, told, strict=True):
            queue.settle(reports)
            while (event := queue.take()) is not None:
                if isinstance(event, BatchEnd):
                    parts: dict[GroupStatus, list[int]] = {GroupStatus.ACCEPTED: [], GroupStatus.FILTERED: []}
                    for group in event.groups:
                        parts[group.status].append(group.index)
                    found.append((parts[GroupStatus.ACCEPTED], parts[GroupStatus.FILTERED]))
                    queue.publish(event.version + 1)
        assert all(found == told[0] for found in told)
    assert len(ran) == len({spec.episode_id for spec in ran})  # no rank runs what another does
    assert told[0] == expected(wanted, keep, wanted if keep is None else 3 * wanted, batches, seed)
    assert all(queue.sampler.counts.outstanding == {} for queue in ranks)


def test_a_group_that_was_begun_because_another_was_filtered_out_is_told_of_after_that_one() -> None:
    """Rank 1 knows of group 1 that it is filtered out before its last episode ends, and so begins group 3."""
    ranks = ranks_of(2, 3, (0.5, 0.5))

    def end(queue: GroupQueue, specs: list[EpisodeSpec], wins: int) -> list[GroupReport]:
        for number, spec in enumerate(specs):
            queue.add(Trajectory(EpisodeResult(spec, number < wins, True, False, 0.0, 1, 1)))
        return [
            GroupReport(group.index, [member.result for member in group.members], 0, 0, group.status)
            for group in queue.finished_groups()
        ]

    specs = []
    for queue in ranks:
        queue.begin(0, 1)
        specs.append([spec for _ in range(GROUP) if (spec := queue.next_episode()) is not None])
    assert end(ranks[1], specs[1][:3], 0) == []
    third = [spec for _ in range(GROUP) if (spec := ranks[1].next_episode()) is not None]
    assert [spec.group for spec in third] == [3] * GROUP
    told = end(ranks[1], third, 2) + end(ranks[0], specs[0], 2)
    for queue in ranks:
        queue.settle(told)
    told = end(ranks[1], specs[1][3:], 0)
    assert [report.index for report in told] == [1, 3]
    for queue in ranks:
        queue.settle(told)


def test_ranks_that_run_the_same_groups_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupQueue, "_runs_here", lambda queue, index: True)
    inner = test_ranks_end_the_batches_of_the_stream_together.hypothesis.inner_test  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        inner(size=2, env_ids=4, wanted=3, keep=None, seed=1)

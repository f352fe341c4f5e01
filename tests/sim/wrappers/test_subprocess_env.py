"""Simulators in processes: the same rows as in this process, whatever dies, hangs, raises or swells."""

from __future__ import annotations

import multiprocessing
import os
import struct
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.rollout.chunk import observe_ends
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv, _Child, _Lost
from embodied_rl.sim.wrappers.subprocess_worker import rss
from embodied_rl.types import EpisodeSpec, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv
from tests.embodied_rl.scheduler.toys import GRPO, PPO, Setup, assert_same_rows, pipelined, serial
from tests.sim.wrappers.fragile import AlwaysBreaks, Fragile, Kills, NeverStarts
from tests.toy import CHUNK, HORIZON, TASKS, ToyEnv, ToyPolicy

BREAKDOWNS = {3: "kill@step", 6: "raise@step", 9: "hang@step", 14: "kill@reset", 17: "raise@reset"}


def collect(env: VecEnv, groups: int = 6) -> tuple[RolloutBatch, EpisodeSampler]:
    sampler = EpisodeSampler(5, TASKS, 4)
    return Collector(env, ToyPolicy(), GroupExchange(GroupQueue(sampler, groups=groups)), Profiler()).collect(
        0
    ), sampler


@pytest.mark.process
def test_rows_are_those_of_a_simulator_in_this_process(tmp_path: Path) -> None:
    with closing(ProcessVecEnv(Fragile(tmp_path, {}), 5, processes=2)) as env:
        assert env.info == ToyEnv(5).info
        assert_same_rows(collect(ToyEnv(5))[0], collect(env)[0])
        assert not env.replaced
    assert multiprocessing.active_children() == []


@pytest.mark.process
def test_breakdowns_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    """Under the serial loop; a child takes its other env down with it."""
    said: list[str] = []
    with closing(ProcessVecEnv(Fragile(tmp_path, BREAKDOWNS), 4, processes=2, deadline=10.0, say=said.append)) as env:
        batch, sampler = collect(env)
        assert env.replaced == {"died": 2, "raised": 2, "hung": 1}
    assert len(said) == 5
    assert sum("raised (ZeroDivisionError: the simulator broke)" in line and "\n" not in line for line in said) == 2
    assert_same_rows(collect(ToyEnv(4))[0], batch)
    assert sampler.counts.outstanding == {}
    assert sampler.counts.issued == sampler.counts.finished == 24
    assert 5 <= sampler.counts.requeued <= 10
    assert len(list(tmp_path.iterdir())) == len(BREAKDOWNS)


@pytest.mark.process
def test_training_goes_on_through_breakdowns_in_the_pipeline(tmp_path: Path) -> None:
    setup = Setup(GRPO, iterations=2)
    with closing(ProcessVecEnv(Fragile(tmp_path, BREAKDOWNS), 6, processes=3, deadline=10.0)) as env:
        found = pipelined(setup, tmp_path, env_ids=6, stages=3, workers=3, env=env)
        assert sum(env.replaced.values()) == 5
    oracle = serial(setup, tmp_path)
    for one, two in zip(oracle.batches, found.batches, strict=True):
        assert_same_rows(one, two)
    assert found.sampler.counts.outstanding == {}
    assert sorted(found.episodes) == sorted(oracle.episodes)


@pytest.mark.process
@pytest.mark.parametrize("run", [serial, pipelined])
def test_a_simulator_that_dies_before_the_last_picture_is_valued_loses_its_episode(run: Any, tmp_path: Path) -> None:
    """The value of a truncated episode's end is never taken from another time's picture."""
    setup = Setup(replace(PPO, bootstrap_truncated=True), groups=12, iterations=1)
    oracle = serial(setup, tmp_path)
    truncated = [episode.spec.episode_id for episode in oracle.batches[0].episodes if episode.truncated]
    plan = {truncated[0]: "kill@end", truncated[2]: "raise@end", truncated[-1]: "kill@end"}
    # one env a child: an episode that is lost for the second time would get another seed
    with closing(ProcessVecEnv(Fragile(tmp_path, plan), 4, processes=4)) as env:
        found = run(setup, tmp_path, env_ids=4, env=env)
        assert env.replaced == {"died": 2, "raised": 1}
    assert_same_rows(oracle.batches[0], found.batches[0])  # final values too
    ledger = found.sampler.counts
    assert ledger.outstanding == {}
    assert ledger.issued == ledger.finished == 12
    assert ledger.requeued == 3
    assert sorted(found.episodes) == sorted(oracle.episodes)


@pytest.mark.process
def test_rows_that_could_not_be_observed_are_named(tmp_path: Path) -> None:
    with closing(ProcessVecEnv(Fragile(tmp_path, {7: "kill@end"}), 4, processes=2)) as env:
        env.reset(range(4), [EpisodeSpec(7 + env_id, "toy/reach", 0, 0) for env_id in range(4)])
        for _ in range(HORIZON // CHUNK):
            result = env.step(range(4), torch.zeros(4, CHUNK, 2))
        assert result.truncated.all()
        out = env.new_observation(3)
        rows, seen = observe_ends(env, range(4), result, [0, 2, 3], out)
        assert rows == [2, 3]
        assert seen.instruction == out.instruction[1:] == ["reach the red corner"] * 2
        assert len(seen.images) == len(seen.proprio) == 2
        assert result.failed.tolist() == [True, False, False, False]  # env 1 was not asked for
        assert env.observe([1, 2], out) == [0]


def test_a_child_that_dies_within_a_message_is_a_child_that_died() -> None:
    """Multiprocessing says so with an OSError: the length of a message, and then less than that."""
    child = object.__new__(_Child)
    child._connection, theirs = multiprocessing.Pipe()
    os.write(theirs.fileno(), struct.pack("!i", 100_000) + bytes(50_000))
    theirs.close()
    with pytest.raises(_Lost, match="died"):
        child._receive(time.monotonic() + 10)
    child._connection.close()


@pytest.mark.process
def test_memory_stays_flat_over_ten_thousand_resets_of_a_leaking_simulator(tmp_path: Path) -> None:
    """100 kB a reset is 1 GB in all; at 200 MB of growth the child is replaced."""
    leak, growth, resets = 100_000, 200_000_000, 10_000
    here = rss()
    with closing(ProcessVecEnv(Fragile(tmp_path, {}, leak=leak), 2, processes=1, max_growth=growth)) as env:
        largest = 0
        for index in range(resets // 2):
            specs = [EpisodeSpec(2 * index + i, "toy/reach", i, index) for i in (0, 1)]
            env.reset([0, 1], specs)
            child = env._children[0]
            largest = max(largest, child.rss - child.base_rss)
        assert resets * leak // growth - 1 <= env.replaced["grew"] == env.replaced.total() <= resets * leak // growth
        assert largest < 1.1 * growth
        out = env.new_observation(2)
        env.observe([0, 1], out)
        assert out.images.any()
    assert rss() - here < 100_000_000


@pytest.mark.process
def test_a_child_with_running_episodes_is_spared_until_it_grew_far_too_much(tmp_path: Path) -> None:
    with closing(ProcessVecEnv(Fragile(tmp_path, {}, leak=4_000_000), 2, processes=1, max_growth=30_000_000)) as env:
        env.reset([0, 1], [EpisodeSpec(0, "toy/reach", 0, 0), EpisodeSpec(1, "toy/reach", 1, 0)])
        resets = 0
        while not env.replaced:
            env.reset([1], [EpisodeSpec(2 + resets, "toy/reach", 1, 0)])
            resets += 1
        assert 14 <= resets <= 18  # 60 MB at 4 MB a reset
        result = env.step([0, 1], torch.zeros(2, 2, 2))
        assert result.failed.tolist() == [True, False]


@pytest.mark.process
def test_a_simulator_that_cannot_start_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did not start: it raised(.|\n)*no assets for this simulator"):
        ProcessVecEnv(NeverStarts(), 2, processes=1)
    with pytest.raises(UserError, match="between 1 and 2 processes, got 3"):
        ProcessVecEnv(Fragile(tmp_path, {}), 2, processes=3)
    assert multiprocessing.active_children() == []


@pytest.mark.process
def test_a_simulator_that_always_breaks_ends_the_run_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodied_rl.sim.wrappers.subprocess_env._MAX_IN_A_ROW", 2)
    message = (
        r"lost 3 times without a step in between; the last time it raised \(ZeroDivisionError: the simulator broke\)"
    )
    with (
        closing(ProcessVecEnv(AlwaysBreaks(tmp_path, {}), 1, processes=1)) as env,
        pytest.raises(UserError, match=message) as error,
    ):
        collect(env, groups=1)
    assert "\n" not in str(error.value)


@pytest.mark.process
def test_an_initial_state_that_kills_its_process_every_time_is_left_out(tmp_path: Path) -> None:
    """One env a process, so that it takes no other episode down."""
    whole, sampler = collect(ToyEnv(2), groups=2)
    state = (whole.episodes[0].spec.task, whole.episodes[0].spec.init_state)
    with closing(ProcessVecEnv(Kills(tmp_path, {}, state=state), 2, processes=2)) as env:
        batch, sampler = collect(env, groups=2)
        assert env.replaced["died"] >= 5
    assert sampler.broken.found == {state: 0}
    assert [result.spec.group for result in batch.episodes] == [1] * 4 + [2] * 4
    for one, two in zip(batch.episodes[:4], whole.episodes[4:], strict=True):
        assert one == two

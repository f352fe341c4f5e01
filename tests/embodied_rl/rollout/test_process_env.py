"""Simulators in processes: the same rows as in this process, whatever dies, hangs, raises or swells."""

from __future__ import annotations

import multiprocessing
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.rollout.collect import Collector
from embodied_rl.rollout.process_env import ProcessVecEnv
from embodied_rl.rollout.process_worker import rss
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.rollout.stages import StageClock
from embodied_rl.types import EpisodeSpec, RolloutBatch
from embodied_rl.vec_env import VecEnv
from tests.embodied_rl.rollout.fragile import AlwaysBreaks, Fragile, NeverStarts
from tests.embodied_rl.scheduler.toys import GRPO, Setup, assert_same_rows, pipelined, serial
from tests.toy import TASKS, ToyEnv, ToyPolicy

BREAKDOWNS = {3: "kill@step", 6: "raise@step", 9: "hang@step", 14: "kill@reset", 17: "raise@reset"}


def collect(env: VecEnv, groups: int = 6) -> tuple[RolloutBatch, EpisodeSampler]:
    sampler = EpisodeSampler(5, TASKS, 4)
    return Collector(env, ToyPolicy(), sampler, StageClock(), groups=groups).collect(0), sampler


def test_rows_are_those_of_a_simulator_in_this_process(tmp_path: Path) -> None:
    with closing(ProcessVecEnv(Fragile(tmp_path, {}), 5, processes=2)) as env:
        assert env.info == ToyEnv(5).info
        assert_same_rows(collect(ToyEnv(5))[0], collect(env)[0])
        assert not env.replaced
    assert multiprocessing.active_children() == []


def test_breakdowns_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    """Under the serial loop; a child takes its other slot down with it."""
    with closing(ProcessVecEnv(Fragile(tmp_path, BREAKDOWNS), 4, processes=2, deadline=10.0)) as env:
        batch, sampler = collect(env)
        assert env.replaced == {"died": 2, "raised": 2, "hung": 1}
    assert_same_rows(collect(ToyEnv(4))[0], batch)
    assert sampler.ledger.outstanding == {}
    assert sampler.ledger.issued == sampler.ledger.finished == 24
    assert 5 <= sampler.ledger.reissued <= 10
    assert len(list(tmp_path.iterdir())) == len(BREAKDOWNS)


def test_training_goes_on_through_breakdowns_in_the_pipeline(tmp_path: Path) -> None:
    setup = Setup(GRPO, iterations=2)
    with closing(ProcessVecEnv(Fragile(tmp_path, BREAKDOWNS), 6, processes=3, deadline=10.0)) as env:
        found = pipelined(setup, tmp_path, slots=6, stages=3, workers=3, env=env)
        assert sum(env.replaced.values()) == 5
    oracle = serial(setup, tmp_path)
    for one, two in zip(oracle.batches, found.batches, strict=True):
        assert_same_rows(one, two)
    assert found.sampler.ledger.outstanding == {}
    assert sorted(found.episodes) == sorted(oracle.episodes)


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


def test_a_child_with_running_episodes_is_spared_until_it_grew_far_too_much(tmp_path: Path) -> None:
    with closing(ProcessVecEnv(Fragile(tmp_path, {}, leak=4_000_000), 2, processes=1, max_growth=30_000_000)) as env:
        env.reset([0, 1], [EpisodeSpec(0, "toy/reach", 0, 0), EpisodeSpec(1, "toy/reach", 1, 0)])
        resets = 0
        while not env.replaced:
            env.reset([1], [EpisodeSpec(2 + resets, "toy/reach", 1, 0)])
            resets += 1
        assert 14 <= resets <= 18  # 60 MB at 4 MB a reset
        result = env.step([0, 1], np.zeros((2, 2, 2), np.float32))
        assert result.failed.tolist() == [True, False]


def test_a_simulator_that_cannot_start_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did not start: it raised(.|\n)*no assets for this simulator"):
        ProcessVecEnv(NeverStarts(), 2, processes=1)
    with pytest.raises(UserError, match="between 1 and 2 processes, got 3"):
        ProcessVecEnv(Fragile(tmp_path, {}), 2, processes=3)
    assert multiprocessing.active_children() == []


def test_a_simulator_that_always_breaks_ends_the_run(tmp_path: Path) -> None:
    message = r"(?s)(6 times without a step; .*the simulator broke|broke the simulator 5 times)"
    with closing(ProcessVecEnv(AlwaysBreaks(tmp_path, {}), 1, processes=1)) as env, pytest.raises(
        (RuntimeError, UserError), match=message
    ):
        collect(env, groups=1)

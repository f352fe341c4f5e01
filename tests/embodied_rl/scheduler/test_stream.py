"""Overlap `stream`: the same episodes and updates as the serial oracle, whatever the stages, workers and delays."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import join_batches, split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.types import RatioError
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.rollout import actor
from embodied_rl.rollout.groups import BatchEnd, Group
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.pipeline import scheduler as scheduling
from embodied_rl.scheduler.pipeline.scheduler import PipelinedScheduler
from embodied_rl.types import ActOutput, Array, ChunkResult, EpisodeSpec, Observation, RolloutBatch
from embodied_rl.utils.profiler import LEARNER, Profiler
from tests.embodied_rl.scheduler.toys import (
    GRPO,
    KEEPING,
    PPO,
    NanPolicy,
    Outcome,
    RoundingPolicy,
    Setup,
    SlowEnv,
    assert_same_rows,
    jitter,
    pipelined,
    serial,
)
from tests.toy import TASKS, ToyPolicy


def assert_same(one: Outcome, two: Outcome) -> None:
    assert len(one.batches) == len(two.batches)
    for left, right in zip(one.batches, two.batches, strict=True):
        assert_same_rows(left, right)
    for name, tensor in one.weights.items():
        torch.testing.assert_close(two.weights[name], tensor, rtol=0, atol=1e-6, msg=name)
    for left, right in zip(one.metrics, two.metrics, strict=True):
        assert right == pytest.approx(left, rel=1e-4, abs=1e-6)


@given(
    algorithm=st.sampled_from([GRPO, KEEPING, PPO]),
    env_ids=st.integers(1, 9),
    stages=st.integers(1, 9),
    workers=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    in_turn=st.booleans(),
    minibatch=st.sampled_from([1, 2, 100]),
    threads=st.sampled_from([1, 2, 3]),
)
@settings(deadline=None, max_examples=25)
def test_the_same_episodes_and_updates_as_serial(
    algorithm: AlgorithmConfig,
    env_ids: int,
    stages: int,
    workers: int,
    seed: int,
    in_turn: bool,
    minibatch: int,
    threads: int,
) -> None:
    learner = LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=minibatch, microbatch_size=24)
    setup = Setup(algorithm, learner=learner, breaks={3: 1, 11: 1}, threads=threads)
    with tempfile.TemporaryDirectory() as folder:
        oracle = serial(setup, Path(folder))
        with patch.object(actor, "MIN_ROWS", 2):  # or so few rows would not be acted on in parts
            found = pipelined(
                setup,
                Path(folder),
                env_ids=env_ids,
                stages=min(stages, env_ids),
                workers=workers,
                pause=jitter(seed),
                in_turn=in_turn,
            )
    assert_same(oracle, found)
    stopped = sum(batch.info["rollout/stopped"] for batch in found.batches)
    ledger = found.sampler.counts
    assert ledger.outstanding == {}
    assert ledger.issued == ledger.finished == oracle.sampler.counts.issued
    assert len(found.episodes) == len(set(found.episodes)) == ledger.finished - stopped
    learned = {result.spec.episode_id for batch in oracle.batches for result in batch.episodes}
    # of a filtered group either may finish an episode that the other stops: one that broke may have begun again by then
    assert learned <= set(found.episodes) <= set(range(ledger.issued))


class MostlyEasy(SlowEnv):
    """Four of five episodes succeed at their first step, whatever the policy does; the others run to the horizon."""

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._goal[env_id] = self._position[env_id] if succeeds(spec) else 9.0

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        return np.zeros((size, size, 3), dtype=np.uint8)


def succeeds(spec: EpisodeSpec) -> bool:
    return bool(philox(spec.seed, 77).random() < 0.8)


@pytest.mark.parametrize("in_turn", [True, False])
def test_the_success_of_a_rollout_is_that_of_all_its_episodes_also_of_groups_that_are_filtered_out(
    tmp_path: Path, in_turn: bool
) -> None:
    """Most groups cannot pass once three of five have succeeded, which is long before the first failure is over."""
    narrow = GRPOConfig(group_size=5, success_rate_range=(0.3, 0.6), max_oversampling=4.0)
    setup = Setup(narrow, groups=4)
    oracle = serial(setup, tmp_path, env=MostlyEasy(6))
    found = pipelined(setup, tmp_path, stages=3, pause=jitter(4), in_turn=in_turn, env=MostlyEasy(6))
    group = 0
    for one, two in zip(oracle.batches, found.batches, strict=True):
        assert one.info["rollout/filtered_groups"] > 0
        count = int(one.info["rollout/accepted_groups"] + one.info["rollout/filtered_groups"])
        outcomes = [succeeds(spec) for index in range(group, group + count) for spec in oracle.sampler.group(index)]
        group += count
        assert one.info["rollout/episodes"] == len(outcomes)
        assert one.info["rollout/success"] == pytest.approx(sum(outcomes) / len(outcomes))
        assert {name: value for name, value in two.info.items() if name != "rollout/stopped"} == one.info


@pytest.mark.parametrize("config", [GRPO, KEEPING, PPO])
def test_one_minibatch_of_groups_is_the_batch_in_one_step(config: AlgorithmConfig, tmp_path: Path) -> None:
    """Against the learner's other way, which shuffles rows and knows the whole batch beforehand."""
    by_rows = LearnerConfig(lr=1e-2, minibatch_size=10**6, microbatch_size=17)
    by_groups = LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=10**6, microbatch_size=24)
    one, two = (serial(Setup(config, learner=learner, iterations=1), tmp_path) for learner in (by_rows, by_groups))
    for name, tensor in one.weights.items():
        torch.testing.assert_close(two.weights[name], tensor, rtol=0, atol=2e-6, msg=name)
    for name, value in one.metrics[0].items():
        assert two.metrics[0][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_policy_and_learner_may_share_their_weights_if_there_is_one_step(tmp_path: Path) -> None:
    learner = LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=5, microbatch_size=24)
    setup = Setup(GRPO, learner=learner, iterations=3)
    assert_same(serial(setup, tmp_path), pipelined(setup, tmp_path, share=True, pause=jitter(1)))


@pytest.mark.parametrize("groups", [2, 5])
def test_log_probs_are_computed_again_group_by_group(groups: int, tmp_path: Path) -> None:
    """By the weights that the update began with, whatever the steps that were taken meanwhile; also if they are shared,
    with one minibatch of all five groups."""
    config = LearnerConfig(
        lr=1e-2, minibatch_size=None, minibatch_groups=groups, microbatch_size=24, ratio_tolerance=1e-4
    )
    setup = Setup(PPO, learner=config)
    with pytest.raises(RatioError, match=r"add --learner.recompute-old-log-probs"):
        pipelined(setup, tmp_path, policy=RoundingPolicy(), pause=jitter(1))
    setup = replace(setup, learner=replace(config, recompute_old_log_probs=True))
    one = serial(setup, tmp_path, policy=RoundingPolicy())
    two = pipelined(setup, tmp_path, policy=RoundingPolicy(), pause=jitter(1), share=groups == 5)
    drifts = [metrics.pop("train/log_prob_drift") for metrics in one.metrics]
    assert_same(one, two)
    assert min(drifts) > 1e-4
    assert [batch.info["train/log_prob_drift"] for batch in two.batches] == pytest.approx(drifts, rel=1e-4)


def test_a_last_minibatch_with_fewer_groups_counts_in_proportion(tmp_path: Path) -> None:
    """With SGD, whose step is linear in the gradient: groups 0 and 1, then group 2 with half a step."""
    config = LearnerConfig(
        lr=0.1, minibatch_size=None, minibatch_groups=2, microbatch_size=1000, max_grad_norm=1e9, ratio_tolerance=9.0
    )
    setup = Setup(GRPO, groups=24, iterations=1, learner=config)
    (batch,) = serial(setup, tmp_path).batches

    def after(start: dict[str, Tensor], groups: list[RolloutBatch]) -> dict[str, Tensor]:
        policy = ToyPolicy()
        policy.load_state_dict(start)
        _, learner = setup.parts(policy, tmp_path)
        learner.optimizer_step.optimizer = torch.optim.SGD(policy.parameters())  # type: ignore[assignment]
        learner.update(join_batches(groups))
        return policy.state_dict()

    first, second, third, *_ = [g for g in split_groups(batch) if len({e.success for e in g.episodes}) == 2]
    start = ToyPolicy().state_dict()
    halfway = after(start, [first, second])
    full, found = after(halfway, [third]), after(start, [first, second, third])
    assert (full["head.bias"] - halfway["head.bias"]).abs().max() > 1e-3
    for name in start:
        torch.testing.assert_close(found[name], (halfway[name] + full[name]) / 2, rtol=0, atol=1e-7, msg=name)


class Broken(ToyPolicy):
    """Acts a few times, then not any more."""

    left = 5

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("the policy broke")
        return super().act(obs, rng, mode)


class BrokenEnv(SlowEnv):
    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        raise MemoryError("the simulator broke")  # most others are taken for the episode's doing


def test_what_goes_wrong_in_a_thread_is_raised_where_the_batch_is_awaited(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError, match="policy broke"):
        pipelined(Setup(GRPO), tmp_path, policy=Broken())
    with pytest.raises(MemoryError, match="simulator broke"):
        pipelined(Setup(GRPO), tmp_path, env=BrokenEnv(6))
    every = {(task, state) for task, states in TASKS.items() for state in states}
    with pytest.raises(UserError, match=r"^the simulator breaks in \d+ of \d+ groups of training"):
        pipelined(Setup(GRPO, broken={"broken": every}), tmp_path)
    with pytest.raises(RuntimeError, match="value head"):
        pipelined(Setup(replace(PPO, bootstrap_truncated=True)), tmp_path, policy=ToyPolicy(with_value=False))
    assert not [thread for thread in threading.enumerate() if thread.name == "act" or thread.name.startswith("sim")]


def test_actions_that_are_not_numbers_never_reach_the_simulator(tmp_path: Path) -> None:
    setup = Setup(GRPO, iterations=1)
    oracle = serial(setup, tmp_path)
    for found in (
        pipelined(setup, tmp_path, policy=NanPolicy()),
        serial(setup, tmp_path, policy=NanPolicy(), env=SlowEnv(6)),
    ):
        assert_same(oracle, found)
        ledger = found.sampler.counts
        assert ledger.requeued == 2
        assert ledger.outstanding == {}
        assert ledger.issued == ledger.finished == len(found.episodes) == len(set(found.episodes))


def test_a_policy_that_never_gives_numbers_ends_the_run_with_one_line(tmp_path: Path) -> None:
    message = r"^episode \d+ of task 'toy/\w+', initial state \d+, got actions that are not finite from the policy 5 ti"
    for run in (pipelined, serial):
        with pytest.raises(UserError, match=message) as error:
            run(Setup(GRPO), tmp_path, policy=NanPolicy(always=True), env=SlowEnv(6))
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_the_learners_threads_do_on_their_own_is_counted(goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After it was called, until the next call."""
    monkeypatch.setattr(scheduling, "gather", lambda members, version: SimpleNamespace(info={}))
    monkeypatch.setattr(scheduling, "without_frames", lambda group: group)
    monkeypatch.setattr(scheduling, "join_batches", lambda parts: SimpleNamespace(info={}))
    monkeypatch.setattr(scheduling, "summarize_rollout", lambda closed, requeued: {})
    group = Group.__new__(Group)
    group.index, group.members = 0, []
    events = iter([group, group, BatchEnd(0, [], 2)])
    clock = Profiler(9, concurrent=True)
    engine: Any = SimpleNamespace(
        profiler=clock,
        wait=lambda *heard, block: next(events),
        release=lambda kept: None,
        settle=lambda reports: None,
        publish=lambda *new, ess_ratio: None,
        queue=SimpleNamespace(begin=lambda *ends: None, sampler=SimpleNamespace(counts=SimpleNamespace(requeued=0))),
    )
    learner: Any = SimpleNamespace(
        config=LearnerConfig(minibatch_size=None, minibatch_groups=1),
        accumulate=lambda group: None,
        cores=SimpleNamespace(busy_until=lambda side: time.perf_counter() if goes_on else 0.0),
    )
    scheduler = PipelinedScheduler(engine, GroupExchange(engine.queue), learner, Callbacks(), load_weights=lambda: None)
    next(scheduler.batches(0, 1))
    spans = [span for span in clock.spans if span.name == "learn"]
    assert len(spans) == (4 if goes_on else 2)
    assert all(one.end <= two.begin for one, two in pairwise(spans))
    assert {span.worker for span in spans} == {LEARNER}

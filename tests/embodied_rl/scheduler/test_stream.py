"""Overlap `stream`: the same episodes and updates as the serial oracle, whatever the stages, workers and delays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.config import AlgorithmConfig, PPOConfig
from embodied_rl.learner.config import LearnerConfig
from tests.embodied_rl.scheduler.toys import GRPO, KEEPING, PPO, Outcome, Setup, assert_same_rows, jitter, pipelined, serial

UNTIMED = ("rollout/stopped",)


def assert_same(one: Outcome, two: Outcome) -> None:
    assert len(one.batches) == len(two.batches)
    for left, right in zip(one.batches, two.batches, strict=True):
        assert_same_rows(left, right)
    for name, tensor in one.weights.items():
        torch.testing.assert_close(two.weights[name], tensor, rtol=0, atol=1e-6, msg=name)
    for left, right in zip(one.metrics, two.metrics, strict=True):
        assert right == pytest.approx(left, rel=1e-4, abs=1e-6)


@given(
    algorithm=st.sampled_from([GRPO, KEEPING, PPO]), slots=st.integers(1, 9), stages=st.integers(1, 9),
    workers=st.integers(1, 4), seed=st.integers(0, 10**6), act_wait=st.sampled_from([0.0, 0.002]),
    minibatch=st.sampled_from([1, 2, 100]),
)
@settings(deadline=None, max_examples=25)
def test_the_same_episodes_and_updates_as_serial(
    algorithm: AlgorithmConfig, slots: int, stages: int, workers: int, seed: int, act_wait: float, minibatch: int
) -> None:
    learner = LearnerConfig(lr=1e-2, minibatch_rows=None, minibatch_groups=minibatch, microbatch_rows=24)
    setup = Setup(algorithm, learner=learner, breaks={3: 1, 11: 1})
    with tempfile.TemporaryDirectory() as folder:
        oracle = serial(setup, Path(folder))
        found = pipelined(
            setup, Path(folder), slots=slots, stages=min(stages, slots), workers=workers, pause=jitter(seed),
            act_wait=act_wait,
        )
    assert_same(oracle, found)
    stopped = sum(batch.info["rollout/stopped"] for batch in found.batches)
    ledger = found.sampler.ledger
    assert ledger.outstanding == {}
    assert ledger.issued == ledger.finished == oracle.sampler.ledger.issued
    assert len(found.episodes) == len(set(found.episodes)) == ledger.finished - stopped
    assert set(found.episodes) <= set(oracle.episodes)

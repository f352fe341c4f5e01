"""Initial states that break the simulator cost their own episodes, the same ones under every scheduler."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.rollout.lookahead import Lookahead
from tests.embodied_rl.scheduler.far import ToyFactory
from tests.embodied_rl.scheduler.over_ray import FakeRay, assert_same_run, train
from tests.embodied_rl.scheduler.toys import (
    GRPO,
    KEEPING,
    PPO,
    Outcome,
    Setup,
    SlowEnv,
    assert_same_rows,
    jitter,
    pipelined,
    serial,
)

BROKEN = {("toy/reach", 3), ("toy/touch", 8)}
UNSEEN = {("toy/touch", 5)}
STATES = {"broken": BROKEN, "unseen": UNSEEN}
"""One in ten of the training states."""
TIMING = {"rollout/requeued_total": 0, "rollout/stopped": 0}
"""Metrics that depend on how many episodes of a group ran when one of them broke the simulator."""
SETUPS = {
    "ppo": Setup(PPO, groups=12, iterations=4, broken=STATES),
    "grpo": Setup(GRPO, groups=9, iterations=4, broken=STATES),
    "grpo, groups filtered": Setup(
        replace(KEEPING, success_rate_range=(0.2, 0.8)), groups=3, iterations=3, broken=STATES
    ),
}


def begun(ran: Outcome, env: SlowEnv) -> dict[tuple[str, int], set[int]]:
    """In which batches an episode began from each broken state."""
    last = [batch.episodes[-1].spec.group for batch in ran.batches]
    found: dict[tuple[str, int], set[int]] = {}
    for spec in env.started:
        if (spec.task, spec.init_state) in BROKEN | UNSEEN:
            found.setdefault((spec.task, spec.init_state), set()).add(sum(spec.group > end for end in last))
    return found


@pytest.mark.parametrize("name", ["ppo", "grpo"])
def test_batches_are_whole_without_the_broken_states_and_each_is_tried_in_one_batch_only(
    name: str, tmp_path: Path
) -> None:
    setup, env = SETUPS[name], SlowEnv(6, broken=BROKEN, unseen=UNSEEN)
    ran = serial(setup, tmp_path, env=env)
    for batch in ran.batches:
        groups = Counter(result.spec.group for result in batch.episodes)
        assert list(groups.values()) == [4 if name == "grpo" else 1] * setup.groups
        assert not {(result.spec.task, result.spec.init_state) for result in batch.episodes} & (BROKEN | UNSEEN)
        assert bool(torch.isfinite(batch.proprio).all())
    tried = begun(ran, env)
    assert len(tried) >= 2
    assert all(len(batches) == 1 for batches in tried.values())
    assert ran.sampler.broken.found == {state: min(batches) for state, batches in tried.items()}
    assert sum(batch.info.get("rollout/broken_groups", 0) for batch in ran.batches) == ran.sampler.broken.num_groups
    assert ran.batches[-1].info["rollout/broken_states_total"] == len(tried)
    counts = ran.sampler.counts
    assert (counts.issued, counts.outstanding) == (counts.finished, {})


@pytest.mark.parametrize("name", SETUPS)
def test_the_pipeline_runs_the_serial_episodes_whatever_the_delays(name: str, tmp_path: Path) -> None:
    near = serial(SETUPS[name], tmp_path)
    assert near.sampler.broken.found
    for seed in range(4):
        far = pipelined(SETUPS[name], tmp_path, stages=2 + seed % 2, workers=1 + seed, pause=jitter(seed))
        for one, two in zip(far.batches, near.batches, strict=True):
            assert_same_rows(one, two)
            assert dict(one.info, **TIMING) == dict(two.info, **TIMING)
        assert all(torch.equal(far.weights[key], tensor) for key, tensor in near.weights.items())
        assert far.states[-1]["broken"] == near.sampler.state_dict()["broken"]


def test_a_rollout_that_runs_ahead_leaves_them_out_as_well(tmp_path: Path) -> None:
    far = pipelined(SETUPS["ppo"], tmp_path, pause=jitter(1), ahead=Lookahead(1))
    for batch in far.batches:
        assert len(batch.episodes) == 12
        assert not {(result.spec.task, result.spec.init_state) for result in batch.episodes} & (BROKEN | UNSEEN)


@pytest.mark.parametrize("name", SETUPS)
def test_workers_far_away_run_the_serial_episodes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    monkeypatch.setattr("embodied_rl.scheduler.ray.scheduler.connect", lambda config: fake)
    far, near = train(SETUPS[name], tmp_path, ToyFactory(broken=STATES)), serial(SETUPS[name], tmp_path)
    assert_same_run(far, near)
    assert far.states[-1]["broken"] == near.sampler.state_dict()["broken"]

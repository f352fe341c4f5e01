"""On policy, timing changes no result, even if the policy's outputs depend on which rows it acts for together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.config import AlgorithmConfig
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainSettings
from embodied_rl.types import ActOutput, Observation
from tests.embodied_rl.scheduler.toys import GRPO, KEEPING, PPO, Outcome, Setup, SlowEnv, jitter, pipelined
from tests.embodied_rl.toy_run import JsonObserver, files_of, newest, settings_of
from tests.toy import HELDOUT, TASKS, ToyPolicy

LEARNER = LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=2, microbatch_size=24, ratio_tolerance=9.0)


class Company(ToyPolicy):
    """Its log-probs and values depend a little on the rows that it acts for together, as those of a GPU do."""

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        out = super().act(obs, rng, mode)
        little = 1e-4 * float((rng.seed % 1009 + rng.decision).sum() % 997)
        value = None if out.value is None else out.value + little
        return replace(out, log_prob=out.log_prob + little, value=value)


def same(one: Outcome, two: Outcome) -> bool:
    """To the last bit."""
    return all(
        left.episodes == right.episodes and torch.equal(left.log_prob, right.log_prob)
        for left, right in zip(one.batches, two.batches, strict=True)
    ) and all(torch.equal(two.weights[name], tensor) for name, tensor in one.weights.items())


def outcome(
    folder: Path, algorithm: AlgorithmConfig, seed: int, *, in_turn: bool = True, workers: int = 3, stages: int = 5
) -> Outcome:
    setup = Setup(algorithm, learner=LEARNER, breaks={3: 1})
    return pipelined(
        setup, folder, env_ids=7, stages=stages, workers=workers, pause=jitter(seed), in_turn=in_turn, policy=Company()
    )


@pytest.mark.parametrize("algorithm", [GRPO, KEEPING, replace(PPO, bootstrap_truncated=True)], ids=str)
def test_two_runs_are_the_same_to_the_last_bit(algorithm: AlgorithmConfig, tmp_path: Path) -> None:
    """With failures, filtered groups and final values; whatever the delays and the number of workers."""
    for stages in (2, 5):
        first = outcome(tmp_path, algorithm, 0, stages=stages)
        assert all(same(first, outcome(tmp_path, algorithm, seed, workers=seed, stages=stages)) for seed in (1, 2, 3))


def test_out_of_turn_they_are_not(tmp_path: Path) -> None:
    """Or the test above would show nothing."""
    first = outcome(tmp_path, GRPO, 0, in_turn=False)
    assert not all(same(first, outcome(tmp_path, GRPO, seed, in_turn=False)) for seed in range(1, 6))


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    def run(folder: Path, settings: TrainSettings, seed: int, *, resume: bool = False) -> ToyPolicy:
        torch.set_num_threads(1)
        policy = Company(with_value=False)
        observer = JsonObserver(folder / "metrics.jsonl")
        env, states = SlowEnv(7, jitter(seed)), TaskSplit(TASKS, HELDOUT)
        train(
            folder,
            env,
            policy,
            files_of(policy),
            settings,
            states,
            observer,
            RunOptions(resume=newest(folder) if resume else None),
        )
        return policy

    whole = replace(settings_of(GRPO, 4), scheduler=PipelinedConfig(env_groups=3), learner=LEARNER, workers=3)
    one = run(tmp_path / "whole", whole, 1)
    run(tmp_path / "halves", replace(whole, iterations=2), 2)
    two = run(tmp_path / "halves", whole, 3, resume=True)
    assert all(torch.equal(two.state_dict()[name], tensor) for name, tensor in one.state_dict().items())
    last = [(tmp_path / name / "metrics.jsonl").read_text().splitlines()[-1] for name in ("whole", "halves")]
    assert last[0] == last[1]

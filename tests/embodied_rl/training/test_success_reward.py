"""Training on a judge alone: whatever the simulator says of success, the weights are the same; a resume is exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.reward_model import SIMULATOR_REWARD, RewardModel
from embodied_rl.rewards.relabel import SuccessReward
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainSettings
from embodied_rl.types import ChunkResult
from tests.embodied_rl.scheduler.painted import Painted
from tests.embodied_rl.scheduler.toys import jitter
from tests.embodied_rl.toy_run import JsonObserver, files_of, newest, settings_of
from tests.toy import HELDOUT, TASKS, ToyPolicy

PPO = PPOConfig(gamma=0.9, bootstrap_truncated=False)
SCHEDULES = [SerialConfig(), PipelinedConfig(env_groups=3)]


class OnTheRight:
    """The task is to be on the right, which no simulator knows of."""

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        return images[:, 0, 0, 1, 1].float() / 255

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        return (images[:, 0, 0, 1, 1] > 127).float()

    def drain(self) -> dict[str, float]:
        return {}


class Liar(Painted):
    """Calls a success what failed, and time what was success, and pays for nothing in particular."""

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        result = super().step(env_ids, actions)
        over = result.terminated | result.truncated
        return replace(
            result,
            reward=result.reward + 3,
            success=over & ~result.success,
            terminated=result.truncated,
            truncated=result.terminated,
        )


def settings(scheduler: SchedulerConfig, reward: RewardModel, iterations: int) -> TrainSettings:
    return replace(
        settings_of(PPO, iterations),
        learner=LearnerConfig(lr=1e-2, value_lr=1e-2, minibatch_size=None, minibatch_groups=8, microbatch_size=24),
        rollout=RolloutConfig(episodes_per_iteration=16),
        evaluation=EvalConfig(every=0, states_per_task=2),
        scheduler=scheduler,
        reward_model=reward,
        workers=2,
    )


def run(
    folder: Path, settings: TrainSettings, env: Painted, *, resume: bool = False
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """The weights, and the metrics of each update."""
    torch.set_num_threads(1)
    policy, observer = ToyPolicy(), JsonObserver(folder / "metrics.jsonl")
    train(
        folder,
        env,
        policy,
        files_of(policy),
        settings,
        TaskSplit(TASKS, HELDOUT),
        observer,
        RunOptions(resume=newest(folder) if resume else None),
    )
    return policy.state_dict(), [json.loads(line) for line in observer.path.read_text().splitlines()]


def alone() -> RewardModel:
    return SuccessReward(OnTheRight(), gamma=PPO.gamma, weight=0.5, has_success=True)


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return all(torch.equal(two[name], tensor) for name, tensor in one.items())


@pytest.mark.parametrize("scheduler", SCHEDULES, ids=["serial", "stream"])
def test_the_simulators_word_changes_no_weight(scheduler: SchedulerConfig, tmp_path: Path) -> None:
    found = {}
    for name, reward in (("alone", alone()), ("simulator", SIMULATOR_REWARD)):
        for env in (Painted(6, jitter(1)), Liar(6, jitter(2))):
            folder = tmp_path / f"{name} {type(env).__name__}"
            found[name, type(env)] = run(folder, settings(scheduler, reward, 2), env)[0]
    assert same(found["alone", Painted], found["alone", Liar])
    assert not same(found["simulator", Painted], found["simulator", Liar]), "or the lie would be none"


@pytest.mark.parametrize("scheduler", SCHEDULES, ids=["serial", "stream"])
def test_a_resumed_run_is_the_same_to_the_last_bit(scheduler: SchedulerConfig, tmp_path: Path) -> None:
    one, lines = run(tmp_path / "whole", settings(scheduler, alone(), 4), Painted(7, jitter(1), lost={30}))
    run(tmp_path / "halves", settings(scheduler, alone(), 2), Painted(7, jitter(2)))
    two, again = run(
        tmp_path / "halves", settings(scheduler, alone(), 4), Painted(5, jitter(3), lost={60}), resume=True
    )
    assert same(one, two)
    update, resumed = (
        next(line for line in found if line["iteration"] == 4 and "train/loss" in line) for found in (lines, again)
    )
    assert {name: value for name, value in update.items() if name.startswith(("reward/", "train/"))} == {
        name: value for name, value in resumed.items() if name.startswith(("reward/", "train/"))
    }


def test_a_policy_learns_what_only_the_judge_knows(tmp_path: Path) -> None:
    _, lines = run(tmp_path, settings(SerialConfig(), alone(), 12), Painted(12))
    done = [line["reward/done"] for line in lines if "reward/done" in line]
    assert len(done) == 12
    assert sum(done[-3:]) > sum(done[:3]) + 0.6, done
    assert any(line["reward/false_positives"] > 0 for line in lines if "reward/done" in line)

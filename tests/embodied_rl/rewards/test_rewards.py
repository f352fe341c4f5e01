"""Rewards are replaced between the rollout and the advantages, on every way through the learner."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.reward_model import SIMULATOR_REWARD, RewardModel, with_rewards
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.learner.test_learner import setup
from tests.toy import ToyPolicy

CONFIGS = [GRPOConfig(success_rate_range=None), PPOConfig()]


class Length:
    """Rewards every decision by its number of executed terms; remembers what it was given."""

    needs_final_images = False

    def __init__(self) -> None:
        self.given: list[RolloutBatch] = []

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        self.given.append(batch)
        return with_rewards(batch, batch.reward - 0.1 * batch.mask.sum(dim=1))

    def drain(self) -> dict[str, float]:
        return {}


def rollout(path: Path, config: AlgorithmConfig) -> RolloutBatch:
    return setup(path, config, ToyPolicy(), minibatch_size=40)[1]


def learn(path: Path, config: AlgorithmConfig, batch: RolloutBatch, model: RewardModel, way: str) -> list[torch.Tensor]:
    policy, batch = ToyPolicy(), copy.deepcopy(batch)
    rows: dict[str, Any] = {"minibatch_size": 40} if way == "rows" else {"minibatch_size": None, "minibatch_groups": 2}
    learner = Learner(
        policy,
        make_algorithm(config),
        LearnerConfig(lr=1e-2, ratio_tolerance=1e-3, **rows),
        seed=0,
        dump_dir=path,
        reward_model=model,
    )
    if way == "streamed":
        for group in split_groups(batch):
            learner.accumulate(group)
    learner.update(batch)
    return [parameter.detach().clone() for parameter in policy.parameters()]


def same(one: Sequence[torch.Tensor], two: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("way", ["rows", "groups", "streamed"])
def test_the_learner_learns_from_the_new_rewards(tmp_path: Path, config: AlgorithmConfig, way: str) -> None:
    """A reward model is the same as a rollout that had these rewards from the start."""
    batch, model = rollout(tmp_path, config), Length()
    relabelled = learn(tmp_path, config, batch, model, way)
    assert same(relabelled, learn(tmp_path, config, Length().relabel(batch), SIMULATOR_REWARD, way))
    assert not same(relabelled, learn(tmp_path, config, batch, SIMULATOR_REWARD, way))
    assert sum(map(len, model.given)) == len(batch), "every row is relabelled once"


@pytest.mark.parametrize("config", CONFIGS)
def test_groups_one_by_one_give_what_a_whole_batch_gives(tmp_path: Path, config: AlgorithmConfig) -> None:
    batch = rollout(tmp_path, config)
    assert same(*(learn(tmp_path, config, batch, Length(), way) for way in ("groups", "streamed")))


def test_an_episodes_reward_is_the_sum_of_its_rows(tmp_path: Path) -> None:
    batch = rollout(tmp_path, PPOConfig())
    before = batch.reward.clone()
    reward = torch.arange(float(len(batch)))
    found = with_rewards(batch, reward)
    assert torch.equal(found.reward, reward)
    for number, episode in enumerate(found.episodes):
        assert episode.reward == reward[batch.episode == number].sum()
        assert episode.spec == batch.episodes[number].spec
    assert torch.equal(batch.reward, before), "the rollout's own rewards stay"
    assert with_rewards(batch, batch.reward).episodes == batch.episodes
    with pytest.raises(ValueError, match="rewards are needed"):
        with_rewards(batch, reward[1:])


def test_the_simulators_rewards_are_left_alone(tmp_path: Path) -> None:
    batch = rollout(tmp_path, PPOConfig())
    assert SIMULATOR_REWARD.relabel(batch) is batch

"""Filtered behaviour cloning, alone or with steering, for every policy that sees images: few episodes, rounds of 20."""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import ImitateConfig, SteerConfig
from embodied_rl.config.suites import suite_named
from embodied_rl.config.train import TrainConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rollout.config import RolloutConfig

_ROUND = 20
_LARGE = 5e-5
"""Recipes of published weights reinforce with less."""


def imitating(recipe: TrainConfig, algorithm: ImitateConfig) -> TrainConfig:
    """The settings of a PPO recipe's benchmark and policy, for imitation: 60 episodes, each from a state of its own."""
    lr = 2.5e-5 if recipe.learner.lr < _LARGE else 5e-4  # as their papers and `sft` tune them
    return replace(
        recipe,
        iterations=3,
        train_states="fresh" if suite_named(recipe.suite).draws_states else "train",
        algorithm=algorithm,
        rollout=RolloutConfig(episodes_per_iteration=_ROUND),
        learner=LearnerConfig(lr=lr, minibatch_size=64, microbatch_size=64),
        evaluation=replace(recipe.evaluation, every=0),
        checkpoint=CheckpointConfig(every=1),
    )


def imitation_recipes(recipes: dict[str, TrainConfig]) -> dict[str, TrainConfig]:
    """Recipes for imitation, alone and with steering, beside each of PPO whose policy sees images."""
    return {
        f"{name.removesuffix('_ppo')}_{algorithm.kind}": imitating(recipe, algorithm)
        for name, recipe in recipes.items()
        for algorithm in (ImitateConfig(), SteerConfig())
        if name.endswith("_ppo") and recipe.policy.observes != "state"
    }

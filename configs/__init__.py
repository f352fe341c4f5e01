"""Recipes: named training configs, each the settings of one benchmark, policy and algorithm.

Example:
    >>> import embodied_rl as erl
    >>> erl.recipes.names()[-2:]
    ['tabletop_smolvla_ppo', 'tabletop_smolvla_steer']
    >>> erl.recipes.get("tabletop_openvla_ppo").suite
    'tabletop_spatial'
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.env import ENVS
from embodied_rl.config.policies import POLICIES
from embodied_rl.config.suites import STATE_SUITES, Suite
from embodied_rl.config.train import TrainConfig
from embodied_rl.configs import libero, state, tabletop, tabletop_chunks
from embodied_rl.configs.imitation import imitation_recipes
from embodied_rl.errors import UserError, suggest

_REINFORCED = tabletop.RECIPES | tabletop_chunks.RECIPES | libero.RECIPES | state.RECIPES
RECIPES: dict[str, TrainConfig] = _REINFORCED | imitation_recipes(_REINFORCED)
"""By BENCHMARK_POLICY_ALGORITHM: `train tabletop --policy pi0 --algorithm ppo` takes tabletop_pi0_ppo."""
BENCHMARKS = ("libero", "tabletop", *STATE_SUITES)


def names() -> list[str]:
    """All recipes, sorted."""
    return sorted(RECIPES)


def get(name: str) -> TrainConfig:
    """The config of the recipe `name`; UserError, with a suggestion, if there is none."""
    if name not in RECIPES:
        raise UserError(f"unknown recipe '{name}'.{suggest(name, RECIPES)}")
    return RECIPES[name]


def for_suite(suite: Suite, policy: str, algorithm: str) -> TrainConfig:
    """What training begins from in a suite without recipes of its own: the settings of a recipe with such a policy.

    A policy of images has random weights then, as no other fits.
    """
    kind = POLICIES[policy]
    named = f"gymnasium_mlp_{algorithm}" if kind.observes == "state" else f"tabletop_{policy}_{algorithm}"
    base = RECIPES.get(named) or get(f"tabletop_openvla_{algorithm}")
    settings = base.policy if type(base.policy) is kind else kind()
    states = "train" if base.train_states == "fresh" and not suite.draws_states else base.train_states
    learning: dict[str, Any] = {}
    if kind.observes == "images" and isinstance(base.algorithm, PPOConfig):
        # Of short episodes, 128 are fewer than a thousand decisions: steps of 512 rows would be one or two an update.
        learning["algorithm"] = replace(base.algorithm, epochs=2)
        learning["learner"] = replace(base.learner, minibatch_size=128)
    return replace(
        base,
        **learning,
        suite=suite.name,
        train_states=states,
        tasks=(),
        env=ENVS[suite.simulator(kind.observes)](num_envs=base.env.num_envs),
        policy=replace(settings, checkpoint=""),
    )

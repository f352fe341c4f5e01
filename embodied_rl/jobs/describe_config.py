"""What a run's config asks for, in words; `jobs.describe` says the rest."""

from __future__ import annotations

from embodied_rl.algorithms.config import ImitateConfig, SteerConfig
from embodied_rl.config.train import TrainConfig, kind_of
from embodied_rl.rewards.config import RewardConfig
from embodied_rl.utils.words import counted


def reward_words(config: RewardConfig) -> str:
    """What a run learns from, with a reward model."""
    model, potential = f"{config.model} ({config.digest[:12]})", f"{config.weight:g} x its progress as a potential"
    if config.replace_env_reward:
        return f"{model} alone: 1 where it sees the task done at the end, and {potential}"
    return f"simulator, and of {model} {potential}"


def perturbed_words(config: TrainConfig) -> str:
    """How training episodes differ from their tasks' own; '' where they do not."""
    if not config.perturb:
        return ""
    level, share = config.perturbation
    return f"{', '.join(config.perturb)} at level {level:g}, in {share:.0%} of the training episodes"


def algorithm_words(config: TrainConfig) -> str:
    """The algorithm, and how much of it."""
    if config.data and isinstance(config.algorithm, ImitateConfig):
        rounds, steps = counted(config.iterations, "round"), [counted(config.algorithm.steps, "step")]
        if isinstance(config.algorithm, SteerConfig):
            steps = [*steps * config.algorithm.imitate, counted(config.algorithm.critic_steps, "critic step")]
        return f"{kind_of('algorithm', config.algorithm)}, {rounds} of {' and '.join(steps)}"
    episodes = counted(config.rollout.episodes_per_iteration, "episode")
    iterations = counted(config.iterations, "iteration")
    return f"{kind_of('algorithm', config.algorithm)}, {episodes} an iteration, {iterations}"


def demos_words(config: TrainConfig) -> str:
    """What each update imitates; '' where it imitates nothing."""
    if not config.demos and not config.data:
        return ""
    if isinstance(config.algorithm, SteerConfig) and not config.algorithm.imitate:
        return f"{', '.join(config.data or config.demos)}; the critic's alone"
    if isinstance(config.algorithm, ImitateConfig):
        what = f"{', '.join(config.data)}; demonstrations" if config.data else f"{', '.join(config.demos)};"
        return f"{what} at least {config.algorithm.demo_share:.0%} of each batch"
    coef, decay = config.algorithm.demo_coef, config.algorithm.demo_decay
    falls = "" if decay == 1 else f", times {decay:g} after each update of the policy"
    return f"{', '.join(config.demos)}; weight of the imitation loss {coef:g}{falls}"


def people_words(config: TrainConfig) -> str:
    """Who helps in training, and when; '' where nobody does."""
    if config.people == "none":
        return ""
    kind, after, share = config.takeover_rule
    if kind == "share":
        return f"{config.people}, takes over in {share:.0%} of the episodes, within {after} control steps"
    when = f"where {config.people_detector} raises an alarm" if kind == "detector" else f"after {after} control steps"
    return f"{config.people}, takes over {when}"

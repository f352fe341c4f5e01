"""The small OpenVLA on the built-in tabletop suites, sized for two CPU cores."""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.policies import OpenVLAConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rollout.config import RolloutConfig

_TEMPERATURE = 0.6

_COMMON = TrainConfig(
    suite="tabletop_spatial",
    # Sampled near the most likely actions, the small model succeeds often enough for episodes to differ by what it sees
    # and not by noise: at temperature 1 it learns several times more slowly.
    policy=OpenVLAConfig(temperature=_TEMPERATURE),
    rollout=RolloutConfig(episodes_per_iteration=128),
    evaluation=EvalConfig(states_per_task=50, mode="greedy"),
    checkpoint=CheckpointConfig(every=4),
)
TABLETOP_PPO = replace(
    _COMMON,
    iterations=30,
    # Running out of time is a failure. The critic learns first; the policy's rate still rises when it joins in.
    algorithm=PPOConfig(bootstrap_truncated=False, critic_warmup_iterations=2, epochs=1),
    learner=LearnerConfig(
        lr=2e-4, value_lr=3e-3, lr_warmup_updates=5, lr_decay_updates=30, average_updates=4, minibatch_size=512
    ),
    evaluation=replace(_COMMON.evaluation, every=10),
)
TABLETOP_GRPO = replace(
    _COMMON,
    iterations=36,
    # Groups without contrast are dropped but not replaced: on two cores the wait for their replacement costs more.
    algorithm=GRPOConfig(group_size=8, max_oversampling=1.0),
    learner=LearnerConfig(lr=3e-4, lr_warmup_updates=2, lr_decay_updates=36, minibatch_size=512),
    evaluation=replace(_COMMON.evaluation, every=12),
)

RECIPES: dict[str, TrainConfig] = {"tabletop_openvla_ppo": TABLETOP_PPO, "tabletop_openvla_grpo": TABLETOP_GRPO}

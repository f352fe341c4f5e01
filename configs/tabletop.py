"""The small OpenVLA on the built-in tabletop suites, sized for two CPU cores."""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config import TrainConfig
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rollout.config import RolloutConfig

TABLETOP_GRPO = TrainConfig(
    suite="tabletop_spatial",
    iterations=36,
    # Groups without contrast are dropped but not replaced: on two cores the wait for their replacement costs more.
    algorithm=GRPOConfig(group_size=8, max_sampling_factor=1.0),
    rollout=RolloutConfig(episodes_per_iteration=128),
    learner=LearnerConfig(lr=3e-4, value_lr=1e-3, minibatch_rows=512),
    evaluation=EvalConfig(every=12, states_per_task=50, mode="greedy"),
    checkpoint=CheckpointConfig(every=4),
)
TABLETOP_PPO = replace(TABLETOP_GRPO, algorithm=PPOConfig())

"""Policies on LIBERO's own suites, after published settings; nobody has run these to convergence here."""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.policies import OpenVLAConfig, OpenVLAOFTConfig, Pi0Config, SmolVLAConfig
from embodied_rl.config.train import EnvConfig, TrainConfig
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rollout.config import RolloutConfig

_COMMON = TrainConfig(
    suite="libero_spatial",
    protocol="openvla",
    iterations=100,
    env=EnvConfig(num_envs=64),
    rollout=RolloutConfig(episodes_per_iteration=128),
    evaluation=EvalConfig(states_per_task=10, mode="greedy", every=10),
    checkpoint=CheckpointConfig(every=5),
)
LIBERO_PPO = replace(
    _COMMON,
    policy=OpenVLAConfig(temperature=1.5),  # VLA-RL's
    algorithm=PPOConfig(bootstrap_truncated=False, critic_warmup_iterations=5, epochs=1),
    learner=LearnerConfig(lr=2e-5, value_lr=2e-4, minibatch_size=512),
)
LIBERO_GRPO = replace(
    _COMMON,
    policy=OpenVLAConfig(temperature=1.6),  # SimpleVLA-RL's, as are the group size and what is kept
    algorithm=GRPOConfig(group_size=8),
    learner=LearnerConfig(lr=2e-5, minibatch_size=512),
)
LIBERO_OFT_PPO = replace(LIBERO_PPO, protocol="openvla_oft", policy=OpenVLAOFTConfig(temperature=1.5))
LIBERO_OFT_GRPO = replace(LIBERO_GRPO, protocol="openvla_oft", policy=OpenVLAOFTConfig(temperature=1.6))
_PI0 = Pi0Config(train_expert_only=True)
LIBERO_PI0_PPO = replace(
    LIBERO_PPO,
    protocol="openpi",
    policy=_PI0,
    algorithm=PPOConfig(bootstrap_truncated=False, critic_warmup_iterations=5, epochs=1, ratio_level="action"),
    learner=LearnerConfig(lr=5e-6, value_lr=1e-4, minibatch_size=512),  # pi_RL's
)
LIBERO_PI0_GRPO = replace(
    LIBERO_GRPO,
    protocol="openpi",
    policy=_PI0,
    algorithm=GRPOConfig(group_size=8, ratio_level="action"),
    learner=LearnerConfig(lr=5e-6, minibatch_size=512),
)
LIBERO_SMOLVLA_GRPO, LIBERO_SMOLVLA_PPO = (
    replace(base, protocol="lerobot", policy=SmolVLAConfig(train_expert_only=True))
    for base in (LIBERO_PI0_GRPO, LIBERO_PI0_PPO)
)

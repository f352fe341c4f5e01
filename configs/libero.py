"""Policies on LIBERO's own suites.

`libero_openvla_ppo` and `libero_openvla_grpo` train the small OpenVLA of the package on two CPU cores. The others
follow published settings of large policies, and nobody has run them to convergence here.
"""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.policies import ACTConfig, OpenVLAConfig, OpenVLAOFTConfig, Pi0Config, SmolVLAConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.configs.tabletop import TABLETOP_GRPO, TABLETOP_PPO
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rollout.config import RolloutConfig

_SMALL = OpenVLAConfig(checkpoint="shipped:libero_spatial", temperature=0.6)
LIBERO_PPO = replace(
    TABLETOP_PPO,
    suite="libero_spatial",
    protocol="libero",
    iterations=24,
    # Official frames cost a CPU thirty times as much; `eval` says what the policy scores under those.
    env=MujocoConfig(num_envs=32, render_quality="fast"),
    policy=_SMALL,
    learner=replace(TABLETOP_PPO.learner, lr_decay_updates=24),
    evaluation=replace(TABLETOP_PPO.evaluation, every=0),  # 500 episodes cost as much as three iterations
)
LIBERO_GRPO = replace(
    TABLETOP_GRPO, suite=LIBERO_PPO.suite, protocol=LIBERO_PPO.protocol, env=LIBERO_PPO.env, policy=LIBERO_PPO.policy
)

_COMMON = TrainConfig(
    suite="libero_spatial",
    protocol="openvla",
    iterations=100,
    env=MujocoConfig(num_envs=64),
    rollout=RolloutConfig(episodes_per_iteration=128),
    evaluation=EvalConfig(states_per_task=10, mode="greedy", every=10),
    checkpoint=CheckpointConfig(every=5),
)
_PPO = replace(
    _COMMON,
    policy=OpenVLAConfig(temperature=1.5),  # VLA-RL's
    algorithm=PPOConfig(bootstrap_truncated=False, critic_warmup_iterations=5, epochs=1),
    learner=LearnerConfig(lr=2e-5, value_lr=2e-4, minibatch_size=512),
)
_GRPO = replace(
    _COMMON,
    policy=OpenVLAConfig(temperature=1.6),  # SimpleVLA-RL's, as are the group size and what is kept
    algorithm=GRPOConfig(group_size=8),
    learner=LearnerConfig(lr=2e-5, minibatch_size=512),
)
_PI0 = Pi0Config(train_expert_only=True)
_PI0_PPO = replace(
    _PPO,
    protocol="openpi",
    policy=_PI0,
    algorithm=PPOConfig(bootstrap_truncated=False, critic_warmup_iterations=5, epochs=1, ratio_level="action"),
    learner=LearnerConfig(lr=5e-6, value_lr=1e-4, minibatch_size=512),  # pi_RL's
)
_PI0_GRPO = replace(
    _GRPO,
    protocol="openpi",
    policy=_PI0,
    algorithm=GRPOConfig(group_size=8, ratio_level="action"),
    learner=LearnerConfig(lr=5e-6, minibatch_size=512),
)
_SMOLVLA_PPO, _SMOLVLA_GRPO = (
    replace(base, protocol="lerobot", policy=SmolVLAConfig(train_expert_only=True)) for base in (_PI0_PPO, _PI0_GRPO)
)
# ACT reads no instruction: one task. All of it trains.
_ACT_PPO, _ACT_GRPO = (
    replace(
        base,
        suite="libero_goal",
        tasks=("turn_on_the_stove",),
        protocol="lerobot",
        policy=ACTConfig(),
        learner=replace(base.learner, lr=1e-5),
    )
    for base in (_PI0_PPO, _PI0_GRPO)
)

RECIPES: dict[str, TrainConfig] = {
    "libero_openvla_ppo": LIBERO_PPO,
    "libero_openvla_grpo": LIBERO_GRPO,
    "libero_openvla_7b_ppo": _PPO,
    "libero_openvla_7b_grpo": _GRPO,
    "libero_openvla_oft_ppo": replace(_PPO, protocol="openvla_oft", policy=OpenVLAOFTConfig(temperature=1.5)),
    "libero_openvla_oft_grpo": replace(_GRPO, protocol="openvla_oft", policy=OpenVLAOFTConfig(temperature=1.6)),
    "libero_pi0_ppo": _PI0_PPO,
    "libero_pi0_grpo": _PI0_GRPO,
    "libero_smolvla_ppo": _SMOLVLA_PPO,
    "libero_smolvla_grpo": _SMOLVLA_GRPO,
    "libero_act_ppo": _ACT_PPO,
    "libero_act_grpo": _ACT_GRPO,
}

"""The state policy on tasks with a state, trained by PPO on a CPU core or two."""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.env import EnvPoolConfig, GymnasiumConfig, ManiSkillConfig
from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rollout.config import RolloutConfig

GYMNASIUM_PPO = TrainConfig(
    suite="gymnasium",
    env=GymnasiumConfig(num_envs=16),
    policy=MLPConfig(),
    # Ten passes with a wide value target: the rows are cheap to learn from, and dear to simulate.
    algorithm=PPOConfig(
        gamma=0.98, value_clip=None, normalize_value_loss=True, epochs=10, ratio_level="action", entropy_coef=0.0
    ),
    rollout=RolloutConfig(episodes_per_iteration=16),
    learner=LearnerConfig(lr=1e-3, value_lr=1e-3, minibatch_size=256, microbatch_size=256, max_grad_norm=0.5),
    evaluation=EvalConfig(states_per_task=50, every=10),
    checkpoint=CheckpointConfig(every=10),
    iterations=40,
    videos=1,
)

# Success ends these episodes: a step may be worth as much as the way to the goal is long.
METAWORLD_PPO = replace(
    GYMNASIUM_PPO,
    suite="metaworld",
    env=EnvPoolConfig(num_envs=16),
    algorithm=replace(GYMNASIUM_PPO.algorithm, gamma=0.99),
)
FETCH_PPO = replace(
    METAWORLD_PPO,
    suite="fetch",
    algorithm=replace(GYMNASIUM_PPO.algorithm, gamma=0.95),
    rollout=RolloutConfig(episodes_per_iteration=64),
)
# A world is stepped in Python: two processes share them out. ManiSkill's dense rewards are made to be collected: their
# growth alone is so small that nothing is learned from it in 8,000 steps. They reward each step of the way, so a short
# horizon serves (ManiSkill's own baselines take 0.8 too). Wide actions meet the first success by luck.
MANISKILL_PPO = replace(
    FETCH_PPO,
    suite="maniskill",
    algorithm=replace(FETCH_PPO.algorithm, gamma=0.8, gae_lambda=0.9),
    env=ManiSkillConfig(num_envs=32, processes=2, reward_mode="native"),
    policy=MLPConfig(initial_std=1.0),
    rollout=RolloutConfig(episodes_per_iteration=32),
)

RECIPES: dict[str, TrainConfig] = {
    "gymnasium_mlp_ppo": GYMNASIUM_PPO,
    "metaworld_mlp_ppo": METAWORLD_PPO,
    "fetch_mlp_ppo": FETCH_PPO,
    "playground_mlp_ppo": replace(METAWORLD_PPO, suite="playground"),
    "dm_control_mlp_ppo": replace(METAWORLD_PPO, suite="dm_control"),
    "maniskill_mlp_ppo": MANISKILL_PPO,
}

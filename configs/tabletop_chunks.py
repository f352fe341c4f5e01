"""Policies that decide a whole chunk at once on two tabletop tasks, ACT on one: for one CPU core.

Each starts from a checkpoint that few demonstrations made (docs/results/policies.md has the commands).
"""

from __future__ import annotations

from dataclasses import replace

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.policies import ACTConfig, OpenVLAOFTConfig, Pi0Config, SmolVLAConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.configs.tabletop import TABLETOP_GRPO, TABLETOP_PPO
from embodied_rl.rollout.config import RolloutConfig

_OFT_TASKS = (
    "pick_up_the_black_bowl_between_the_plate_and_the_ramekin_and_place_it_on_the_plate",
    "pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate",
)
_PI0_TASKS = ("turn_on_the_stove", "open_the_drawer_of_the_cabinet")


def _short(base: TrainConfig, suite: str, tasks: tuple[str, ...], updates: int, lr: float) -> TrainConfig:
    """`base` with smaller updates: an episode of such a policy has half as many decisions."""
    return replace(
        base,
        suite=suite,
        tasks=tasks,
        iterations=updates,
        rollout=RolloutConfig(episodes_per_iteration=64),
        # their figures are those of the newest weights
        learner=replace(
            base.learner, lr=lr, lr_warmup_updates=2, lr_decay_updates=updates, average_updates=0, minibatch_size=128
        ),
        evaluation=replace(base.evaluation, every=0),
    )


# The tokens of a decision are drawn independently of each other.
_OFT = OpenVLAOFTConfig(temperature=0.6)
_OFT_GRPO = replace(_short(TABLETOP_GRPO, "tabletop_spatial", _OFT_TASKS, 40, 4e-4), policy=_OFT)
_OFT_PPO = replace(_short(TABLETOP_PPO, "tabletop_spatial", _OFT_TASKS, 40, 4e-4), policy=_OFT)
# pi0 explores by its denoising path, whose densities are narrow: a learning rate as OFT's moves them by too much at
# once (KL 0.28 in the first update, and success falls to zero). The numbers of one control step share a ratio.
_PI0_GRPO = replace(
    _short(TABLETOP_GRPO, "tabletop_goal", _PI0_TASKS, 30, 6e-5),
    policy=Pi0Config(),
    algorithm=GRPOConfig(group_size=8, max_oversampling=1.0, ratio_level="action"),
)
_PI0_PPO = replace(
    _short(TABLETOP_PPO, "tabletop_goal", _PI0_TASKS, 30, 6e-5),
    policy=Pi0Config(),
    algorithm=PPOConfig(bootstrap_truncated=False, critic_warmup_iterations=3, epochs=1, ratio_level="action"),
)
# The settings of pi0, whose sampler and densities it has; nobody has run them to convergence.
_SMOLVLA_PPO, _SMOLVLA_GRPO = (replace(base, policy=SmolVLAConfig()) for base in (_PI0_PPO, _PI0_GRPO))
# ACT reads no instruction, so it learns one task; nobody has run these settings to convergence either.
_ACT_PPO, _ACT_GRPO = (replace(base, policy=ACTConfig(), tasks=_PI0_TASKS[:1]) for base in (_PI0_PPO, _PI0_GRPO))

RECIPES: dict[str, TrainConfig] = {
    "tabletop_openvla_oft_ppo": _OFT_PPO,
    "tabletop_openvla_oft_grpo": _OFT_GRPO,
    "tabletop_pi0_ppo": _PI0_PPO,
    "tabletop_pi0_grpo": _PI0_GRPO,
    "tabletop_smolvla_ppo": _SMOLVLA_PPO,
    "tabletop_smolvla_grpo": _SMOLVLA_GRPO,
    "tabletop_act_ppo": _ACT_PPO,
    "tabletop_act_grpo": _ACT_GRPO,
}

"""Options that do not go with a reward model that is to teach alone."""

from __future__ import annotations

from embodied_rl.algorithms.config import AlgorithmConfig, PPOConfig
from embodied_rl.config.env import EnvConfig, MujocoConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.guard import GuardConfig
from embodied_rl.rewards.config import RewardConfig
from embodied_rl.rollout.config import RolloutConfig


def check_alone(
    reward: RewardConfig, algorithm: AlgorithmConfig, rollout: RolloutConfig, guard: GuardConfig, env: EnvConfig
) -> None:
    """UserError where what is learned under --reward.alone would also depend on what the simulator says of success."""
    if not reward.alone:
        return
    if not isinstance(algorithm, PPOConfig):
        raise UserError("--reward.alone is built for PPO: use --algorithm ppo.")
    if algorithm.bootstrap_truncated:
        raise UserError(
            "--reward.alone: whether an episode ended by success or by time, which --algorithm.bootstrap-truncated "
            "learns from, is the simulator's word: add --algorithm.no-bootstrap-truncated."
        )
    asked = {
        "--rollout.sampler adaptive draws episodes": rollout.sampler == "adaptive",
        "--guard.action roll_back takes updates back": guard.action == "roll_back",
    }
    for what, wanted in asked.items():
        if wanted:
            raise UserError(
                f"{what} by the simulator's successes, which --reward.alone does not learn from: leave one of the two "
                "out."
            )
    if isinstance(env, MujocoConfig) and env.reward != "sparse":
        raise UserError(
            f"--env.reward {env.reward} is paid by the simulator, whose rewards --reward.alone leaves out: leave one "
            "of the two out."
        )

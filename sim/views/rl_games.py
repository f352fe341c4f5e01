"""rl_games' IVecEnv over the isaacgym view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.sim.views.isaacgym import IsaacGymEnv, Obs

NAME = "embodied_rl"


class RlGamesVecEnv:
    """What rl_games steps: `rl_games.common.ivecenv.IVecEnv`."""

    def __init__(self, env: IsaacGymEnv) -> None:
        self.env = env

    def step(self, actions: Tensor) -> tuple[Obs, Tensor, Tensor, dict[str, Any]]:
        """As `IsaacGymEnv.step`."""
        return self.env.step(actions)

    def reset(self) -> Obs:
        """As `IsaacGymEnv.reset`."""
        return self.env.reset()

    def get_env_info(self) -> dict[str, Any]:
        """The spaces, by rl_games' names."""
        info: dict[str, Any] = {
            "observation_space": self.env.observation_space,
            "action_space": self.env.action_space,
            "agents": 1,
        }
        return info | {"state_space": self.env.state_space} if self.env.num_states else info

    def get_number_of_agents(self) -> int:
        """1: every env has one robot."""
        return 1

    def has_action_masks(self) -> bool:
        """No action is masked."""
        return False

    def seed(self, seed: int) -> None:
        """Refused: episodes follow from the seed that `make` was called with."""
        raise UserError(f"seed {seed}: give it to the view when it is made, as rl_games does with env_config.seed.")

    def set_train_info(self, env_frames: int, *args: Any, **kwargs: Any) -> None:
        """rl_games tells how far it is; episodes do not depend on it."""

    def get_env_state(self) -> None:
        """Nothing is kept in rl_games' checkpoints: a run that goes on draws its episodes from the start."""

    def set_env_state(self, env_state: Any) -> None:
        """See `get_env_state`."""


def register(make: Callable[..., IsaacGymEnv], name: str = NAME) -> None:
    """Let `env_name: NAME` of an rl_games config open `make(num_envs=num_actors, **env_config)`.

    Write the seed of the episodes into env_config; rl_games adds its own where there is an env_config without one.

    Raises:
        UserError: rl_games is not installed.

    Example:
        >>> register(functools.partial(erl.make_isaacgym_env, "tabletop_goal", reward="shaped", gamma=0.99))
    """
    try:
        from rl_games.common import env_configurations, vecenv
    except ImportError as error:
        raise UserError(f"rl_games cannot be imported ({error}): pip install --no-deps rl-games==1.6.5") from None

    def open_vec_env(config_name: str, num_actors: int, **options: Any) -> RlGamesVecEnv:
        return RlGamesVecEnv(make(num_envs=num_actors, **options))

    vecenv.register(name, open_vec_env)
    env_configurations.register(name, {"vecenv_type": name, "env_creator": make})

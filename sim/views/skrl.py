"""skrl's environment over the isaacgym view."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from embodied_rl.sim.views.isaacgym import IsaacGymEnv, Obs


class SkrlVecEnv:
    """What skrl 1 and 2 step: `skrl.envs.wrappers.torch.Wrapper`; give it to an agent and a trainer as it is.

    skrl keeps `terminated` and `truncated` apart, both bool [N, 1]: a row that ran out of time is truncated, and not
    terminated. Rewards are float32 [N, 1].

    Example:
        >>> env = SkrlVecEnv(erl.make_isaacgym_env("tabletop_goal", 64))
        >>> trainer = SequentialTrainer(env=env, agents=agent, cfg=SequentialTrainerCfg(timesteps=1000))
    """

    num_agents = 1

    def __init__(self, env: IsaacGymEnv) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.device = torch.device(env.device)
        self.observation_space: spaces.Space[Any] = env.observation_space
        self.action_space: spaces.Space[Any] = env.action_space
        self.state_space: spaces.Space[Any] | None = env.state_space if env.num_states else None
        self._current: Obs | None = None
        self._extras: dict[str, Any] = {}

    @property
    def unwrapped(self) -> IsaacGymEnv:
        """The view."""
        return self.env

    def reset(self) -> tuple[Tensor, dict[str, Any]]:
        """Observations now, and extras. The first call begins the episodes; later ones leave those that run alone."""
        return self._now()["obs"], self._extras

    def step(self, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """As `IsaacGymEnv.step`: observations, rewards, terminated, truncated, extras."""
        self._now()
        self._current, reward, reset, self._extras = self.env.step(actions)
        truncated = self._extras["time_outs"]
        terminated = reset.bool() & ~truncated
        return self._current["obs"], reward[:, None], terminated[:, None], truncated[:, None], self._extras

    def state(self) -> Tensor | None:
        """What only a critic sees: float32 [N, num_states]; None where the view has no states."""
        return self._now().get("states")

    def render(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is shown: the view's own `render` makes pictures."""

    def close(self) -> None:
        """Close the view."""
        self.env.close()

    def _now(self) -> Obs:
        if self._current is None:
            self._current = self.env.reset()
        return self._current

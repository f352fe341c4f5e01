"""rsl_rl's VecEnv over the isaacgym view."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.sim.views.isaacgym import IsaacGymEnv, Obs


class RslRlVecEnv:
    """What rsl_rl 3 to 5 steps: `rsl_rl.env.VecEnv`, with observations in a TensorDict.

    Its groups are 'policy', and 'critic' where the view has states.

    Raises:
        UserError: tensordict is not installed.

    Example:
        >>> runner = OnPolicyRunner(RslRlVecEnv(erl.make_isaacgym_env("tabletop_goal", 64)), config, device="cpu")
    """

    def __init__(self, env: IsaacGymEnv) -> None:
        try:
            from tensordict import TensorDict
        except ImportError as error:
            raise UserError(f"tensordict cannot be imported ({error}): pip install rsl-rl-lib==5.5.1") from None
        self._dict = TensorDict
        self.env = env
        self.num_envs, self.num_actions = env.num_envs, env.num_actions
        self.max_episode_length, self.device, self.cfg = env.max_episode_length, env.device, env.cfg
        self._current: Obs | None = None

    @property
    def unwrapped(self) -> IsaacGymEnv:
        """The view."""
        return self.env

    @property
    def episode_length_buf(self) -> Tensor:
        """Control steps of each episode so far, int64 [N]; what is written shortens the episodes that run."""
        return self.env.progress_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.env.progress_buf.copy_(value)

    def get_observations(self) -> Any:
        """TensorDict of the observations now; begins the first episodes."""
        if self._current is None:
            self._current = self.env.reset()
        return self._grouped(self._current)

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in every env: (TensorDict, extras)."""
        self._current = self.env.reset()
        return self._grouped(self._current), {}

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, dict[str, Any]]:
        """As `IsaacGymEnv.step`."""
        self.get_observations()
        self._current, reward, reset, extras = self.env.step(actions)
        return self._grouped(self._current), reward, reset, extras

    def close(self) -> None:
        """Close the view."""
        self.env.close()

    def _grouped(self, obs: Obs) -> Any:
        groups = {"policy": obs["obs"]} | ({"critic": obs["states"]} if "states" in obs else {})
        return self._dict(groups, batch_size=[self.num_envs], device=self.device)

"""A suite's tasks as one simulator object, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch

from embodied_rl.errors import UserError
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv


class SuiteEnv:
    """`factory.custom.TaskEnv` of a suite by name: the simulator, and which initial states its tasks have.

    Example:
        >>> with open_tasks(load("tabletop_spatial", (), MujocoConfig()), MujocoConfig(num_envs=4)) as env:
        ...     print(env.info.simulator, list(env.train_states))
    """

    def __init__(self, env: VecEnv, train_states: TaskStates, heldout_states: TaskStates, owned: ExitStack) -> None:
        self.num_envs, self.info = env.num_envs, env.info
        self.train_states, self.heldout_states = train_states, heldout_states
        self._env = env
        self._owned = owned

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`."""
        self._env.reset(env_ids, episodes)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`."""
        return self._env.step(env_ids, actions)

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`."""
        return self._env.observe(env_ids, out)

    def new_observation(self, rows: int) -> Observation:
        """As `VecEnv.new_observation`."""
        return self._env.new_observation(rows)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """As `VecEnv.frame`."""
        return self._env.frame(env_id, camera, size)

    def state(self, env_ids: Sequence[int]) -> torch.Tensor:
        """What `Observation.state` would be now, without a picture: float32 [N, S].

        Raises:
            UserError: it was opened without a state.
        """
        if not self.info.state_dim or not isinstance(self._env, MujocoVecEnv | ProcessVecEnv):
            raise UserError("this environment has no state: open it with state=True.")
        return self._env.state(env_ids)

    def at_end(self, episode_id: int) -> bool | None:
        """Whether the goal held after an episode's last step; None where episodes end at success."""
        return self._env.at_end(episode_id) if isinstance(self._env, ProtocolEnv) else None

    @property
    def simulator(self) -> VecEnv:
        """What runs below: the simulator itself, without the protocol around it."""
        return self._env.simulator if isinstance(self._env, ProtocolEnv) else self._env

    @property
    def mujoco(self) -> MujocoVecEnv:
        """MuJoCo, which runs below; UserError for another simulator, or for one in watched processes."""
        if not isinstance(self.simulator, MujocoVecEnv):
            raise UserError(
                f"suite '{self.info.suite}' does not run in MuJoCo in this process: open it with --env mujoco."
            )
        return self.simulator

    def close(self) -> None:
        """Free threads, processes and GL contexts."""
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

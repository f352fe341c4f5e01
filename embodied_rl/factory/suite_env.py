"""A suite's tasks as one simulator object, for programs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch

from embodied_rl.config.train import EnvConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.envs import open_env, pick_renderer
from embodied_rl.factory.premises import judge
from embodied_rl.factory.protocol_envs import open_protocol_env
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.libero.protocol import NATIVE, Protocol, protocol
from embodied_rl.sim.mujoco.vec_env import NativeVecEnv
from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.utils.console import LastingConsole
from embodied_rl.vec_env import VecEnv


class SuiteEnv:
    """`factory.own.TaskEnv` of a suite by name: the simulator, and which initial states its tasks have.

    Example:
        >>> with SuiteEnv.open("tabletop_spatial", EnvConfig(num_envs=4), image_size=64, cameras=2) as env:
        ...     print(env.info.simulator, list(env.train_states))
    """

    def __init__(self, env: VecEnv, train_states: TaskStates, heldout_states: TaskStates, owned: ExitStack) -> None:
        self.num_envs, self.info = env.num_envs, env.info
        self.train_states, self.heldout_states = train_states, heldout_states
        self._env = env
        self._owned = owned

    @classmethod
    def open(
        cls,
        suite: str,
        config: EnvConfig,
        *,
        image_size: int,
        cameras: int,
        tasks: str | Sequence[str] = (),
        protocol_name: str = NATIVE.name,
        state: bool = False,
        device: str = "cpu",
    ) -> Self:
        """Open the simulator; UserError as `load_tasks`, `pick_renderer` and `protocol`.

        cameras: 0 opens no renderer, and needs `state`. state: observations have one; of the protocols, `native` can.
        device: see `open_env`.
        """
        chosen = protocol(protocol_name)
        _check_state(chosen, cameras, state)
        found, _ = judge(load_tasks(suite, tasks, config.scene_era), LastingConsole(stderr=True))
        if cameras:
            renderer = pick_renderer(config.renderer, found, config.render_quality, config.simulator)
            config = replace(config, renderer=renderer.name)
        with ExitStack() as stack:
            if chosen is NATIVE:
                opened = open_env(found, config, image_size, cameras=cameras, state=state, device=device)
            else:
                opened = open_protocol_env(found, config, chosen, image_size, cameras, device=device)
            train = {task.name: list(task.train_states) for task in found}
            heldout = {task.name: list(task.heldout_states) for task in found}
            return cls(stack.enter_context(opened), train, heldout, stack.pop_all())

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
        if not self.info.state_dim or not isinstance(self._env, NativeVecEnv | ProcessVecEnv):
            raise UserError("this environment has no state: open it with state=True.")
        return self._env.state(env_ids)

    def close(self) -> None:
        """Free threads, processes and GL contexts."""
        self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_state(chosen: Protocol, cameras: int, state: bool) -> None:
    if cameras == 0 and not state:
        raise UserError("without cameras there is nothing to act on: ask for the state (state=True), or for cameras.")
    if state and chosen is not NATIVE:
        raise UserError(f"protocol '{chosen.name}' is for policies that see images: state=True goes with native.")

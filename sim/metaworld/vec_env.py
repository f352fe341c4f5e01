"""MetaWorld behind the contract: one of its environments for each env, drawn by this project's renderers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import mujoco
import numpy as np
import torch

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.checks import check_env_ids, check_episodes
from embodied_rl.sim.metaworld.load import load_metaworld
from embodied_rl.sim.metaworld.pictures import CAMERAS, Pictures
from embodied_rl.sim.metaworld.tasks import CONTROL_HZ, MetaWorldTask
from embodied_rl.sim.metaworld.world import ACTION_DIM, PROPRIO_DIM, REWARD_SCALE, STATE_DIM, World
from embodied_rl.sim.mujoco_log import leave_divergence_to_results
from embodied_rl.sim.render import RendererChoice
from embodied_rl.sim.step_reward import RewardMode, StepReward, choose_reward
from embodied_rl.sim.stepping import ChunkBook, bounded_actions
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo


@dataclass(frozen=True, slots=True)
class Setup:
    """What is asked of MetaWorld.

    Args:
        image_size: H = W of the pictures, in pixels.
        cameras: how many of CAMERAS are drawn, from the first; 0: observations have no images.
        renderer: see `make_renderer`; the ray caster draws no meshes.
        reward, gamma: see `embodied_rl.sim.step_reward`.
        ladders: folder where the rasteriser keeps decimated meshes; None: in memory only.
    """

    image_size: int = 64
    cameras: int = 2
    renderer: RendererChoice = "raster"
    reward: RewardMode = "auto"
    gamma: float = 1.0
    ladders: Path | None = None


class MetaWorldVecEnv:
    """`embodied_rl.vec_env.VecEnv` over MetaWorld's own environments. Any env can hold any of the tasks.

    The state is MetaWorld's observation with the goal, proprio the hand's position and the gripper's opening. The
    initial state alone decides how an episode begins, so the episodes of a group begin alike. `observe` draws, `step`
    does not. Episodes end at success unless the reward is 'native'.

    Args:
        tasks: one or more.
        num_envs: N.
        setup: images and reward.

    Example:
        >>> env = MetaWorldVecEnv(load_tasks(["reach-v3", "push-v3"]), num_envs=8)
        >>> env.reset([0], [EpisodeSpec(0, "metaworld/push-v3", init_state=0, seed=1)])
        >>> env.step([0], torch.zeros(1, 4, 4)).steps_taken
        tensor([4], dtype=torch.int32)
    """

    def __init__(self, tasks: Sequence[MetaWorldTask], num_envs: int, setup: Setup | None = None) -> None:
        if not tasks or num_envs < 1:
            raise UserError("an environment needs at least one task and one env")
        self._setup = setup or Setup()
        if not 0 <= self._setup.cameras <= len(CAMERAS):
            raise UserError(f"MetaWorld is drawn by up to {len(CAMERAS)} cameras here, got {self._setup.cameras}.")
        leave_divergence_to_results()
        self.num_envs = num_envs
        self._tasks = {task.name: task for task in tasks}
        self._mode: Literal["progress", "native", "success"] = choose_reward(
            self._setup.reward, has_success=True, task=tasks[0].name
        )
        self._pictures = Pictures(self._setup.renderer, self._setup.ladders)
        self._worlds: list[World | None] = [None] * num_envs
        self.info = self._describe(tasks)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; UserError for an unknown task or initial state."""
        check_env_ids(env_ids, self.num_envs)
        check_episodes(env_ids, episodes, self._tasks)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            task = self._tasks[spec.task]
            world = self._worlds[env_id]
            if world is None or world.task is not task:
                # a model has 20 MB and is made in 15 ms: one for each env and task would fill the memory
                self._worlds[env_id] = world = None
                self._worlds[env_id] = world = World(task)
            reward = StepReward(self._mode, REWARD_SCALE, self._setup.gamma)
            world.reset(int(task.init_states[spec.init_state]), reward)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env, one env after the other.

        Raises:
            ValueError: for non-finite or misshapen actions, env ids that are none or come twice, and an env whose
                episode has ended.
        """
        arrays = bounded_actions(actions, len(env_ids), self.info)
        check_env_ids(env_ids, self.num_envs)
        worlds = [self._held(env_id) for env_id in env_ids]
        for env_id, world in zip(env_ids, worlds, strict=True):
            if not world.live:
                raise ValueError(f"env {env_id} holds no running episode; reset it first")
        book = ChunkBook(*arrays.shape[:2])
        for row, world in enumerate(worlds):
            world.reward.begin_chunk(arrays.shape[1])
            for action in arrays[row]:
                book.add(row, world.step(action))
                if not world.live:
                    break
        return book.result()

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`; draws where images were asked for."""
        assert out.state is not None
        images = out.images.numpy()
        for row, env_id in enumerate(env_ids):
            world = self._held(env_id)
            out.state[row] = torch.from_numpy(world.full_state)
            out.proprio[row] = torch.from_numpy(world.proprio)
            out.instruction[row] = world.task.instruction
            if self.info.cameras:
                self._pictures.draw(world, self.info.cameras, images[row])

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Draw 'corner2' (or '') or 'gripperPOV', also where observations have no images: uint8 [size, size, 3]."""
        camera = camera or CAMERAS[0]
        if camera not in CAMERAS:
            raise UserError(f"unknown camera '{camera}'.{suggest(camera, CAMERAS)}")
        out = np.empty((1, size, size, 3), np.uint8)
        self._pictures.draw(self._held(env_id), (camera,), out)
        return out[0]

    def full_state(self, env_id: int) -> Array:
        """The state of one env as MetaWorld's scripted policies read it: float64 [39]."""
        return self._held(env_id).full_state

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Forget the environments."""
        self._worlds = [None] * self.num_envs

    def _held(self, env_id: int) -> World:
        check_env_ids([env_id], self.num_envs)
        world = self._worlds[env_id]
        if world is None:
            raise ValueError(f"env {env_id} holds no episode; reset it first")
        return world

    def _describe(self, tasks: Sequence[MetaWorldTask]) -> EnvInfo:
        setup = self._setup
        size = setup.image_size if setup.cameras else 0
        return EnvInfo(
            backend="metaworld",
            suite=tasks[0].suite,
            simulator=f"metaworld {load_metaworld()}, mujoco {mujoco.__version__}, reward {self._mode}",
            renderer=self._pictures.name if setup.cameras else "none",
            cameras=CAMERAS[: setup.cameras],
            image_shape=(size, size),
            proprio_dim=PROPRIO_DIM,
            state_dim=STATE_DIM,
            action_dim=ACTION_DIM,
            action_low=(-1.0,) * ACTION_DIM,
            action_high=(1.0,) * ACTION_DIM,
            control_hz=CONTROL_HZ,
            max_episode_steps=max(task.max_episode_steps for task in tasks),
        )


@dataclass(frozen=True, slots=True)
class MetaWorldFactory:
    """Call it with a number of envs to open a `MetaWorldVecEnv`, here or in the child of a `ProcessVecEnv`."""

    tasks: tuple[MetaWorldTask, ...]
    setup: Setup

    def __call__(self, num_envs: int) -> MetaWorldVecEnv:
        return MetaWorldVecEnv(self.tasks, num_envs, self.setup)

"""EnvPool behind the contract, exactly: an episode is its EpisodeSpec, whatever env it runs in and whatever ran before.

A pool ignores seeds after it was made, so every env has a pool of its own, made anew with the initial state's seed at
each reset.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.checks import check_env_ids, check_episodes
from embodied_rl.sim.envpool.pools import CAMERA, describe, draw, make_pool, read_reset, read_step
from embodied_rl.sim.envpool.tasks import EnvPoolTask
from embodied_rl.sim.envpool.throughput import EnvPoolStream
from embodied_rl.sim.step_reward import RewardMode, StepReward, choose_reward
from embodied_rl.sim.stepping import ChunkBook, StepOutcome, bounded_actions
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation

_TRIM_EVERY = 100


class _Episode:
    """The pool of one env, and how far its episode is."""

    def __init__(self, task: EnvPoolTask, seed: int, reward: StepReward) -> None:
        self.task, self.reward = task, reward
        self.pool: Any = make_pool(task, num_envs=1, num_threads=1, env_seed=[seed])
        self.state: Array = read_reset(self.pool.reset())
        self.live = True

    def receive(self) -> StepOutcome:
        """The outcome of the action that was sent last."""
        step = read_step(self.pool.recv(), self.task, [self.reward])
        self.state, self.live = step.shown(self.state), not step.outcome.over
        return step.outcome


class EnvPoolVecEnv:
    """`embodied_rl.vec_env.VecEnv` over EnvPool. Any env can hold any of the tasks.

    The state is the environment's observation, dicts joined in their order. The initial state alone decides how an
    episode begins, so the episodes of a group begin alike.

    Args:
        tasks: with states and actions of the same sizes.
        num_envs: N.
        reward, gamma: see `embodied_rl.sim.step_reward`; where success is paid, it ends the episode.
        image_size: also draw the default camera at H = W of this many pixels; None: no images.

    Example:
        >>> env = EnvPoolVecEnv(load_tasks("metaworld", ["reach-v3"]), num_envs=8)
        >>> env.reset([0], [EpisodeSpec(0, "metaworld/reach-v3", init_state=0, seed=1)])
        >>> env.step([0], torch.zeros(1, 4, 4)).steps_taken
        tensor([4], dtype=torch.int32)
    """

    def __init__(
        self,
        tasks: Sequence[EnvPoolTask],
        num_envs: int,
        *,
        reward: RewardMode = "auto",
        gamma: float = 1.0,
        image_size: int | None = None,
    ) -> None:
        if num_envs < 1:
            raise UserError("num_envs must be at least 1")
        self.num_envs = num_envs
        self.info = describe(tasks, reward, image_size, "exact episodes")
        self._tasks = {task.name: task for task in tasks}
        self._reward: RewardMode = reward
        self._gamma = gamma
        self._episodes: list[_Episode | None] = [None] * num_envs
        self._resets = 0

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; UserError for an unknown task or initial state."""
        check_env_ids(env_ids, self.num_envs)
        check_episodes(env_ids, episodes, self._tasks)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            task = self._tasks[spec.task]
            mode = choose_reward(self._reward, task.success_key is not None, task.name)
            self._episodes[env_id] = None  # first: the old pool's memory serves the new one
            seed = int(task.init_states[spec.init_state])
            self._episodes[env_id] = _Episode(task, seed, StepReward(mode, task.reward_scale, self._gamma))
            self._resets += 1
            if self._resets % _TRIM_EVERY == 0:
                _give_memory_back()

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env, all envs side by side.

        Raises:
            ValueError: for non-finite or misshapen actions, env ids that are none or come twice, and an env whose
                episode has ended.
        """
        arrays = bounded_actions(actions, len(env_ids), self.info)
        check_env_ids(env_ids, self.num_envs)
        episodes = [self._held(env_id) for env_id in env_ids]
        for env_id, episode in zip(env_ids, episodes, strict=True):
            if not episode.live:
                raise ValueError(f"env {env_id} holds no running episode; reset it first")
            episode.reward.begin_chunk(arrays.shape[1])
        book = ChunkBook(*arrays.shape[:2])
        for k in range(arrays.shape[1]):
            running = [row for row, episode in enumerate(episodes) if episode.live]
            for row in running:
                episodes[row].pool.send(arrays[row, k][None])
            for row in running:
                book.add(row, episodes[row].receive())
        return book.result()

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`; draws where images were asked for."""
        assert out.state is not None
        for row, env_id in enumerate(env_ids):
            episode = self._held(env_id)
            out.state[row] = torch.from_numpy(episode.state)
            out.instruction[row] = episode.task.instruction
            for camera, _ in enumerate(self.info.cameras):
                out.images[row, camera] = torch.from_numpy(draw(episode.pool, 0, self.info.image_shape[0]))

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Draw the camera 'default' (or ''), also where observations have no images: uint8 [size, size, 3]."""
        if camera not in ("", CAMERA):
            raise UserError(f"unknown camera '{camera}': EnvPool's tasks show '{CAMERA}'.")
        return draw(self._held(env_id).pool, 0, size)

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Stop the pools' threads."""
        self._episodes = [None] * self.num_envs

    def _held(self, env_id: int) -> _Episode:
        check_env_ids([env_id], self.num_envs)
        episode = self._episodes[env_id]
        if episode is None:
            raise ValueError(f"env {env_id} holds no episode; reset it first")
        return episode


def _give_memory_back() -> None:
    """The C library keeps the memory of pools that are gone, in pieces too small for new ones."""
    ctypes.CDLL(None).malloc_trim(0)


@dataclass(frozen=True, slots=True)
class EnvPoolFactory:
    """Call it with a number of envs to open one, here or in the child of a `ProcessVecEnv`; can be pickled.

    episodes: 'exact' opens an `EnvPoolVecEnv`, 'throughput' an `EnvPoolStream`; the rest are their arguments.
    """

    tasks: tuple[EnvPoolTask, ...]
    episodes: Literal["exact", "throughput"] = "exact"
    reward: RewardMode = "auto"
    gamma: float = 1.0
    image_size: int | None = None
    seed: int = 0

    @property
    def why_no_processes(self) -> str | None:
        """Why a `ProcessVecEnv` can't hold its envs, in one line; None where it can."""
        if self.episodes == "exact":
            return None
        return (
            "throughput episodes are of one pool in one process (each process would run the same ones, and begin "
            "again where it is replaced): open the factory itself, or take exact episodes."
        )

    def __call__(self, num_envs: int) -> EnvPoolVecEnv | EnvPoolStream:
        if self.episodes == "exact":
            return EnvPoolVecEnv(self.tasks, num_envs, reward=self.reward, gamma=self.gamma, image_size=self.image_size)
        if len(self.tasks) != 1 or self.image_size is not None:
            raise UserError("throughput episodes are of one task, without images: name one task, or take exact ones.")
        return EnvPoolStream(self.tasks[0], num_envs, seed=self.seed, reward=self.reward, gamma=self.gamma)

"""EnvPool as fast as it goes: one asynchronous pool, whose episodes are its own and not those of an EpisodeSpec."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.checks import check_env_ids
from embodied_rl.sim.envpool.pools import CAMERA, describe, draw, make_pool, read_reset, read_step
from embodied_rl.sim.envpool.tasks import EnvPoolTask
from embodied_rl.sim.step_reward import RewardMode, StepReward, choose_reward
from embodied_rl.sim.stepping import ChunkBook, bounded_actions
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation


class EnvPoolStream:
    """`embodied_rl.vec_env.VecEnv` over one asynchronous pool of N envs, but for what decides an episode.

    `reset` begins the env's next episode and **ignores the EpisodeSpec's init_state and seed**: an episode is (seed of
    the pool, env id, how many resets the env had). So results depend on num_envs and on the order of resets, groups of
    one initial state and held-out states do not exist, and a resumed run sees other episodes. Everything else is the
    contract's: nothing resets by itself, chunks stop at the end of their episode, and the envs of a call run
    asynchronously, each on to its next control step when it is done with the last.

    Calls from several threads wait for each other.

    Args:
        task: the task of all envs.
        num_envs: N.
        seed: env i draws from seed + i.
        num_threads: of the pool; None: EnvPool's choice.
        reward, gamma: see `embodied_rl.sim.step_reward`; where success is paid, it ends the episode.

    Example:
        >>> env = EnvPoolStream(load_tasks("metaworld", ["reach-v3"])[0], num_envs=16, seed=1)
        >>> env.info.simulator
        'envpool 1.2.5, throughput: episodes are (seed 1, env id, k), reward progress'
    """

    def __init__(
        self,
        task: EnvPoolTask,
        num_envs: int,
        *,
        seed: int = 0,
        num_threads: int | None = None,
        reward: RewardMode = "auto",
        gamma: float = 1.0,
    ) -> None:
        if num_envs < 1:
            raise UserError("num_envs must be at least 1")
        if not 0 <= seed < 2**31 - num_envs:
            raise UserError(f"EnvPool's seeds are 32-bit numbers, got {seed}")
        self.num_envs = num_envs
        stamp = describe([task], reward, None, f"throughput: episodes are (seed {seed}, env id, k)")
        self.info = replace(stamp, repeatable=False)
        self._task = task
        mode = choose_reward(reward, task.success_key is not None, task.name)
        self._rewards = [StepReward(mode, task.reward_scale, gamma) for _ in range(num_envs)]
        # recv returns as many rows as batch_size; with one, a call gets its own and waits for no other env
        self._pool: Any = make_pool(task, num_envs=num_envs, batch_size=1, num_threads=num_threads or 0, seed=seed)
        self._state: list[Array | None] = [None] * num_envs
        self._live = [False] * num_envs
        self._answered = True
        self._lock = threading.Lock()

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Begin the next episode of each of `env_ids`; of `episodes` only the tasks matter, and are checked."""
        check_env_ids(env_ids, self.num_envs)
        if len(env_ids) != len(episodes):
            raise ValueError(f"{len(env_ids)} envs for {len(episodes)} episodes")
        for spec in episodes:
            if spec.task != self._task.name:
                raise UserError(f"unknown task '{spec.task}': this pool holds {self._task.name}.")
        with self._lock, self._whole():
            for env_id in env_ids:
                self._state[env_id] = read_reset(self._pool.reset(np.asarray([env_id], np.int32)))
                self._live[env_id] = True
                self._rewards[env_id].reset()

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env; none waits for another one.

        Raises:
            ValueError: for non-finite or misshapen actions, env ids that are none or come twice, and an env whose
                episode has ended.
        """
        arrays = bounded_actions(actions, len(env_ids), self.info)
        check_env_ids(env_ids, self.num_envs)
        for env_id in env_ids:
            if not self._live[env_id]:
                raise ValueError(f"env {env_id} holds no running episode; reset it first")
        book = ChunkBook(*arrays.shape[:2])
        row_of = {env_id: row for row, env_id in enumerate(env_ids)}
        with self._lock, self._whole():
            for env_id in env_ids:
                self._rewards[env_id].begin_chunk(arrays.shape[1])
            self._pool.send(arrays[:, 0], np.asarray(env_ids, np.int32))
            running = len(env_ids)
            while running:
                step = read_step(self._pool.recv(), self._task, self._rewards)
                env_id, row = step.env_id, row_of[step.env_id]
                book.add(row, step.outcome)
                before = self._state[env_id]
                assert before is not None  # its episode runs
                self._state[env_id], self._live[env_id] = step.shown(before), not step.outcome.over
                taken = int(book.taken[row])
                if self._live[env_id] and taken < arrays.shape[1]:
                    self._pool.send(arrays[row, taken][None], np.asarray([env_id], np.int32))
                else:
                    running -= 1
        return book.result()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """An exchange with the pool; UserError if an earlier one was cut short, as by Ctrl-C: what the pool still owes
        would be taken for the answer of another env."""
        if not self._answered:
            raise UserError("a call was cut short, and EnvPool still owes its answers: open the environment again.")
        self._answered = False
        yield
        self._answered = True

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`."""
        assert out.state is not None
        check_env_ids(env_ids, self.num_envs)
        for row, env_id in enumerate(env_ids):
            state = self._state[env_id]
            if state is None:
                raise ValueError(f"env {env_id} holds no episode; reset it first")
            out.state[row] = torch.from_numpy(state)
            out.instruction[row] = self._task.instruction

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Draw the camera 'default' (or ''): uint8 [size, size, 3]."""
        if camera not in ("", CAMERA):
            raise UserError(f"unknown camera '{camera}': EnvPool's tasks show '{CAMERA}'.")
        check_env_ids([env_id], self.num_envs)
        with self._lock:
            return draw(self._pool, env_id, size)

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Stop the pool's threads."""
        self._pool = None

"""The env of the toy (see `tests.toy`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch

from embodied_rl.policy import action_array
from embodied_rl.rng import philox
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from tests.env_info import env_info

SIZE, HORIZON, CHUNK, ACTION_DIM, BINS = 4, 8, 2, 2, 5
TASKS = {"toy/reach": range(16), "toy/touch": range(16)}
HELDOUT = {"toy/reach": range(16, 28), "toy/touch": range(16, 28)}
INSTRUCTIONS = {"toy/reach": "reach the red corner", "toy/touch": "touch the red corner"}


class ToyEnv:
    """The world. breaks: episode ids whose first `breaks[id]` runs end in a simulator failure at their second chunk.

    shuffle_reward: pay a coin flip drawn from the episode's seed instead of the success. broken: task and initial state
    of episodes that fail in their second chunk, whatever they do; of those in `unseen` the position is NaN from the
    reset on.
    """

    def __init__(
        self,
        num_envs: int,
        *,
        breaks: dict[int, int] | None = None,
        shuffle_reward: bool = False,
        broken: Collection[tuple[str, int]] = (),
        unseen: Collection[tuple[str, int]] = (),
    ) -> None:
        self.num_envs = num_envs
        self.info = env_info("toy", ACTION_DIM, image_shape=(SIZE, SIZE), proprio_dim=2, max_episode_steps=HORIZON)
        self.started: list[EpisodeSpec] = []
        self._breaks = dict(breaks or {})
        self._shuffle_reward = shuffle_reward
        self._broken, self._unseen = broken, unseen
        self._spec: list[EpisodeSpec | None] = [None] * num_envs
        self._shown = [""] * num_envs
        self._position = np.zeros((num_envs, 2), dtype=np.float32)
        self._goal = np.zeros((num_envs, 2), dtype=np.float32)
        self._steps = np.zeros(num_envs, dtype=np.int32)
        self._doomed = np.zeros(num_envs, dtype=bool)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, spec in zip(env_ids, episodes, strict=True):
            empty = self._spec[env_id] is None or bool(np.isnan(self._position[env_id]).any())  # such is given up
            assert empty, f"env {env_id} is not empty"
            self.started.append(spec)
            self._spec[env_id] = spec
            self._shown[env_id] = INSTRUCTIONS[spec.task]
            self._position[env_id] = philox(99, spec.init_state).uniform(-0.3, 0.3, 2)
            right, up = spec.init_state % 2, spec.init_state // 2 % 2
            self._goal[env_id] = (1.5 * right - 0.75, 1.5 * up - 0.75)
            self._steps[env_id] = 0
            self._doomed[env_id] = self._breaks.get(spec.episode_id, 0) > 0
            if self._doomed[env_id]:
                self._breaks[spec.episode_id] -= 1
            self._doomed[env_id] |= (spec.task, spec.init_state) in self._broken
            if (spec.task, spec.init_state) in self._unseen:
                self._position[env_id] = np.nan

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        moves = action_array(actions)
        count, chunk = moves.shape[:2]
        reward = np.zeros((count, chunk), dtype=np.float32)
        success = np.zeros(count, dtype=bool)
        taken = np.zeros(count, dtype=np.int32)
        failed = np.zeros(count, dtype=bool)
        for row, env_id in enumerate(env_ids):
            spec = self._spec[env_id]
            assert spec is not None, f"env {env_id} is empty"
            failed[row] = self._doomed[env_id] and self._steps[env_id] > 0
            for k in range(chunk):
                if success[row] or self._steps[env_id] >= HORIZON:
                    break
                self._position[env_id] = np.clip(self._position[env_id] + 0.25 * moves[row, k].clip(-1, 1), -1, 1)
                self._steps[env_id] += 1
                taken[row] += 1
                success[row] = np.abs(self._position[env_id] - self._goal[env_id]).max() < 0.3
                reward[row, k] = float(success[row])
            over = success[row] or self._steps[env_id] >= HORIZON
            if over and self._shuffle_reward:
                reward[row] = 0
                reward[row, taken[row] - 1] = float(philox(spec.seed, 7).integers(2))
        truncated = ~success & (self._steps[list(env_ids)] >= HORIZON)
        for row, env_id in enumerate(env_ids):
            if success[row] or truncated[row] or failed[row]:
                self._spec[env_id] = None
        return ChunkResult.from_numpy(
            reward=reward,
            terminated=success.copy(),
            truncated=truncated,
            success=success,
            steps_taken=taken,
            failed=failed,
        )

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        for row, env_id in enumerate(env_ids):
            out.images[row, 0] = torch.from_numpy(self.frame(env_id, "front", SIZE))
            out.proprio[row] = torch.from_numpy(self._position[env_id])
            out.instruction[row] = self._shown[env_id]

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        image = np.zeros((size, size, 3), dtype=np.uint8)
        column, line = ((self._goal[env_id] + 1) / 2 * size).astype(int)
        image[line, column, 0] = 255
        return image

    def new_observation(self, rows: int) -> Observation:
        return self.info.new_observation(rows)

    def close(self) -> None:
        pass

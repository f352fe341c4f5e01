"""N points; an action moves a point by up to 0.25 in x and y, and the goal is a corner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from embodied_rl.rng import philox
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo

CORNERS = {"near": 0.5, "far": 0.9}
HORIZON = 12


class PointEnv:
    """tasks: of CORNERS. cameras: that show the point; size: of their pictures. proprio, action: numbers of each."""

    def __init__(
        self,
        num_envs: int,
        suite: str = "point",
        tasks: Sequence[str] = tuple(CORNERS),
        radius: float = 0.3,
        cameras: tuple[str, ...] = (),
        size: int = 16,
        proprio: int = 4,
        action: int = 2,
    ) -> None:
        self.num_envs, self._radius, self._size = num_envs, radius, size
        self.train_states = {f"{suite}/{name}": range(16) for name in tasks}
        self.heldout_states = {f"{suite}/{name}": range(16, 20) for name in tasks}
        self.info = EnvInfo(
            backend="numpy",
            suite=suite,
            simulator="point 1",
            renderer="numpy",
            cameras=cameras,
            image_shape=(size, size),
            proprio_dim=proprio,
            action_dim=action,
            action_low=(-1.0,) * action,
            action_high=(1.0,) * action,
            control_hz=20.0,
            max_episode_steps=HORIZON,
        )
        self._position, self._goal = (np.zeros((num_envs, 2), np.float32) for _ in range(2))
        self._steps = np.zeros(num_envs, np.int32)
        self._task = [""] * num_envs

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, episode in zip(env_ids, episodes, strict=True):
            random = philox(7, episode.init_state)
            self._task[env_id] = episode.task.rpartition("/")[2]
            self._position[env_id] = random.uniform(-0.2, 0.2, 2)
            self._goal[env_id] = random.choice([-1, 1], 2) * CORNERS[self._task[env_id]]
            self._steps[env_id] = 0

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        ids, moves = np.asarray(env_ids), actions.cpu().numpy()[..., :2].clip(-1, 1)
        count, chunk = moves.shape[:2]
        reward, success = np.zeros((count, chunk), np.float32), np.zeros(count, bool)
        taken = np.zeros(count, np.int32)
        for k in range(chunk):
            running = ~success & (self._steps[ids] < HORIZON)
            moved = ids[running]
            self._position[moved] = (self._position[moved] + 0.25 * moves[running, k]).clip(-1, 1)
            self._steps[moved] += 1
            taken += running
            success |= running & (np.abs(self._position[ids] - self._goal[ids]).max(axis=1) < self._radius)
            reward[:, k] = running & success
        return ChunkResult.from_numpy(
            reward=reward,
            terminated=success.copy(),
            truncated=~success & (self._steps[ids] >= HORIZON),
            success=success,
            steps_taken=taken,
            failed=np.zeros(count, bool),
        )

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        for row, env_id in enumerate(env_ids):
            for camera in range(len(self.info.cameras)):
                out.images[row, camera] = torch.from_numpy(self.frame(env_id, "", self._size))
            out.proprio[row, :4] = torch.from_numpy(np.concatenate([self._position[env_id], self._goal[env_id]]))
            out.instruction[row] = f"reach the {self._task[env_id]} corner"

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        image = np.zeros((size, size, 3), np.uint8)
        for where, channel in ((self._goal[env_id], 0), (self._position[env_id], 1)):
            column, row = np.minimum((where + 1) / 2 * size, size - 1).astype(int)
            image[row, column, channel] = 255
        return image

    def new_observation(self, rows: int) -> Observation:
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Nothing to free."""

    def way(self, env_id: int) -> Array:
        """The action that brings a point to its goal: what an expert knows."""
        action = np.zeros(self.info.action_dim)
        action[:2] = np.clip((self._goal[env_id] - self._position[env_id]) / 0.25, -1, 1)
        return action

"""A stand-in for the simulator, for tests of whole commands where physics does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from embodied_rl.factory.view import View
from embodied_rl.rng import philox
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from tests.env_info import env_info

HORIZON = 16


class StandIn:
    """Two chunks an episode; it succeeds if the mean of the first action component is positive at the end."""

    def __init__(self, num_envs: int, size: int, cameras: int) -> None:
        self.num_envs = num_envs
        views = ("agentview", "robot0_eye_in_hand")[:cameras]
        self.info = env_info(
            "tabletop",
            7,
            simulator="stand-in 1",
            renderer="flat",
            cameras=views,
            image_shape=(size, size),
            proprio_dim=8,
            max_episode_steps=HORIZON,
        )
        self.specs: dict[int, EpisodeSpec] = {}
        self._steps: dict[int, int] = {}

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self.specs[env_id], self._steps[env_id] = spec, 0

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        count, chunk = actions.shape[:2]
        for env_id in env_ids:
            self._steps[env_id] += chunk
        over = torch.tensor([self._steps[env_id] >= HORIZON for env_id in env_ids])
        result = ChunkResult.zeros(count, chunk)
        result.success = result.terminated = over & (actions[:, -1, 0] > 0)
        result.truncated = over & ~result.success
        result.reward[:, -1] = result.success.float()
        result.steps_taken[:] = chunk
        return result

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        for row, env_id in enumerate(env_ids):
            spec = self.specs[env_id]
            draw = philox(spec.init_state, self._steps[env_id])
            out.images[row] = torch.from_numpy(draw.integers(0, 256, out.images.shape[1:], dtype=np.uint8))
            out.proprio[row] = torch.from_numpy(draw.standard_normal(8))
            out.instruction[row] = spec.task.partition("/")[2].replace("_", " ")

    def new_observation(self, rows: int) -> Observation:
        return self.info.new_observation(rows)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        return np.full((size, size, 3), self._steps[env_id] * 10, np.uint8)

    def close(self) -> None:
        pass


def open_stand_in(tasks: Any, config: Any, view: View) -> StandIn:
    """Takes the place of `embodied_rl.factory.scenes._simulated`."""
    assert view.cameras is not None
    return StandIn(config.num_envs, view.image_size, view.cameras)


def words(checkpoint: Path, run: Path, *more: str) -> list[str]:
    """A small `train` command."""
    small = [
        "--suite",
        "tabletop_object",
        "--policy.checkpoint",
        str(checkpoint),
        "--output",
        str(run),
        "--iterations",
        "2",
        "--env.num-envs",
        "4",
        "--rollout.episodes-per-iteration",
        "8",
        "--algorithm",
        "grpo",
        "--algorithm.group-size",
        "4",
        "--evaluation.states-per-task",
        "2",
        "--checkpoint.every",
        "1",
        "--videos",
        "1",
        "--num-threads",
        "1",
        "--algorithm.success-rate-range",
        "None",
    ]
    return ["train", "tabletop", *small, *more]


def untimed(run: Path) -> list[dict[str, Any]]:
    """The metrics that a repeated run must repeat."""
    return [
        {name: value for name, value in row.items() if not name.startswith(("time/", "cpu/", "speed/"))}
        for row in read_metrics(run / "metrics.jsonl")
    ]

"""The toy with pictures that tell when they were taken, and what every episode showed at its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from embodied_rl.policy import Policy
from embodied_rl.types import Array, ChunkResult, Observation, RolloutBatch
from embodied_rl.vec_env import VecEnv
from tests.embodied_rl.scheduler.toys import Pause, SlowEnv, no_pause
from tests.toy import SIZE, ToyPolicy


class Painted(SlowEnv):
    """Its pictures show where the point is, and after how many steps.

    ends: by episode, what the world looked like right after the last step, whoever looks; uint8 [1, H, W, 3].
    lost: episodes whose simulator dies between the last step and the look that should follow, until they are taken out
    of the set. looks: rows that were observed.
    """

    def __init__(
        self,
        num_envs: int,
        pause: Pause = no_pause,
        *,
        ends: dict[int, Tensor] | None = None,
        breaks: dict[int, int] | None = None,
        lost: set[int] | None = None,
    ) -> None:
        super().__init__(num_envs, pause, breaks)
        self.ends = {} if ends is None else ends
        self.looks = 0
        self.lost = set() if lost is None else lost
        self._gone: set[int] = set()

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        specs = [self._spec[env_id] for env_id in env_ids]
        result = super().step(env_ids, actions)
        over = ((result.terminated | result.truncated) & ~result.failed).tolist()
        for env_id, spec, ended in zip(env_ids, specs, over, strict=True):
            self._gone.discard(env_id)
            if not ended or spec is None:
                continue
            if spec.episode_id in self.lost:
                self.lost.remove(spec.episode_id)
                self._gone.add(env_id)
            else:
                self.ends[spec.episode_id] = torch.from_numpy(self.frame(env_id, "front", SIZE))[None]
        return result

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        self.looks += len(env_ids)
        super().observe(env_ids, out)
        return [row for row, env_id in enumerate(env_ids) if env_id in self._gone and self._spec[env_id] is None]

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        image = super().frame(env_id, camera, size)
        image[0, 0, 1] = 10 * self._steps[env_id]
        image[0, 1, 1:] = ((self._position[env_id] + 1) * 127).astype(np.uint8)
        return image


@dataclass
class PaintedFactory:
    """Opens such worlds for workers, which share `ends` and `lost`."""

    ends: dict[int, Tensor] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def __call__(self) -> tuple[VecEnv, Policy]:
        return Painted(3, ends=self.ends, lost=self.lost), ToyPolicy()


def check_ends(batch: RolloutBatch, ends: dict[int, Tensor]) -> None:
    """Every episode's final images are what its env showed right after its last step, to the bit."""
    assert batch.final_images is not None
    assert batch.final_images.shape == (len(batch.episodes), 1, SIZE, SIZE, 3)
    assert batch.final_images.dtype == torch.uint8
    for number, episode in enumerate(batch.episodes):
        assert torch.equal(batch.final_images[number], ends[episode.spec.episode_id]), episode

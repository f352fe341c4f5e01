"""Memory of the rows that a rollout records, on the env's device: rendered in place and copied once, into the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from embodied_rl.types import ActOutput, EpisodeResult, Observation, RolloutBatch


@dataclass(slots=True)
class StepRecord:
    """One decision of N envs.

    Args:
        block: the pool's memory that `obs` is a view of.
        obs: what the policy saw.
        act: what it decided, in host memory but for the actions.
        reward: float32 [N], summed over the chunk.
        mask: bool [N, L], terms of executed control steps.
        refcount: rows that a kept or running episode still refers to.
        version: of the policy that acted, where it may differ from row to row of a batch.
    """

    block: Observation
    obs: Observation
    act: ActOutput
    reward: torch.Tensor
    mask: torch.Tensor
    refcount: int
    version: int | None = None


@dataclass(slots=True)
class Trajectory:
    """A finished episode and its rows (a step and a row of it), in time order.

    final_images: uint8 [V, H, W, 3] in host memory, what it shows after its last step; None where nobody asks for it.
    """

    result: EpisodeResult
    steps: list[tuple[StepRecord, int]] = field(default_factory=list)
    final_images: torch.Tensor | None = None


class ObservationPool:
    """Blocks of rows that the simulator renders into; a block is used again once no row of it is needed.

    Args:
        new_observation: allocates a block, as `VecEnv.new_observation` does on the env's device.
        capacity: rows of a block.
    """

    def __init__(self, new_observation: Callable[[int], Observation], capacity: int) -> None:
        self._new_observation = new_observation
        self._capacity = capacity
        self._free: list[Observation] = []

    def take(self, rows: int) -> tuple[Observation, Observation]:
        """Return a block and a view of its first `rows` rows to render into."""
        block = self._free.pop() if self._free else self._new_observation(self._capacity)
        return block, block.rows(slice(0, rows))

    def give_back(self, block: Observation) -> None:
        """Let a block be used again."""
        self._free.append(block)

    def release(self, rows: Sequence[tuple[StepRecord, int]]) -> None:
        """Forget rows of an episode that does not count."""
        for step, _ in rows:
            step.refcount -= 1
            if step.refcount == 0:
                self.give_back(step.block)


def gather(trajectories: Sequence[Trajectory], version: int) -> RolloutBatch:
    """Copy the rows of `trajectories` into one batch, episode by episode, each in time order.

    Raises:
        ValueError: without rows, or where only some episodes have final images.
    """
    rows = [row for trajectory in trajectories for row in trajectory.steps]
    if not rows:
        raise ValueError("there are no rows to gather")
    steps = list({id(step): step for step, _ in rows}.values())
    first = dict(zip((id(step) for step in steps), accumulate((len(s.reward) for s in steps), initial=0), strict=False))
    flat = torch.tensor([first[id(step)] + row for step, row in rows])
    acts = [step.act for step in steps]
    values = [act.value for act in acts if act.value is not None]
    lengths = [len(trajectory.steps) for trajectory in trajectories]
    versions = [step.version for step, _ in rows if step.version is not None]
    finals = [trajectory.final_images for trajectory in trajectories if trajectory.final_images is not None]
    if finals and len(finals) != len(trajectories):
        raise ValueError("some episodes have pictures after their last step, and others none")
    return RolloutBatch(
        # row by row: joining whole steps first would copy images twice and hold those of other episodes
        images=torch.stack([step.obs.images[row] for step, row in rows]),
        proprio=_select([step.obs.proprio for step in steps], flat),
        instruction=[step.obs.instruction[row] for step, row in rows],
        replay={key: _select([act.replay[key] for act in acts], flat) for key in acts[0].replay},
        log_prob=_select([act.log_prob for act in acts], flat),
        value=_select(values, flat) if len(values) == len(acts) else None,
        reward=_select([step.reward for step in steps], flat),
        mask=_select([step.mask for step in steps], flat),
        episode=torch.repeat_interleave(torch.arange(len(trajectories)), torch.tensor(lengths)),
        episodes=[trajectory.result for trajectory in trajectories],
        version=version,
        row_version=torch.tensor(versions) if len(versions) == len(rows) else None,
        final_images=torch.stack(finals) if finals else None,
    )


def _select(parts: list[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """Rows of all `parts`, numbered one part after the other."""
    return torch.cat(parts).index_select(0, rows.to(parts[0].device))

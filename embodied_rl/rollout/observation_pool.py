"""Memory of the rows that a rollout records, on the env's device: rendered in place and copied once, into the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from embodied_rl.types import ActOutput, EpisodeResult, Observation, RolloutBatch

_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class StepRecord:
    """One decision of N envs; equal only to itself.

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
        ValueError: without rows, or where only some of them have values, versions or final images.
    """
    rows = [row for trajectory in trajectories for row in trajectory.steps]
    if not rows:
        raise ValueError("there are no rows to gather")
    steps, index = _numbered(rows)
    lengths = torch.tensor([len(trajectory.steps) for trajectory in trajectories])
    versions = _all_or_none([step.version for step, _ in rows], "a version")
    finals = _all_or_none([trajectory.final_images for trajectory in trajectories], "final images")

    def picked(parts: Sequence[torch.Tensor]) -> torch.Tensor:
        # Proprio may be on a GPU, and stays there.
        return torch.cat(list(parts)).index_select(0, index.to(parts[0].device))

    values = _all_or_none([step.act.value for step in steps], "a value")
    return RolloutBatch(
        # row by row: joining whole steps first would copy images twice and hold those of other episodes
        images=torch.stack([step.obs.images[row] for step, row in rows]),
        proprio=picked([step.obs.proprio for step in steps]),
        instruction=[step.obs.instruction[row] for step, row in rows],
        replay={key: picked([step.act.replay[key] for step in steps]) for key in steps[0].act.replay},
        log_prob=picked([step.act.log_prob for step in steps]),
        value=None if values is None else picked(values),
        reward=picked([step.reward for step in steps]),
        mask=picked([step.mask for step in steps]),
        episode=torch.repeat_interleave(torch.arange(len(trajectories)), lengths),
        episodes=[trajectory.result for trajectory in trajectories],
        version=version,
        row_version=None if versions is None else torch.tensor(versions),
        final_images=None if finals is None else torch.stack(finals),
    )


def _numbered(rows: Sequence[tuple[StepRecord, int]]) -> tuple[list[StepRecord], torch.Tensor]:
    """The steps that `rows` are of, each once, and where each row is among all rows of these; int64 [B]."""
    # Rows of several episodes share a step: it is joined once.
    first: dict[StepRecord, int] = {}
    count = 0
    for step, _ in rows:
        if step not in first:
            first[step] = count
            count += len(step.reward)
    return list(first), torch.tensor([first[step] + row for step, row in rows])


def _all_or_none(values: Sequence[_T | None], what: str) -> list[_T] | None:
    """All values, or None where there is none; `what` they are, for the ValueError where only some are there."""
    found = [value for value in values if value is not None]
    if found and len(found) != len(values):
        raise ValueError(f"only some have {what}")
    return found or None

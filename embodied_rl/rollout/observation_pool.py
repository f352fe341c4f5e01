"""Memory of the rows that a rollout records: rendered once, in place, and gathered once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from embodied_rl.types import ActOutput, Array, EpisodeResult, Observation, RolloutBatch


@dataclass(slots=True)
class StepRecord:
    """One decision of n envs: the observation as rendered, the policy's output, what the chunk earned.

    reward float32 [n]; mask bool [n, L]. `live` counts the rows that a kept or running episode still refers to.
    version: of the policy that acted, where it may differ from row to row of a batch.
    """

    block: Observation
    obs: Observation
    act: ActOutput
    reward: Array
    mask: Array
    refcount: int
    version: int | None = None


@dataclass(slots=True)
class Trajectory:
    """A finished episode and where its rows are, in time order."""

    result: EpisodeResult
    steps: list[tuple[StepRecord, int]] = field(default_factory=list)


class ObservationPool:
    """Blocks of `capacity` rows that the simulator renders into; a block is used again once no row of it is needed."""

    def __init__(self, new_observation: Callable[[int], Observation], capacity: int) -> None:
        self._new_observation = new_observation
        self._capacity = capacity
        self._free: list[Observation] = []

    def take(self, rows: int) -> tuple[Observation, Observation]:
        """Return a block and a view of its first `rows` rows to render into."""
        block = self._free.pop() if self._free else self._new_observation(self._capacity)
        return block, Observation(block.images[:rows], block.proprio[:rows], [""] * rows)

    def give_back(self, block: Observation) -> None:
        """Let a block be used again."""
        self._free.append(block)

    def release(self, rows: Sequence[tuple[StepRecord, int]]) -> None:
        """Forget rows of an episode that does not count."""
        for round_, _ in rows:
            round_.refcount -= 1
            if round_.refcount == 0:
                self.give_back(round_.block)


def gather(recordings: Sequence[Trajectory], version: int) -> RolloutBatch:
    """Copy the rows of `recordings` into one batch, episode by episode, each in time order.

    Raises ValueError without rows.
    """
    rows = [row for recording in recordings for row in recording.steps]
    if not rows:
        raise ValueError("there are no rows to gather")
    rounds = list({id(round_): round_ for round_, _ in rows}.values())
    offset = dict(zip((id(r) for r in rounds), np.cumsum([0, *(len(r.reward) for r in rounds)]), strict=False))
    flat = torch.tensor([int(offset[id(round_)]) + row for round_, row in rows])
    acts = [round_.act for round_ in rounds]
    values = [act.value for act in acts if act.value is not None]
    lengths = [len(recording.steps) for recording in recordings]
    versions = [round_.version for round_, _ in rows if round_.version is not None]
    return RolloutBatch(
        images=torch.from_numpy(np.stack([round_.obs.images[row] for round_, row in rows])),
        proprio=torch.from_numpy(np.stack([round_.obs.proprio[row] for round_, row in rows])),
        instruction=[round_.obs.instruction[row] for round_, row in rows],
        replay={key: torch.cat([act.replay[key] for act in acts])[flat] for key in acts[0].replay},
        log_prob=torch.cat([act.log_prob for act in acts])[flat],
        value=torch.cat(values)[flat] if len(values) == len(acts) else None,
        reward=torch.from_numpy(np.concatenate([r.reward for r in rounds]))[flat],
        mask=torch.from_numpy(np.concatenate([r.mask for r in rounds]))[flat],
        episode=torch.repeat_interleave(torch.arange(len(recordings)), torch.tensor(lengths)),
        episodes=[recording.result for recording in recordings],
        version=version,
        row_version=torch.tensor(versions) if len(versions) == len(rows) else None,
    )

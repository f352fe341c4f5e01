"""From demonstrations to SFT batches: action chunks, episode split, reproducible order, random shift."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.rng import DataStream, philox
from embodied_rl.types import Array


@dataclass(slots=True)
class SftBatch:
    """images uint8 [N,V,H,W,3]; proprio float32 [N,P]; instruction: N strings; actions float32 [N,K,A].

    Actions are in [-1, 1], or in the robot's own units where the data set's are. action_mask: bool [N,K], the control
    steps to learn from (see `ChunkDataset`); None: all. key: of the data set's statistics. drop_history: bool [N], rows
    that are predicted without their earlier actions; None: none.
    """

    images: torch.Tensor
    proprio: torch.Tensor
    instruction: list[str]
    actions: torch.Tensor
    action_mask: torch.Tensor | None = None
    key: str = "default"
    drop_history: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.instruction)

    def rows(self, index: torch.Tensor) -> SftBatch:
        """Some of its samples: int64 [n] in [0, len(self))."""
        return SftBatch(
            self.images[index],
            self.proprio[index],
            [self.instruction[row] for row in index.tolist()],
            self.actions[index],
            None if self.action_mask is None else self.action_mask[index],
            self.key,
            None if self.drop_history is None else self.drop_history[index],
        )


@dataclass(frozen=True, slots=True)
class Targets:
    """Control steps of all samples' chunks. masked: those past the end of an episode, or after a person gave the arm
    back."""

    total: int
    masked: int

    def describe(self) -> list[str]:
        """What is done past the ends of episodes, in words; empty where no chunk goes there."""
        n, what = self.masked, "lie past the end of their episode, or of a person's part, and are left out"
        return [f"{n} of {self.total} targets ({n / self.total:.0%}) {what}"] if n else []


@dataclass(frozen=True, slots=True)
class ChunkDataset:
    """The frames of some episodes that start a chunk; frames stay in `data` and chunks are cut when asked for.

    A frame does so unless the demonstrator was pushed off course within the chunk: its later labels would answer a push
    that the first frame does not show.

    Steps past the end of an episode are masked, as `action_is_pad` is in LeRobot: nobody showed them. After a success,
    too: a policy that learns to stay from there on slows down and stays before it. So are steps after a person gave the
    arm back within the episode: what the policy did then is not what the person would have done.

    rows int64 [n]: first frame of each sample. episode int64 [F]: episode of each frame.
    """

    data: Demonstrations
    chunk_len: int
    rows: Array
    episode: Array

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, samples: Array) -> SftBatch:
        """The batch of the given sample numbers, int64 [N] in [0, len(self))."""
        rows = self.rows[samples]
        episodes = self.episode[rows]
        known = self._known(rows)
        return SftBatch(
            torch.from_numpy(self.data.images[rows]),
            torch.from_numpy(self.data.state[rows]),
            [self.data.instruction[row] for row in rows],
            torch.from_numpy(self._actions(rows, episodes)),
            None if known.all() else torch.from_numpy(known),
        )

    def _actions(self, rows: Array, episodes: Array) -> Array:
        data = self.data
        stays = np.full(len(rows), not data.own_units)  # flow matching sees what it does not learn from
        chunks = action_chunks(data.action, rows, data.starts[episodes + 1], self.chunk_len, stays)
        return chunks if data.own_units else np.clip(chunks, -1.0, 1.0, out=chunks)

    def targets(self) -> Targets:
        """How many targets the samples have, and how many of them lie past the end of their episode or are masked."""
        known = self._known(self.rows)
        return Targets(known.size, int((~known).sum()))

    def _known(self, rows: Array) -> Array:
        """bool [N,K]: steps of which the data says what to do."""
        steps = rows[:, None] + np.arange(self.chunk_len)
        last = self.data.starts[self.episode[rows] + 1][:, None] - 1
        ended = steps > last
        human = self.data.columns.human[np.minimum(steps, last)]
        given_back = np.zeros_like(ended)
        given_back[:, 1:] = np.logical_or.accumulate(human[:, :-1] & ~human[:, 1:], axis=1)
        return ~ended & ~given_back


def action_chunks(action: Array, rows: Array, ends: Array, chunk_len: int, stays: Array) -> Array:
    """Cut chunks float32 [N,K,A] from `action` [F,A]: rows[i], rows[i] + 1, ... below ends[i].

    Past the end of the episode the last action is repeated; where `stays` bool [N] the arm stays (zeros: a delta action
    of no motion) and only the gripper keeps its last command.
    """
    wanted = rows[:, None] + np.arange(chunk_len)
    last = ends[:, None] - 1
    chunks = action[np.minimum(wanted, last)]
    chunks[..., :-1][(wanted > last) & stays[:, None]] = 0.0
    return chunks


def split(data: Demonstrations, chunk_len: int, *, validation: float, seed: int) -> tuple[ChunkDataset, ChunkDataset]:
    """Split by episode into (train, validation); `validation` is the share of episodes of each instruction, rounded.

    An episode counts for the instruction that it begins with; the only one of an instruction goes to train.
    Raises UserError when `validation` is outside [0, 1).
    """
    held_out = held_out_episodes(data, validation=validation, seed=seed)
    episode = np.repeat(np.arange(len(data)), np.diff(data.starts))
    usable = undisturbed(data.pushed, data.starts[episode + 1], chunk_len)
    parts = (np.flatnonzero((held_out[episode] == flag) & usable) for flag in (False, True))
    train, val = (ChunkDataset(data, chunk_len, rows, episode) for rows in parts)
    return train, val


def held_out_episodes(data: Demonstrations, *, validation: float, seed: int) -> Array:
    """bool [E]: the episodes that `split` gives to validation; UserError when `validation` is outside [0, 1)."""
    if not 0.0 <= validation < 1.0:
        raise UserError(f"--validation must be in [0, 1), got {validation}")
    order = philox(seed, DataStream.SPLIT).permutation(len(data))
    held_out = np.zeros(len(data), dtype=bool)
    first = [data.instruction[row] for row in data.starts[:-1]]
    for instruction in dict.fromkeys(first):
        members = [e for e in order if first[e] == instruction]
        held_out[members[: min(round(validation * len(members)), len(members) - 1)]] = True
    return held_out


def undisturbed(pushed: Array, ends: Array, chunk_len: int) -> Array:
    """bool [F]: no frame of the chunk that starts there was pushed; ends int64 [F]: end of its episode."""
    total = np.concatenate([[0], np.cumsum(pushed)])
    first = np.arange(len(pushed))
    return total[np.minimum(first + chunk_len, ends)] == total[first]


def batch_samples(count: int, batch_size: int, step: int, seed: int) -> Array:
    """Sample numbers int64 [batch_size] of training step `step`: a pure function, so a resumed run goes on exactly."""
    return walk(count, step * batch_size, batch_size, seed)


def walk(count: int, first: int, length: int, seed: int, part: int = 0) -> Array:
    """Places first to first + `length` of an endless row of permutations of `count`: int64 [length].

    part: number of the data set among several.
    """
    parts, taken = [], 0
    while taken < length:
        epoch, offset = divmod(first + taken, count)
        order = philox(seed, DataStream.ORDER, epoch, part).permutation(count)
        members = order[offset : offset + length - taken]
        parts.append(members)
        taken += len(members)
    return np.concatenate(parts)


def random_shift(images: torch.Tensor, pixels: int, seed: int, step: int, part: int = 0) -> torch.Tensor:
    """Pad-and-crop augmentation of uint8 [N,V,H,W,3]: each image moves by up to `pixels` a side, its edge repeated.

    From DrQ (Kostrikov et al. 2020, section 3.1). The draw depends on (seed, step, part) only.
    """
    if pixels == 0:
        return images
    n, v, h, w, _ = images.shape
    shift = philox(seed, DataStream.SHIFT, step, part).integers(-pixels, pixels + 1, size=(2, n, v, 1))
    dy, dx = torch.from_numpy(shift)
    y = (torch.arange(h) + dy).clamp(0, h - 1)
    x = (torch.arange(w) + dx).clamp(0, w - 1)
    rows, cameras = torch.arange(n)[:, None, None, None], torch.arange(v)[None, :, None, None]
    return images[rows, cameras, y[..., :, None], x[..., None, :]]


def drop_history_rows(count: int, share: float, seed: int, step: int, part: int = 0) -> torch.Tensor | None:
    """bool [count]: rows that are predicted without their earlier actions, `share` of them on average, or None."""
    if share == 0.0:
        return None
    return torch.from_numpy(philox(seed, DataStream.DROP_HISTORY, step, part).random(count) < share)

"""Splitting a batch into its groups, joining groups into one batch, and batches without their frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import Any

import torch

from embodied_rl.types import RolloutBatch, join_rows

_LEFT_OUT = ("advantage", "returns", "info")
"""What an algorithm and the rollout say of a batch as a whole: it says nothing of its parts."""


def split_groups(batch: RolloutBatch) -> Iterator[RolloutBatch]:
    """Yield the groups of a batch, in its order, as views of its memory."""
    row = first = 0
    for _, members in groupby(batch.episodes, key=lambda episode: episode.spec.group):
        episodes = list(members)
        end = row + sum(episode.num_decisions for episode in episodes)
        yield _rows(batch, row, end, first, first + len(episodes))
        row, first = end, first + len(episodes)


def _rows(batch: RolloutBatch, start: int, end: int, first: int, last: int) -> RolloutBatch:
    """Rows start, ..., end - 1, which are those of episodes first, ..., last - 1."""
    frames, frame_row = slice(start, end), None
    if batch.frame_row is not None:
        frame_row = batch.frame_row[start:end]
        here = frame_row[frame_row >= 0]
        frames = slice(int(here.min()), int(here.max()) + 1) if len(here) else slice(0, 0)
        frame_row = torch.where(frame_row >= 0, frame_row - frames.start, -1)
    found: dict[str, Any] = {
        "images": batch.images[frames],
        "replay": {key: tensor[frames] for key, tensor in batch.replay.items()},
        "episode": batch.episode[start:end] - first,
        "episodes": batch.episodes[first:last],
        "version": batch.version,
        "frame_row": frame_row,
        "final_images": None if batch.final_images is None else batch.final_images[first:last],
    }
    rows: dict[str, Any] = {name: getattr(batch, name) for name in _rows_apart_from(found)}
    found |= {name: None if value is None else value[start:end] for name, value in rows.items()}
    return RolloutBatch(**found)


def _rows_apart_from(special: Iterable[str]) -> list[str]:
    """Fields of a batch that have one entry a row, but for `special` and for what is left out of parts."""
    return [each.name for each in fields(RolloutBatch) if each.name not in (*special, *_LEFT_OUT)]


def without_frames(batch: RolloutBatch) -> RolloutBatch:
    """A batch without what only forward passes and reward models read: images and replay data."""
    return replace(batch, images=torch.empty(len(batch), 0), replay={}, frame_row=None, final_images=None)


def frames_elsewhere(batch: RolloutBatch, kept: int = 0) -> RolloutBatch:
    """A batch as a rank has it that did not run its episodes: frames of the first `kept` rows only, all on the CPU."""
    frame_row = torch.full((len(batch),), -1)
    frame_row[:kept] = torch.arange(kept)
    return replace(
        batch,
        images=batch.images[:kept].cpu().clone(),
        proprio=batch.proprio.cpu(),
        replay={key: tensor[:kept].cpu().clone() for key, tensor in batch.replay.items()},
        frame_row=frame_row,
    )


def join_batches(parts: Sequence[RolloutBatch]) -> RolloutBatch:
    """Concatenate batches; a single one is returned as it is. Advantages, returns and metrics are left out.

    Raises:
        ValueError: only some have values, versions of rows, or another field that has an entry a row.
    """
    if len(parts) == 1:
        return parts[0]
    framed = [part for part in parts if len(part.images)] or [parts[0]]
    found: dict[str, Any] = {
        "images": join_rows([part.images for part in framed], "images"),
        "replay": join_rows([part.replay for part in framed], "replay"),
        "episode": _joined_episode_numbers(parts),
        "version": parts[0].version,
        "log_importance": _joined_importance(parts),
        "frame_row": _joined_frame_rows(parts),
        "final_images": _joined_final_images(parts),
    }
    # By name of the field, so that a further one is joined too: what only some parts have is an error, not lost.
    rows = {name: [getattr(part, name) for part in parts] for name in _rows_apart_from(found)}
    found |= {name: join_rows(values, name) for name, values in rows.items()}
    return RolloutBatch(**found)


def _joined_episode_numbers(parts: Sequence[RolloutBatch]) -> torch.Tensor:
    found, first = [], 0
    for part in parts:
        found.append(part.episode + first)
        first += len(part.episodes)
    return torch.cat(found)


def _joined_importance(parts: Sequence[RolloutBatch]) -> torch.Tensor | None:
    """Parts whose rows are all fresh have none: their ratios are 1."""
    if all(part.log_importance is None for part in parts):
        return None
    return torch.cat(
        [torch.zeros_like(part.log_prob) if part.log_importance is None else part.log_importance for part in parts]
    )


def _joined_final_images(parts: Sequence[RolloutBatch]) -> torch.Tensor | None:
    """None unless every part has them."""
    finals = [part.final_images for part in parts if part.final_images is not None]
    return torch.cat(finals) if len(finals) == len(parts) else None


def _joined_frame_rows(parts: Sequence[RolloutBatch]) -> torch.Tensor | None:
    if all(part.frame_row is None for part in parts):
        return None
    found, first = [], 0
    for part in parts:
        row = torch.arange(len(part)) if part.frame_row is None else part.frame_row
        found.append(torch.where(row >= 0, row + first, -1))
        first += len(part.images)
    return torch.cat(found)

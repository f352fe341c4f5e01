"""Splitting a batch into its groups, joining groups into one batch, and batches without their frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch

from embodied_rl.types import RolloutBatch


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
    return RolloutBatch(
        images=batch.images[frames],
        proprio=batch.proprio[start:end],
        instruction=batch.instruction[start:end],
        replay={key: tensor[frames] for key, tensor in batch.replay.items()},
        log_prob=batch.log_prob[start:end],
        value=None if batch.value is None else batch.value[start:end],
        reward=batch.reward[start:end],
        mask=batch.mask[start:end],
        episode=batch.episode[start:end] - first,
        episodes=batch.episodes[first:last],
        version=batch.version,
        row_version=None if batch.row_version is None else batch.row_version[start:end],
        log_importance=None if batch.log_importance is None else batch.log_importance[start:end],
        frame_row=frame_row,
        final_images=None if batch.final_images is None else batch.final_images[first:last],
    )


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
    """Concatenate batches; a single one is returned as it is. Advantages and returns are left out."""
    if len(parts) == 1:
        return parts[0]
    firsts = [0]
    for part in parts:
        firsts.append(firsts[-1] + len(part.episodes))
    values = [part.value for part in parts if part.value is not None]
    versions = [part.row_version for part in parts if part.row_version is not None]
    finals = [part.final_images for part in parts if part.final_images is not None]
    stale = any(part.log_importance is not None for part in parts)
    ratios = [torch.zeros_like(part.log_prob) if part.log_importance is None else part.log_importance for part in parts]
    framed = [part for part in parts if len(part.images)] or [parts[0]]
    return RolloutBatch(
        images=torch.cat([part.images for part in framed]),
        proprio=torch.cat([part.proprio for part in parts]),
        instruction=[text for part in parts for text in part.instruction],
        replay={key: torch.cat([part.replay[key] for part in framed]) for key in framed[0].replay},
        log_prob=torch.cat([part.log_prob for part in parts]),
        value=torch.cat(values) if len(values) == len(parts) else None,
        reward=torch.cat([part.reward for part in parts]),
        mask=torch.cat([part.mask for part in parts]),
        episode=torch.cat([part.episode + first for part, first in zip(parts, firsts, strict=False)]),
        episodes=[episode for part in parts for episode in part.episodes],
        version=parts[0].version,
        row_version=torch.cat(versions) if len(versions) == len(parts) else None,
        log_importance=torch.cat(ratios) if stale else None,
        frame_row=_joined_frame_rows(parts),
        final_images=torch.cat(finals) if len(finals) == len(parts) else None,
    )


def _joined_frame_rows(parts: Sequence[RolloutBatch]) -> torch.Tensor | None:
    if all(part.frame_row is None for part in parts):
        return None
    found, first = [], 0
    for part in parts:
        row = torch.arange(len(part)) if part.frame_row is None else part.frame_row
        found.append(torch.where(row >= 0, row + first, -1))
        first += len(part.images)
    return torch.cat(found)

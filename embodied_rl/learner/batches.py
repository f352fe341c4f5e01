"""Splitting a batch into its groups, joining groups into one batch, and batches as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import groupby
from typing import Any

import torch

from embodied_rl.types import EpisodeResult, EpisodeSpec, RolloutBatch


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
    return RolloutBatch(
        images=batch.images[start:end],
        proprio=batch.proprio[start:end],
        instruction=batch.instruction[start:end],
        replay={key: tensor[start:end] for key, tensor in batch.replay.items()},
        log_prob=batch.log_prob[start:end],
        value=None if batch.value is None else batch.value[start:end],
        reward=batch.reward[start:end],
        mask=batch.mask[start:end],
        episode=batch.episode[start:end] - first,
        episodes=batch.episodes[first:last],
        version=batch.version,
        row_version=None if batch.row_version is None else batch.row_version[start:end],
        log_importance=None if batch.log_importance is None else batch.log_importance[start:end],
    )


def to_dict(batch: RolloutBatch) -> dict[str, Any]:
    """A batch as tensors and plain values only, which `torch.load(weights_only=True)` accepts."""
    plain = {field.name: getattr(batch, field.name) for field in fields(batch)}
    return plain | {"episodes": [asdict(episode) for episode in batch.episodes]}


def from_dict(data: Mapping[str, Any]) -> RolloutBatch:
    """The inverse of `to_dict`."""
    episodes = [EpisodeResult(**{**row, "spec": EpisodeSpec(**row["spec"])}) for row in data["episodes"]]
    return RolloutBatch(**{**data, "episodes": episodes})


def without_frames(batch: RolloutBatch) -> RolloutBatch:
    """A batch without what only forward passes read: images and replay data."""
    return replace(batch, images=torch.empty(len(batch), 0), replay={})


def join_batches(parts: Sequence[RolloutBatch]) -> RolloutBatch:
    """Concatenate batches; a single one is returned as it is. Advantages and returns are left out."""
    if len(parts) == 1:
        return parts[0]
    firsts = [0]
    for part in parts:
        firsts.append(firsts[-1] + len(part.episodes))
    values = [part.value for part in parts if part.value is not None]
    versions = [part.row_version for part in parts if part.row_version is not None]
    stale = any(part.log_importance is not None for part in parts)
    ratios = [torch.zeros_like(part.log_prob) if part.log_importance is None else part.log_importance for part in parts]
    return RolloutBatch(
        images=torch.cat([part.images for part in parts]),
        proprio=torch.cat([part.proprio for part in parts]),
        instruction=[text for part in parts for text in part.instruction],
        replay={key: torch.cat([part.replay[key] for part in parts]) for key in parts[0].replay},
        log_prob=torch.cat([part.log_prob for part in parts]),
        value=torch.cat(values) if len(values) == len(parts) else None,
        reward=torch.cat([part.reward for part in parts]),
        mask=torch.cat([part.mask for part in parts]),
        episode=torch.cat([part.episode + first for part, first in zip(parts, firsts, strict=False)]),
        episodes=[episode for part in parts for episode in part.episodes],
        version=parts[0].version,
        row_version=torch.cat(versions) if len(versions) == len(parts) else None,
        log_importance=torch.cat(ratios) if stale else None,
    )

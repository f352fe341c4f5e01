"""Rows of what gymnasium's vector envs give, as the contract's numbers: observations and infos of all envs at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from embodied_rl.sim.gymnasium.probe import SUCCESS_KEYS
from embodied_rl.sim.gymnasium.spaces import ArrayObservation, ObservationLayout, check_form, value_at
from embodied_rl.types import Array


def read_rows(
    layout: ObservationLayout, space: spaces.Space[Any], batch: Any, rows: Array
) -> tuple[ArrayObservation, Array]:
    """n rows of a batch of N observations, each as `ObservationLayout.read` reads one.

    Args:
        layout: of one observation. space: of the batch.
        batch: arrays or tensors on any device.
        rows: int [n].

    Returns:
        Images uint8 [n, V, H, W, 3], proprio float32 [n, P] and state float32 [n, S], copied; and which rows are
        sound, bool [n]: the others have numbers that are not finite, or no pixels.

    Raises:
        ValueError: The batch is not of the form that `space` declares.
    """
    batch = in_host(batch)
    check_form(space, batch, "the batch of observations")
    count = len(rows)
    images = np.zeros((count, len(layout.images), *layout.image_shape, 3), np.uint8)
    sound = np.ones(count, np.bool_)
    for camera, image in enumerate(layout.images):
        for row, value in enumerate(value_at(batch, image.path)[rows]):
            try:
                images[row, camera] = image.read(value)
            except ValueError:
                sound[row] = False
    felt = [_flat(part, value_at(batch, path), rows) for path, part in layout.proprio.items()]
    proprio = np.concatenate([np.zeros((count, 0), np.float32), *felt], axis=1)
    state = np.zeros((count, 0), np.float32) if layout.rest is None else _flat(layout.rest, batch, rows)
    sound &= np.isfinite(proprio).all(axis=1) & np.isfinite(state).all(axis=1)
    return ArrayObservation(images, proprio, state), sound


def successes(infos: Mapping[str, Any], rows: Array) -> tuple[Array, Array, Array]:
    """What the infos of a vector env say of the goal in n rows, as `success_of` does of one env.

    Returns:
        Whether it holds, whether they say so or the opposite, and whether that is 0 or 1, bool [n] each.
    """
    holds, said, sound = (np.full(len(rows), value) for value in (False, False, True))
    for key in SUCCESS_KEYS:
        if infos.get(key) is None:
            continue
        values = np.asarray(in_host(infos[key]))[rows].reshape(len(rows), -1)
        told = ~said
        if values.dtype == object:
            told &= [value[0] is not None for value in values]
        if (mask := infos.get(f"_{key}")) is not None:
            told &= np.asarray(in_host(mask))[rows]
        good = np.isin(values, (0, 1)).all(axis=1)
        holds |= told & good & (values == 1).any(axis=1)
        sound &= good | ~told
        said |= told
    return holds, said, sound


def said_of(infos: Mapping[str, Any], key: str, row: int) -> Any:
    """What the infos of a vector env say of a row, or of all of them; None where they say nothing."""
    mask, value = infos.get(f"_{key}"), infos.get(key)
    if value is None or (mask is not None and not mask[row]):
        return None
    return value if isinstance(value, str) else value[row]


def row_of(batch: Any, row: int) -> Any:
    """One row of a batch of observations, also of an array of whole observations, as `final_obs` may be."""
    if isinstance(batch, Mapping):
        return {key: row_of(part, row) for key, part in batch.items()}
    return tuple(row_of(part, row) for part in batch) if isinstance(batch, tuple) else batch[row]


def in_host(batch: Any) -> Any:
    """`batch` with arrays of NumPy for those of torch and others, in Dicts and Tuples too."""
    if isinstance(batch, Mapping):
        return {key: in_host(part) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(map(in_host, batch))
    return batch.detach().cpu().numpy() if isinstance(batch, torch.Tensor) else np.asarray(batch)


def device_of(batch: Any) -> torch.device | None:
    """Where the tensors of a batch are; None where it has arrays of another kind."""
    if isinstance(batch, Mapping | tuple):
        parts = batch.values() if isinstance(batch, Mapping) else batch
        return next((device for part in parts if (device := device_of(part)) is not None), None)
    return batch.device if isinstance(batch, torch.Tensor) else None


def _flat(space: spaces.Space[Any], batch: Any, rows: Array) -> Array:
    """float32 [n, S]: each row as `gymnasium.spaces.flatten` has it."""
    if isinstance(space, spaces.Dict):
        return np.concatenate([_flat(part, batch[key], rows) for key, part in space.spaces.items()], axis=1)
    if isinstance(space, spaces.Tuple):
        return np.concatenate([_flat(part, batch[i], rows) for i, part in enumerate(space.spaces)], axis=1)
    values = batch[rows].reshape(len(rows), -1)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).ravel()
        values = values - np.asarray(space.start).ravel()
        return np.concatenate(
            [values[:, i, None] == np.arange(n) for i, n in enumerate(counts)], axis=1, dtype=np.float32
        )
    with np.errstate(over="ignore"):  # what float32 can't hold is not finite then
        return values.astype(space.dtype).astype(np.float32)

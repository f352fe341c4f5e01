"""What a chunk is to go on from, as a request says it: real-time chunking over the network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from embodied_rl.real_robot.core.executor import prefix_weights
from embodied_rl.types import Array

KEYS = ("prev_action_chunk", "inference_delay", "prefix_attention_horizon")
"""As in the reference code of Black et al. (2025)."""


class PrefixError(ValueError):
    """A prefix that cannot be gone on from; the text is one line."""


class Prefix(NamedTuple):
    """previous: float32 [K, A], zeros where nothing is planned. weights: float32 [K]."""

    previous: Array
    weights: Array


def read_prefix(message: Mapping[Any, Any], chunk_len: int, action_dim: int) -> Prefix | None:
    """The prefix of a request, or None without one.

    `prev_action_chunk` [1..K, A] holds the planned actions from the observation's step on, `inference_delay` how many
    of them will have been executed before the answer can act (0 if left out), `prefix_attention_horizon` from where on
    the chunk is free (all that is planned, if left out).

    Raises:
        PrefixError: A value is not what its key says.
    """
    planned = message.get(KEYS[0])
    if planned is None:
        if extra := [key for key in KEYS[1:] if message.get(key) is not None]:
            raise PrefixError(f"'{extra[0]}' belongs to 'prev_action_chunk', which is missing")
        return None
    array = np.asarray(planned) if isinstance(planned, list | np.ndarray) else np.zeros((0, 0))
    if array.dtype.kind not in "iuf" or array.ndim != 2 or array.shape[-1] != action_dim:
        raise PrefixError(f"'{KEYS[0]}' is an array of numbers [1 to {chunk_len},{action_dim}], got {array.shape}")
    if not 1 <= len(array) <= chunk_len:
        raise PrefixError(f"'{KEYS[0]}' has {len(array)} actions, from 1 to {chunk_len} are read")
    if not (np.abs(array) <= 1 + 1e-3).all():  # NaN is refused too
        raise PrefixError(f"'{KEYS[0]}' holds a number outside [-1, 1]")
    horizon = _count(message, KEYS[2], len(array), len(array))
    delay = _count(message, KEYS[1], 0, horizon)
    previous = np.zeros((chunk_len, action_dim), np.float32)
    previous[: len(array)] = array
    return Prefix(previous, prefix_weights(chunk_len, delay, chunk_len - horizon).astype(np.float32))


def _count(message: Mapping[Any, Any], key: str, default: int, most: int) -> int:
    value = message.get(key)
    if value is None:
        return default
    number = value.item() if isinstance(value, np.integer) else value
    if type(number) is not int or not 0 <= number <= most:
        raise PrefixError(f"'{key}' is a whole number from 0 to {most}, got {value!r:.40}")
    return number

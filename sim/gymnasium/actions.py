"""A policy's actions as those that a gymnasium env takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_rl.errors import UserError
from embodied_rl.types import Array


@dataclass(frozen=True, slots=True)
class ActionMap:
    """How a policy's actions become those of an env.

    dim: A. low, high: bounds of the policy's, A each, infinite where there is none. convert: float32 [A] within them to
    what `env.step` takes, or [N, A] to what that of a vector env takes.
    """

    dim: int
    low: tuple[float, ...]
    high: tuple[float, ...]
    convert: Callable[[Array], Any]


def action_map(space: spaces.Space[Any], name: str, *, own_units: bool = False) -> ActionMap:
    """How actions become those of `space`, of the environment `name`.

    Actions are in [-1, 1]: a bounded component is stretched to its bounds, one without bounds stays as it is. With
    `own_units` they are as the environment takes them, which demonstrations are too, and one without bounds may be any
    number. A discrete action is the index of the largest of its scores.

    Raises:
        UserError: It is neither Discrete nor a Box of real numbers, or has components with one bound only.
    """
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        ones = (1.0,) * int(space.n)
        return ActionMap(len(ones), tuple(-one for one in ones), ones, lambda action: first + _largest(action))
    if not isinstance(space, spaces.Box):
        raise UserError(f"{name}: actions of {type(space).__name__} are not supported, only Box and Discrete.")
    if not np.issubdtype(space.dtype, np.floating):
        raise UserError(f"{name}: a Box of {space.dtype} is not supported for actions: wrap it as floats.")
    one_sided = (space.bounded_below != space.bounded_above).flatten()
    if one_sided.any():
        index = int(one_sided.argmax())
        low, high = space.low.flat[index], space.high.flat[index]
        raise UserError(f"{name}: action {index} has one bound only ({low:g} to {high:g}): wrap it to have two.")
    bounded = space.bounded_below & space.bounded_above
    shape, dtype, dim = space.shape, space.dtype, int(np.prod(space.shape))
    if own_units:
        low, high = space.low, space.high
        least, most = (tuple(map(float, bound.ravel())) for bound in (low, high))
        return ActionMap(dim, least, most, lambda action: np.clip(_shaped(action, shape), low, high).astype(dtype))
    low, high = (np.where(bounded, bound, end) for bound, end in ((space.low, -1.0), (space.high, 1.0)))
    middle, reach = (high + low) / 2, (high - low) / 2

    def stretch(action: Array) -> Array:
        # Rounding must not leave the box.
        return np.clip(middle + reach * _shaped(action, shape), low, high).astype(dtype)

    return ActionMap(dim, (-1.0,) * dim, (1.0,) * dim, stretch)


def drawn(draws: np.random.Generator, low: Sequence[float], high: Sequence[float]) -> Array:
    """A random action within its bounds, in [-1, 1] where there are none: float32 [A]."""
    ends = (np.where(np.isfinite(bound), bound, end) for bound, end in ((low, -1.0), (high, 1.0)))
    return draws.uniform(*ends).astype(np.float32)


def _shaped(actions: Array, shape: tuple[int, ...]) -> Array:
    return actions.reshape(*actions.shape[:-1], *shape)


def _largest(scores: Array) -> Any:
    """Of [A] an int, which single envs take; of [N, A] int64 [N]."""
    return int(scores.argmax()) if scores.ndim == 1 else scores.argmax(axis=1)

"""gymnasium's spaces as the contract's numbers: observations to images and state, actions in [-1, 1] to the env's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_rl.errors import UserError
from embodied_rl.types import Array

_PIXEL_DIMS = 3


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """Where an observation's parts go.

    cameras: keys of its images ('image' where the whole observation is one); image_shape: (H, W). state_dim: S, all
    other parts flattened as `gymnasium.spaces.flatten` does.

    Example:
        >>> layout_of(gymnasium.make("Pendulum-v1").observation_space)
        ObservationLayout(cameras=(), image_shape=(0, 0), state_dim=3)
    """

    cameras: tuple[str, ...]
    image_shape: tuple[int, int]
    state_dim: int


@dataclass(frozen=True, slots=True)
class ActionMap:
    """Actions in [-1, 1] as those of an env. dim: A; convert: float32 [A] in [-1, 1] to what `env.step` takes."""

    dim: int
    convert: Callable[[Array], Any]


def is_image(space: spaces.Space[Any]) -> bool:
    """Whether it holds RGB pixels, uint8 [H, W, 3]."""
    return (
        isinstance(space, spaces.Box)
        and space.dtype == np.uint8
        and len(space.shape) == _PIXEL_DIMS
        and space.shape[2] == _PIXEL_DIMS
    )


def layout_of(space: spaces.Space[Any]) -> ObservationLayout:
    """How observations of `space` are split.

    Raises:
        UserError: It has no fixed size, or images of several sizes.
    """
    if is_image(space):
        assert space.shape is not None
        return ObservationLayout(("image",), (space.shape[0], space.shape[1]), 0)
    images = _images(space)
    shapes = {images[name].shape for name in images}
    if len(shapes) > 1:
        raise UserError(
            f"the observation has images of several sizes ({sorted(map(str, shapes))}): they must be equal."
        )
    rest = _without_images(space)
    if not rest.is_np_flattenable:
        raise UserError(f"observations of {space} have no fixed size, which a policy needs.")
    height, width = next(iter(shapes))[:2] if shapes else (0, 0)
    return ObservationLayout(tuple(images), (height, width), spaces.flatdim(rest))


def write_observation(space: spaces.Space[Any], observation: Any, images: Array, state: Array | None) -> None:
    """Fill uint8 [V, H, W, 3] and float32 [S] (None where S = 0) from an observation of `space`."""
    if is_image(space):
        images[0] = observation
        return
    for camera, name in enumerate(_images(space)):
        images[camera] = observation[name]
    rest = _without_images(space)
    if state is not None:
        values = {name: observation[name] for name in rest} if isinstance(rest, spaces.Dict) else observation
        state[:] = spaces.flatten(rest, values)


def action_map(space: spaces.Space[Any], name: str) -> ActionMap:
    """How actions in [-1, 1] become those of `space`, of the environment `name`.

    A bounded component is stretched to its bounds, one without bounds stays as it is. A discrete action is the index
    of the largest of its scores.

    Raises:
        UserError: It is neither Discrete nor a Box of real numbers, or has components with one bound only.
    """
    if isinstance(space, spaces.Discrete):
        first = int(space.start)
        return ActionMap(int(space.n), lambda action: first + int(action.argmax()))
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
    low, high = (np.where(bounded, bound, end) for bound, end in ((space.low, -1.0), (space.high, 1.0)))
    middle, reach, shape, dtype = (high + low) / 2, (high - low) / 2, space.shape, space.dtype

    def stretch(action: Array) -> Array:
        # Rounding must not leave the box.
        return np.clip(middle + reach * action.reshape(shape), low, high).astype(dtype)

    return ActionMap(int(np.prod(shape)), stretch)


def _images(space: spaces.Space[Any]) -> dict[str, spaces.Box]:
    if not isinstance(space, spaces.Dict):
        return {}
    return {name: part for name, part in space.spaces.items() if isinstance(part, spaces.Box) and is_image(part)}


def _without_images(space: spaces.Space[Any]) -> spaces.Space[Any]:
    pictures = _images(space)
    if not pictures:
        return space
    assert isinstance(space, spaces.Dict)
    return spaces.Dict({name: part for name, part in space.spaces.items() if name not in pictures})

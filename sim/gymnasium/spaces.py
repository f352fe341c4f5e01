"""gymnasium's spaces as the contract's numbers: observations to images and state, actions in [-1, 1] to the env's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_rl.errors import UserError
from embodied_rl.types import Array

_PIXEL_DIMS = 3
_FEWEST_PIXELS = 16
"""Least height and width of an array that is taken for a picture although it is none of `is_image`."""
_USUAL_PIXELS = 64
"""The same of arrays whose bounds do not say that they hold pixels, or that have no axis of colours."""
_NEVER_READ = 2
"""A depth in a space at which pictures are not read."""
_BRIGHTEST = 255
_KNOWN = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)


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
class ArrayObservation:
    """An observation as the contract's numbers, copied. images: uint8 [V, H, W, 3]; state: float32 [S]."""

    images: Array
    state: Array


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
        UserError: It has a part of no fixed size, images of several sizes, or what looks like a picture and is none.
    """
    _refuse_unreadable(space, "observation", depth=0)
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
    height, width = next(iter(shapes))[:2] if shapes else (0, 0)
    return ObservationLayout(tuple(images), (height, width), spaces.flatdim(rest))


def read_observation(space: spaces.Space[Any], observation: Any) -> ArrayObservation:
    """An observation of `space`, whose layout `layout_of` knows.

    Raises:
        ValueError: It is not of the form that `space` declares, or has numbers that are not finite.
    """
    _check_form(space, observation, "the observation")
    if is_image(space):
        return ArrayObservation(np.array(observation, np.uint8)[None], np.zeros(0, np.float32))
    pictures, rest = _images(space), _without_images(space)
    images = [np.array(observation[name], np.uint8) for name in pictures]
    values = {name: observation[name] for name in rest} if isinstance(rest, spaces.Dict) else observation
    with np.errstate(over="ignore"):  # what float32 can't hold is not finite then
        state = np.array(spaces.flatten(rest, values), np.float32)
    if not np.isfinite(state).all():
        raise ValueError("the observation has numbers that are not finite")
    return ArrayObservation(np.stack(images) if images else np.zeros((0, 0, 0, 3), np.uint8), state)


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


def _refuse_unreadable(space: spaces.Space[Any], path: str, depth: int) -> None:
    """Raise UserError for a part of `space` that is no picture of the readable form and no row of numbers."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        inside = depth + 1 if isinstance(space, spaces.Dict) else _NEVER_READ
        for name, part in parts:
            _refuse_unreadable(part, f"{path}[{name!r}]", inside)
        return
    if not isinstance(space, _KNOWN):
        raise UserError(
            f"{path} is {space}, which has no fixed number of values: wrap the environment to leave it out."
        )
    if isinstance(space, spaces.Box) and (depth > 1 or not is_image(space)) and _looks_like_picture(space):
        raise UserError(
            f"{path} looks like a picture ({space.dtype} {list(space.shape)}), and pictures are only read as uint8 "
            "[H, W, 3], as the whole observation or directly in its Dict: wrap the environment to give it so, or to "
            "leave it out."
        )


def _looks_like_picture(box: spaces.Box) -> bool:
    """Whether it has the size and the values of pixels, in any order of its axes, several of them, or flattened."""
    if is_image(box):
        return True
    if box.dtype == np.uint8 and len(box.shape) == 1:
        return box.shape[0] >= _PIXEL_DIMS * _FEWEST_PIXELS**2
    least = _FEWEST_PIXELS
    if box.dtype != np.uint8:  # pictures as floats or integers have the bounds of pixels, or the size of pictures
        bounded = bool(box.is_bounded()) and float(box.low.min()) >= -1 and float(box.high.max()) <= _BRIGHTEST
        grey = len(box.shape) < _PIXEL_DIMS
        if grey and not (bounded and float(box.low.min()) >= 0):
            return False
        least = _FEWEST_PIXELS if bounded and not grey else _USUAL_PIXELS
    return len(box.shape) > 1 and min(sorted(box.shape)[-2:]) >= least


def _check_form(space: spaces.Space[Any], value: Any, path: str) -> None:
    """Raise ValueError unless `value` has the form that `space` declares; bounds of a Box do not matter."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} is of {type(value).__name__}, and a Dict is declared")
        for name, part in space.spaces.items():
            if name not in value:
                raise ValueError(f"{path} has no {name!r}")
            _check_form(part, value[name], f"{path}[{name!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise ValueError(f"{path} is not a tuple of {len(space.spaces)}, as is declared")
        for index, part in enumerate(space.spaces):
            _check_form(part, value[index], f"{path}[{index}]")
    elif isinstance(space, spaces.Box):
        array = np.asarray(value)
        if array.shape != space.shape or array.dtype.kind not in "biuf":
            raise ValueError(f"{path} is {array.dtype} {list(array.shape)}, and {list(space.shape)} is declared")
        if is_image(space) and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() > _BRIGHTEST):
            raise ValueError(f"{path} is {array.dtype}, and a picture of whole numbers 0 to 255 is declared")
    elif not space.contains(value):
        raise ValueError(f"{path} is {value!r}, which is not in {space}")


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

"""gymnasium's spaces as the contract's numbers: observations to images, proprio and state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from gymnasium import spaces

from embodied_rl.errors import UserError, refuse_twice, suggest
from embodied_rl.types import Array
from embodied_rl.utils.words import counted

Path = tuple[str, ...]
"""Keys that lead to a part of a Dict of Dicts; () is the whole observation."""
_PIXEL_DIMS = 3
_FEWEST_PIXELS = 16
"""Least height and width of an array that is taken for an image although it is not uint8 [H, W, 3]."""
_USUAL_PIXELS = 64
"""The same of arrays whose bounds do not say that they hold pixels, or that have no axis of colours."""
_BRIGHTEST = 255
_KNOWN = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
_PROPRIO = ("agent_pos", "state", "observation.state")
"""What LeRobot's and other envs with images call what the robot feels, the first that is there."""
_NO_COLOURS = ("depth", "seg", "mask")
"""What lies under a key with one of these words holds no RGB image, whatever its shape."""
_COLOURS = ("rgb", "rgba", "color", "colour", "image", "images", "pixels")
"""But where a key below it says so: a camera may be called depth_camera."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How an env is read, where that is not to be found out.

    Args:
        cameras: images to read, in this order, by their short or whole name; none: all.
        proprio: what the robot feels, one or more parts, joined; none: one that has the usual name.
        instruction: of every episode, in place of what the env says.
        control_hz: control steps a second, in place of what the env says.
        own_units: actions are as the env takes them, and not in [-1, 1].
    """

    cameras: tuple[str, ...] = ()
    proprio: tuple[str, ...] = ()
    instruction: str | None = None
    control_hz: float | None = None
    own_units: bool = False


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image of an observation: where it is, and how its axes and numbers are to be read.

    name: short, as a camera's. size: (H, W). first: its colours are the first axis. unit: its numbers are 0 to 1.
    """

    name: str
    path: Path
    size: tuple[int, int]
    first: bool
    unit: bool

    def read(self, value: Any) -> Array:
        """uint8 [H, W, 3]; ValueError for numbers that are no pixels."""
        pixels, most = np.asarray(value), 1 if self.unit else _BRIGHTEST
        kinds = "f" if self.unit else "iu"
        if pixels.dtype.kind not in kinds or not (pixels.min() >= 0 and pixels.max() <= most):
            raise ValueError(
                f"{_named(self.path)} is {pixels.dtype}, and an image of {'numbers' if self.unit else 'whole numbers'} "
                f"0 to {most} is declared"
            )
        if self.first:
            pixels = pixels.transpose(1, 2, 0)
        return np.round(pixels * float(_BRIGHTEST)).astype(np.uint8) if self.unit else np.array(pixels, np.uint8)


@dataclass(frozen=True, slots=True)
class ObservationLayout:
    """Where an observation's parts go.

    images: in the order of the cameras. proprio: parts that are joined to P = `proprio_dim` numbers. rest: all other
    numbers, S = `state_dim` of them, flattened as `gymnasium.spaces.flatten` does. left_out: parts that are not read,
    such as depth.

    Example:
        >>> layout_of(gymnasium.make("Pendulum-v1").observation_space).state_dim
        3
    """

    space: spaces.Space[Any]
    images: tuple[ImagePart, ...]
    proprio: Mapping[Path, spaces.Space[Any]]
    rest: spaces.Space[Any] | None
    left_out: tuple[Path, ...]

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the images."""
        return tuple(image.name for image in self.images)

    @property
    def image_shape(self) -> tuple[int, int]:
        """(H, W); (0, 0) without images."""
        return self.images[0].size if self.images else (0, 0)

    @property
    def proprio_dim(self) -> int:
        """P."""
        return sum(spaces.flatdim(part) for part in self.proprio.values())

    @property
    def state_dim(self) -> int:
        """S."""
        return 0 if self.rest is None else spaces.flatdim(self.rest)

    def read(self, observation: Any) -> ArrayObservation:
        """An observation of the space.

        Raises:
            ValueError: It is not of the form that the space declares, or has numbers that are not finite.
        """
        check_form(self.space, observation, "the observation")
        images = [image.read(value_at(observation, image.path)) for image in self.images]
        felt = [spaces.flatten(part, value_at(observation, path)) for path, part in self.proprio.items()]
        with np.errstate(over="ignore"):  # what float32 can't hold is not finite then
            proprio = np.concatenate([_NONE, *(np.asarray(part, np.float32) for part in felt)])
            state = _NONE if self.rest is None else _flat(self.rest, observation)
        if not (np.isfinite(state).all() and np.isfinite(proprio).all()):
            raise ValueError("the observation has numbers that are not finite")
        return ArrayObservation(np.stack(images) if images else np.zeros((0, 0, 0, 3), np.uint8), proprio, state)

    def describe(self) -> list[str]:
        """What is read as what, a line each."""
        lines = [f"camera {image.name}: {_named(image.path)}, {image.size[0]}x{image.size[1]}" for image in self.images]
        if self.proprio:
            names = ", ".join(map(_named, self.proprio))
            lines.append(f"proprio: {names}, {counted(self.proprio_dim, 'number')}")
        if self.images and self.state_dim:
            lines.append(f"state: all else, {counted(self.state_dim, 'number')}")
        if self.left_out:
            lines.append(f"not read: {', '.join(map(_named, self.left_out))}")
        return lines


@dataclass(frozen=True, slots=True)
class ArrayObservation:
    """An observation as the contract's numbers, copied. images: uint8 [V, H, W, 3]; the others: float32 [P], [S]."""

    images: Array
    proprio: Array
    state: Array


_NONE = np.zeros(0, np.float32)


def layout_of(space: spaces.Space[Any], options: ReadOptions | None = None) -> ObservationLayout:
    """How observations of `space` are split.

    Raises:
        UserError: It has a part of no fixed size, images of several sizes, what looks like an image and is none that
            can be read, or not what `options` names.
    """
    asked = options or ReadOptions()
    parts = dict(_leaves(space))
    found = _short_names({path: form for path, part in parts.items() if (form := _image(path, part)) is not None})
    images = _chosen_images(found, asked.cameras)
    sizes = {image.size for image in images}
    if len(sizes) > 1:
        each = ", ".join(f"{image.name} {image.size[0]}x{image.size[1]}" for image in images)
        raise UserError(f"the observation has images of several sizes ({each}): choose by --env.cameras NAME ...")
    read = {image.path for image in images}
    proprio = _chosen_proprio(parts, asked.proprio, found)
    left_out = [image.path for image in found if image.path not in read]
    for path, part in parts.items():
        if path not in read and path not in left_out and _is_unread_image(path, part):
            if not (images or proprio):
                raise _no_image(_named(path), part)
            left_out.append(path)
    for path, part in parts.items():
        if path not in read and path not in left_out:
            _refuse_unreadable(_named(path), part)
    rest = _without(space, {*read, *proprio, *left_out})
    return ObservationLayout(space, images, {path: parts[path] for path in proprio}, rest, tuple(left_out))


def _looks_like_image(box: spaces.Box) -> bool:
    """Whether it has the size and the values of pixels, in any order of its axes, several of them, or flattened."""
    if box.dtype == np.uint8 and len(box.shape) == 1:
        return box.shape[0] >= _PIXEL_DIMS * _FEWEST_PIXELS**2
    least = _FEWEST_PIXELS
    if box.dtype != np.uint8:  # images as floats or integers have the bounds of pixels, or the size of images
        bounded = bool(box.is_bounded()) and float(box.low.min()) >= -1 and float(box.high.max()) <= _BRIGHTEST
        grey = len(box.shape) < _PIXEL_DIMS
        if grey and not (bounded and float(box.low.min()) >= 0):
            return False
        least = _FEWEST_PIXELS if bounded and not grey else _USUAL_PIXELS
        if len(box.shape) == _PIXEL_DIMS and 1 in (box.shape[0], box.shape[-1]):  # a depth image has no bounds
            least = _FEWEST_PIXELS
    return len(box.shape) > 1 and min(sorted(box.shape)[-2:]) >= least


def check_form(space: spaces.Space[Any], value: Any, path: str) -> None:
    """Raise ValueError unless `value` has the form that `space` declares; bounds of a Box do not matter."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping):
            raise ValueError(f"{path} is of {type(value).__name__}, and a Dict is declared")
        for name, part in space.spaces.items():
            if name not in value:
                raise ValueError(f"{path} has no {name!r}")
            check_form(part, value[name], f"{path}[{name!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise ValueError(f"{path} is not a tuple of {len(space.spaces)}, as is declared")
        for index, part in enumerate(space.spaces):
            check_form(part, value[index], f"{path}[{index}]")
    elif isinstance(space, spaces.Box):
        array = np.asarray(value)
        if array.shape != space.shape or array.dtype.kind not in "biuf":
            raise ValueError(f"{path} is {array.dtype} {list(array.shape)}, and {list(space.shape)} is declared")
    elif not space.contains(value):
        raise ValueError(f"{path} is {value!r}, which is not in {space}")


def _leaves(space: spaces.Space[Any], path: Path = ()) -> Iterator[tuple[Path, spaces.Space[Any]]]:
    """The parts of a Dict of Dicts, each with the keys that lead to it."""
    if not isinstance(space, spaces.Dict):
        yield path, space
        return
    for key, part in space.spaces.items():
        yield from _leaves(part, (*path, key))


def _image(path: Path, space: spaces.Space[Any]) -> ImagePart | None:
    """How `space` is read as an RGB image; None where it is none.

    uint8 [H, W, 3] is one of any size. Channels first and floats are only taken at the size of an image, since a few
    numbers may have such a shape too.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != _PIXEL_DIMS or _is_without_colours(path):
        return None
    last, first = space.shape[2] == _PIXEL_DIMS, space.shape[0] == _PIXEL_DIMS
    unit = space.dtype.kind == "f" and bool(space.is_bounded()) and space.low.min() >= 0 and space.high.max() <= 1
    if not (last or first) or not (space.dtype == np.uint8 or unit):
        return None
    height, width = space.shape[:2] if last else space.shape[1:]
    if (unit or not last) and min(height, width) < _FEWEST_PIXELS:
        return None
    return ImagePart(path[-1] if path else "image", path, (height, width), not last, unit)


def _short_names(found: Mapping[Path, ImagePart]) -> list[ImagePart]:
    """The images by the last word of their keys, or by the whole name where two would be called the same."""
    short = [path[-1].rpartition(".")[2] if path else "image" for path in found]
    named = [name if short.count(name) == 1 else _dotted(path) for name, path in zip(short, found, strict=True)]
    return [replace(image, name=name) for name, image in zip(named, found.values(), strict=True)]


def _chosen_images(found: list[ImagePart], names: tuple[str, ...]) -> tuple[ImagePart, ...]:
    if not names:
        return tuple(found)
    refuse_twice(names, "camera")
    known = {name: image for image in found for name in (_dotted(image.path), image.name)}
    for name in names:
        if name not in known:
            has = f"it has {', '.join(image.name for image in found)}" if found else "it has none"
            raise UserError(f"--env.cameras {name}: the observation has no such image; {has}.{suggest(name, known)}")
    return tuple(known[name] for name in names)


def _chosen_proprio(
    parts: Mapping[Path, spaces.Space[Any]], names: tuple[str, ...], images: list[ImagePart]
) -> tuple[Path, ...]:
    """The parts that say what the robot feels. Without images nothing is told apart: all numbers are the state."""
    known = {_dotted(path): path for path, part in parts.items() if isinstance(part, _KNOWN)}
    refuse_twice(names, "proprio")
    shown = {_dotted(image.path) for image in images}
    for name in names:
        if name in shown:
            raise UserError(f"--env.proprio {name}: that part of the observation is an image, as --env.cameras reads.")
        if name not in known:
            raise UserError(f"--env.proprio {name}: the observation has no such part.{suggest(name, known)}")
    if names or not images:
        return tuple(known[name] for name in names)
    usual = [known[name] for name in _PROPRIO if name in known]
    return tuple(usual[:1])


def _is_unread_image(path: Path, space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and (
        (_is_without_colours(path) and len(space.shape) > 1) or _looks_like_image(space)
    )


def _is_without_colours(path: Path) -> bool:
    """The last key that says what is shown decides."""
    for key in reversed(path):
        words = key.lower().replace(".", "_").split("_")
        if any(word.startswith(_NO_COLOURS) for word in words):
            return True
        if any(word in _COLOURS for word in words):
            return False
    return False


def _refuse_unreadable(name: str, space: spaces.Space[Any]) -> None:
    """Raise UserError for a part of `space` that is no row of numbers; images inside of a Tuple are not read."""
    if isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            _refuse_unreadable(f"{name}[{index}]", part)
        return
    if not isinstance(space, _KNOWN):
        raise UserError(
            f"{name} is {space}, which has no fixed number of values: wrap the environment to leave it out."
        )
    if isinstance(space, spaces.Box) and (_image((), space) is not None or _looks_like_image(space)):
        raise _no_image(name, space)


def _no_image(name: str, space: spaces.Space[Any]) -> UserError:
    return UserError(
        f"{name} looks like an image ({space.dtype} {list(space.shape or ())}), and images are read as [H, W, 3] or "
        "[3, H, W], uint8 or floats 0 to 1, alone or in a Dict: wrap the environment to give it so, or to leave it out."
    )


def value_at(observation: Any, path: Path) -> Any:
    """The part of an observation, or of a batch of them, that `path` leads to."""
    for key in path:
        observation = observation[key]
    return observation


def _without(space: spaces.Space[Any], gone: Set[Path], path: Path = ()) -> spaces.Space[Any] | None:
    """`space` without the parts at `gone`; None where nothing is left."""
    if path in gone:
        return None
    if not isinstance(space, spaces.Dict) or not gone:
        return space
    kept = {key: _without(part, gone, (*path, key)) for key, part in space.spaces.items()}
    left = {key: part for key, part in kept.items() if part is not None}
    return spaces.Dict(left) if left else None


def _flat(rest: spaces.Space[Any], observation: Any) -> Array:
    """float32 [S]."""
    return np.array(spaces.flatten(rest, _kept(rest, observation)), np.float32)


def _kept(rest: spaces.Space[Any], observation: Any) -> Any:
    """What `observation` has of the parts of `rest`."""
    if not isinstance(rest, spaces.Dict):
        return observation
    return {key: _kept(part, observation[key]) for key, part in rest.spaces.items()}


def _dotted(path: Path) -> str:
    return ".".join(path)


def _named(path: Path) -> str:
    return "observation" + "".join(f"[{key!r}]" for key in path)

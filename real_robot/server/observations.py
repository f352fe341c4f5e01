"""From a client's message to what the policy reads; whatever is wrong with it is said in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.errors import suggest
from embodied_rl.real_robot.client.wire import short
from embodied_rl.real_robot.server.prefix import KEYS as PREFIX_KEYS
from embodied_rl.real_robot.server.prefix import Prefix, PrefixError, read_prefix
from embodied_rl.types import Array

OPENPI = ("observation/image", "observation/wrist_image", "observation/state", "prompt")
"""Keys of openpi's LIBERO example."""
GENERIC = ("images", "proprio", "instruction")
"""Keys of this project's `Observation`."""
OPTIONS = ("seed", "decision", "deadline_ms", *PREFIX_KEYS)
MIN_SIDE, MAX_SIDE, MAX_PROMPT = 8, 4096, 1024
"""Pixels of a picture's side; characters of an instruction."""
_LARGEST = 2**63


class RequestError(ValueError):
    """A request that cannot be answered; the text is one line."""


@dataclass(frozen=True, kw_only=True)
class PolicySpec:
    """What a policy reads and answers.

    Args:
        cameras: 0 for a state policy.
        proprio_dim: Numbers; 0 where it reads none. Of a state policy proprio and state, one after the other.
        instruction: Whether it reads one.
        continues: Whether it can go on from planned actions (real-time chunking).

    Example:
        >>> spec = PolicySpec(cameras=2, image_size=64, proprio_dim=8, chunk_len=4, action_dim=7)
    """

    cameras: int
    image_size: int
    proprio_dim: int
    chunk_len: int
    action_dim: int
    instruction: bool = True
    continues: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One observation, as the policy reads it.

    images: uint8 [V, S, S, 3]. proprio: float32 [P]. seed, decision: of the draws; None where the client leaves them
    to the server. deadline_ms: longest wait, None for the server's. prefix: what the chunk goes on from.
    """

    images: Array
    proprio: Array
    instruction: str
    seed: int | None = None
    decision: int | None = None
    deadline_ms: float | None = None
    prefix: Prefix | None = None


def read_request(message: Any, spec: PolicySpec, image: Callable[[Array], Array]) -> Request:
    """Check a decoded message in either layout.

    Args:
        picture: Makes uint8 [S, S, 3] of uint8 [H, W, 3].

    Raises:
        RequestError: A key is missing or unknown, or a value is not what its key says.
    """
    if not isinstance(message, dict):
        raise RequestError(f"a request is a map of keys, got {_kind(message)}")
    layout = _layout(message)
    key, text = ("proprio", "instruction") if layout is GENERIC else ("observation/state", "prompt")
    if layout is GENERIC:
        named = [(f"images[{index}]", frame) for index, frame in enumerate(_frames(message.get("images"), spec))]
    else:
        if spec.cameras > 2:
            raise RequestError(f"the policy looks at {spec.cameras} cameras: send them as 'images'")
        named = [(name, _needed(message, name)) for name in OPENPI[: spec.cameras]]
    fitted = [image(_image(frame, name)) for name, frame in named]
    shape = (spec.cameras, spec.image_size, spec.image_size, 3)
    return Request(
        np.stack(fitted) if fitted else np.zeros(shape, np.uint8),
        _numbers(message.get(key), key, spec.proprio_dim),
        _text(_needed(message, text), text) if spec.instruction or text in message else "",
        _whole(message, "seed"),
        _whole(message, "decision"),
        _deadline(message),
        _prefix(message, spec),
    )


def _layout(message: Mapping[Any, Any]) -> tuple[str, ...]:
    known = (*OPENPI, *GENERIC, *OPTIONS)
    for key in message:
        if key not in known:
            name = key if isinstance(key, str) else str(key)
            raise RequestError(f"unknown key {short(repr(key))}.{suggest(name[:100], known)}")
    has = [tuple(key for key in layout if key in message) for layout in (OPENPI, GENERIC)]
    if has[0] and has[1]:
        raise RequestError(f"'{has[0][0]}' and '{has[1][0]}' are keys of two layouts: use one")
    return GENERIC if has[1] else OPENPI


def _needed(message: Mapping[Any, Any], key: str) -> Any:
    if key not in message:
        raise RequestError(f"missing key '{key}'")
    return message[key]


def _frames(frames: Any, spec: PolicySpec) -> list[Any]:
    if frames is None and spec.cameras:
        raise RequestError("missing key 'images'")
    if not isinstance(frames, list) and not (isinstance(frames, np.ndarray) and frames.ndim == 4):
        if spec.cameras == 0 and frames is None:
            return []
        raise RequestError(f"'images' is uint8 [V,H,W,3] or a list of V pictures, got {_kind(frames)}")
    if len(frames) != spec.cameras:
        raise RequestError(f"'images' holds {len(frames)} pictures, and the policy looks at {spec.cameras}")
    return list(frames)


def _image(frame: Any, name: str) -> Array:
    """uint8 [H, W, 3] from that, from [3, H, W], or from either with numbers in [0, 1]."""
    if not isinstance(frame, np.ndarray) or frame.ndim != 3 or 3 not in (frame.shape[0], frame.shape[2]):
        raise RequestError(f"'{name}' is a picture [H,W,3], got {_kind(frame)}")
    height, width = frame.shape[:2] if frame.shape[2] == 3 else frame.shape[1:]
    if not (MIN_SIDE <= height <= MAX_SIDE and MIN_SIDE <= width <= MAX_SIDE):
        raise RequestError(f"'{name}' is {width} x {height}: a side has {MIN_SIDE} to {MAX_SIDE} pixels")
    image = frame if frame.shape[2] == 3 else frame.transpose(1, 2, 0)
    if image.dtype == np.uint8:
        return image
    if image.dtype.kind != "f":
        raise RequestError(f"'{name}' is uint8, or float in [0, 1]; got {frame.dtype}")
    low, high = float(image.min()), float(image.max())
    if not (low >= 0.0 and high <= 1.0):
        raise RequestError(f"'{name}' holds numbers outside [0, 1] ({low:g} to {high:g}): send uint8")
    return np.rint(255 * image).astype(np.uint8)


def _numbers(values: Any, name: str, length: int) -> Array:
    """float32 [length]; a policy that reads none takes any, which must still be numbers."""
    if values is None:
        if length:
            raise RequestError(f"missing key '{name}'")
        return np.zeros(0, np.float32)
    try:
        if not isinstance(values, list | np.ndarray):
            raise TypeError
        array = np.asarray(values)
        if array.dtype.kind not in "iuf":
            raise TypeError
        array = np.asarray(array, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise RequestError(f"'{name}' is an array of numbers, got {_kind(values)}") from None
    if array.ndim != 1 or (length and len(array) != length):
        shape = "x".join(map(str, array.shape)) or "no list of"
        raise RequestError(f"'{name}' has {shape} numbers, and the policy reads {length or 'a list of them'}")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise RequestError(f"'{name}' holds a number that is not finite, at {int(np.argmin(np.isfinite(numbers)))}")
    return numbers if length else np.zeros(0, np.float32)


def _text(words: Any, name: str) -> str:
    if not isinstance(words, str) or not words.strip():
        raise RequestError(f"'{name}' is a text, got {_kind(words)}")
    if len(words) > MAX_PROMPT:
        raise RequestError(f"'{name}' has {len(words)} characters, at most {MAX_PROMPT} are read")
    return words


def _whole(message: Mapping[Any, Any], key: str) -> int | None:
    value = message.get(key)
    if value is None:
        return None
    number = value.item() if isinstance(value, np.integer) else value
    if type(number) is not int or not 0 <= number < _LARGEST:
        raise RequestError(f"'{key}' is a whole number from 0, got {_kind(value)}")
    return number


def _deadline(message: Mapping[Any, Any]) -> float | None:
    value = message.get("deadline_ms")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value < float("inf"):
        raise RequestError(f"'deadline_ms' is a number above 0, got {_kind(value)}")
    return float(value)


def _prefix(message: Mapping[Any, Any], spec: PolicySpec) -> Prefix | None:
    try:
        prefix = read_prefix(message, spec.chunk_len, spec.action_dim)
    except PrefixError as error:
        raise RequestError(short(str(error))) from None
    if prefix is not None and not spec.continues:
        raise RequestError("the policy cannot go on from planned actions: leave 'prev_action_chunk' out")
    return prefix


def _kind(value: Any) -> str:
    """What a value is, for a message."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {list(value.shape)}"
    if isinstance(value, list | dict):
        return f"a {type(value).__name__} of {len(value)}"
    return short(repr(value))[:60]

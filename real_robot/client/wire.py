"""Messages of the policy server: msgpack with NumPy arrays, in openpi's encoding. Plain data: nothing runs code.

An array is a map of the binary keys `__ndarray__` (true), `data` (its bytes, C order), `dtype` ('<f4') and `shape`; a
NumPy scalar has `__npgeneric__` in place of `__ndarray__` and a plain number for `data`. Text keys are read too.
"""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

PROTOCOL = 1
"""Version of the messages, in the metadata."""
MAX_LIST, MAX_MAP, MAX_TEXT, MAX_PARTS, MAX_DIMS = 1024, 64, 1 << 16, 1024, 6
"""Of one list, map and text; lists and maps of a whole message; dimensions of an array."""
_DTYPE = re.compile(r"[<>|=]?(b1|[iu][1248]|f[248])")


class WireError(ValueError):
    """Bytes that are not a message; the text is one line."""


def pack(message: Any) -> bytes:
    """Encode plain values and NumPy arrays of booleans, integers and floats.

    Raises:
        WireError: Something else is in it.

    Example:
        >>> unpack(pack({"actions": np.zeros((4, 7), np.float32)}))["actions"].shape
        (4, 7)
    """
    import msgpack

    try:
        data: Any = msgpack.packb(message, default=_encode)
        return data
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"cannot be sent: {short(error)}") from None


def unpack(data: bytes) -> Any:
    """Decode one message; its arrays are read-only views of `data`'s parts.

    What a hostile sender can make of n bytes takes a small multiple of n: lists, maps and their nesting are bounded.

    Raises:
        WireError: It is not msgpack, is not finished, has bytes left over, or is larger or other than messages are.
    """
    import msgpack

    parts = _Parts()
    try:
        return msgpack.unpackb(
            data,
            object_hook=parts.map,
            list_hook=parts.list,
            strict_map_key=True,
            max_array_len=MAX_LIST,
            max_map_len=MAX_MAP,
            max_str_len=MAX_TEXT,
            max_ext_len=0,
        )
    except WireError:
        raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"not a msgpack message: {short(error) or type(error).__name__}") from None


def short(value: object) -> str:
    """`value` as one printable line of at most 120 characters."""
    line = " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in str(value)[:400]).split())
    return line if len(line) <= 120 else f"{line[:117]}..."


class _Parts:
    """Counts the lists and maps of a message while it is decoded."""

    def __init__(self) -> None:
        self.count = 0

    def list(self, values: list[Any]) -> list[Any]:
        self._one_more()
        return values

    def map(self, values: dict[Any, Any]) -> Any:
        self._one_more()
        fields = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in values.items()}
        if "__ndarray__" in fields:
            return _array(fields)
        return _scalar(fields) if "__npgeneric__" in fields else values

    def _one_more(self) -> None:
        self.count += 1
        if self.count > MAX_PARTS:
            raise WireError(f"more than {MAX_PARTS} lists and maps in a message: send arrays")


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) and not _DTYPE.fullmatch(value.dtype.str):
        raise TypeError(f"arrays of {value.dtype}")
    if isinstance(value, np.ndarray):
        return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    raise TypeError(f"a {type(value).__name__}")


def _dtype(fields: dict[str, Any]) -> np.dtype[Any]:
    name = fields.get("dtype")
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise WireError(f"arrays of {short(repr(name))}: only booleans, integers and floats are read")
    return np.dtype(name)


def _array(fields: dict[str, Any]) -> np.ndarray[Any, Any]:
    dtype, shape, data = _dtype(fields), fields.get("shape"), fields.get("data")
    if not isinstance(shape, list) or len(shape) > MAX_DIMS or not all(type(n) is int and n >= 0 for n in shape):
        raise WireError(f"an array's shape is a list of up to {MAX_DIMS} lengths, got {short(repr(shape))}")
    if not isinstance(data, bytes) or len(data) != math.prod(shape) * dtype.itemsize:
        size = f"{len(data)} bytes" if isinstance(data, bytes) else f"a {type(data).__name__}"
        raise WireError(f"an array {shape} of {dtype} has {size} of data")
    return np.ndarray(shape, dtype, buffer=data)


def _scalar(fields: dict[str, Any]) -> Any:
    value = fields.get("data")
    if not isinstance(value, int | float):
        raise WireError(f"a NumPy scalar's data is a number, got a {type(value).__name__}")
    return _dtype(fields).type(value)

"""Messages of other processes, in JSON or msgpack: checked before anybody relies on it. Imports no ROS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LARGEST = 1e15
"""Of a number: sizes, counts, milliseconds and seconds stay far below it."""


class MessageError(ValueError):
    """A message is not what it should be; the text is one line."""


@dataclass(frozen=True)
class Each:
    """A mapping of texts to values of one kind."""

    kind: Kind


@dataclass(frozen=True)
class Many:
    """A list of values of one kind."""

    kind: Kind


@dataclass(frozen=True)
class Maybe:
    """A value of this kind, or null."""

    kind: Kind


Kind = type | Mapping[str, "Kind"] | Each | Many | Maybe
"""str, bool, int, float (any number); a mapping names the keys that must be there, others may be too."""


def read(text: str, kind: Mapping[str, Kind]) -> dict[str, Any]:
    """A JSON text's mapping.

    Raises:
        MessageError: It is no JSON, or a key is missing or of another kind.

    Example:
        >>> read('{"state": "armed"}', {"state": str})
        {'state': 'armed'}
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"no JSON: {type(error).__name__}") from None
    check(value, kind)
    return value


def check(value: object, kind: Kind, name: str = "the message") -> None:
    """Raise MessageError where a value is of another kind; names the key."""
    if isinstance(kind, type):
        _check_one(value, kind, name)
    elif isinstance(kind, Maybe):
        if value is not None:
            check(value, kind.kind, name)
    elif isinstance(kind, Many):
        if not isinstance(value, list):
            raise MessageError(f"{name:.40} is {type(value).__name__}, not list")
        for inner in value:
            check(inner, kind.kind, name)
    else:
        _check_mapping(value, kind, name)


def _check_mapping(value: object, kind: Mapping[str, Kind] | Each, name: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise MessageError(f"{name:.40} is {type(value).__name__}, not keys and values")
    kinds = dict.fromkeys(value, kind.kind) if isinstance(kind, Each) else kind
    for key, inner in kinds.items():
        if key not in value:
            raise MessageError(f"{key} is missing")
        check(value[key], inner, key)


def _check_one(value: object, kind: type, name: str) -> None:
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise MessageError(f"{name:.40} is {type(value).__name__}, not {kind.__name__}")
    if isinstance(value, (int, float)) and abs(value) > _LARGEST:
        raise MessageError(f"{name:.40} is larger than {_LARGEST:g}")

"""Nested frozen dataclasses to and from the plain data of a config.json."""

from __future__ import annotations

import typing
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from embodied_rl.errors import UserError, suggest

T = TypeVar("T")


def from_json(kind: type[T], data: Any, where: str) -> T:
    """Build dataclass `kind` (and the dataclasses in it) from what `dataclasses.asdict` made of one.

    A field with a default may be left out, so that a checkpoint outlives the addition of an option. UserError names an
    unknown, missing or unusable key; `where` is the name of this part in config.json.
    """
    if not isinstance(data, dict):
        raise UserError(f"config.json: '{where}' must be an object; restore the file from the checkpoint's source")
    known = {field.name: field for field in fields(typing.cast(Any, kind))}
    for key in data:
        if key not in known:
            raise UserError(f"config.json: unknown key '{key}' in '{where}'.{suggest(key, known)}")
    required = {name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING}
    missing = sorted(required - data.keys())
    if missing:
        raise UserError(f"config.json: '{where}' lacks {', '.join(missing)}; restore it from the checkpoint's source")
    hints = typing.get_type_hints(kind)
    values = {key: _value(hints[key], value, key) for key, value in data.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise UserError(f"config.json describes no usable model: {error}") from error


def _value(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        return from_json(typing.cast(type, hint), value, where)
    return tuple(value) if isinstance(value, list) else value

"""Frozen dataclasses from the plain data of YAML and JSON files: types are checked, mistyped names explained."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, Literal, TypeVar

from embodied_rl.errors import UserError, suggest

T = TypeVar("T")


def read_dataclass(cls: type[T], data: Any, *, where: str, source: str, base: T | None = None) -> T:
    """Build a `cls`, and the dataclasses in it, from nested mappings as `dataclasses.asdict` makes them.

    Args:
        where: Dotted name of this part of the file, for messages.
        source: Name of the file, for messages.
        base: Gives the values that `data` does not name. Without one, every field that has no default is required.

    Raises:
        UserError: For an unknown, missing or unusable key, or a value of another type: '3' is not 3, true is not 1.

    Example:
        >>> read_dataclass(RolloutConfig, {"episodes_per_iteration": 64}, where="rollout", source="config.yaml")
        RolloutConfig(episodes_per_iteration=64)
    """
    if not isinstance(data, Mapping):
        raise UserError(f"{source}: '{where}' must hold keys and values, got {data!r}.")
    known = {field.name: field for field in fields(typing.cast(Any, cls))}
    hints = typing.get_type_hints(cls)
    check_keys(data, known, f"{where}.", source)
    values = {key: typed(value, hints[key], f"{where}.{key}", source) for key, value in data.items()}
    if base is not None:
        return replace(typing.cast(Any, base), **values)
    required = {name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING}
    missing = sorted(required - data.keys())
    if missing:
        raise UserError(f"{source}: '{where}' lacks {', '.join(missing)}; restore the file from its source.")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise UserError(f"{source} describes no usable {where}: {error}") from error


def check_keys(data: Mapping[str, Any], known: Mapping[str, Any], prefix: str, source: str) -> None:
    """Raise UserError, with a suggestion, if `data` has a key that is not known."""
    for key in data:
        if key not in known:
            raise UserError(f"{source}: unknown key '{prefix}{key}'.{suggest(str(key), known)}")


def typed(value: Any, hint: Any, where: str, source: str) -> Any:
    """Return `value` as the type `hint`, lists as tuples, or raise UserError."""
    inner = [part for part in (hint, *typing.get_args(hint)) if is_dataclass(part)]
    if is_dataclass(hint) or (len(inner) == 1 and isinstance(value, Mapping)):
        return read_dataclass(typing.cast(type, inner[0]), value, where=where, source=source)
    fits, result = _fit(value, hint)
    if not fits:
        raise UserError(f"{source}: '{where}' must be {_describe(hint)}, got {value!r}.")
    return result


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True, value
    if origin in (typing.Union, types.UnionType):
        return next((found for found in (_fit(value, arg) for arg in args) if found[0]), (False, None))
    if origin is Literal:
        return value in args and isinstance(value, str), value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False, None
        inner = [args[0]] * len(value) if args[-1] is Ellipsis else list(args)
        if len(inner) != len(value):
            return False, None
        parts = [_fit(item, arg) for item, arg in zip(value, inner, strict=True)]
        return all(part[0] for part in parts), tuple(part[1] for part in parts)
    if origin in (dict, list):
        return isinstance(value, origin) and _all_fit(value, args), value
    if hint is float:
        return _fit_float(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, hint), value


def _all_fit(values: Any, args: tuple[Any, ...]) -> bool:
    """Whether the items of a list, or keys and values of a mapping, have the types `args`."""
    if isinstance(values, Mapping):
        return all(_fit(key, args[0])[0] and _fit(value, args[1])[0] for key, value in values.items())
    return all(_fit(value, args[0])[0] for value in values)


def _fit_float(value: Any) -> tuple[bool, Any]:
    if isinstance(value, str) and "e" in value.lower():  # YAML 1.1 reads 1e-4 (no dot) as text
        try:
            return True, float(value)
        except ValueError:
            return False, None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return is_number, float(value) if is_number else None


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_describe(arg) for arg in args)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        return "a list of names" if args[-1] is Ellipsis else f"a list of {len(args)} numbers"
    if origin is dict or is_dataclass(hint):
        return "keys and values"
    if origin is list:
        return "a list"
    return {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}[hint]

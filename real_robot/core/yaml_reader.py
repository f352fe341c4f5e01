"""Strict YAML: every key is known, present once and of its type, or one line says where and what to do."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError, suggest


def read_yaml(path: Path) -> Section:
    """The file's mapping.

    Raises:
        UserError: There is no such file, PyYAML is missing, the text is no YAML, or a key occurs twice.
    """
    try:
        import yaml
    except ImportError as error:
        raise UserError(
            f"{path.name}: reading it needs PyYAML: pip install pyyaml (ROS 2 brings python3-yaml)"
        ) from error

    class Strict(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            for index, key in enumerate(keys):
                if key in keys[:index]:
                    line = node.value[index][0].start_mark.line + 1
                    raise UserError(f"{path.name} line {line}: the key {key} occurs twice; remove one")
            return super().construct_mapping(node, deep)

    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Strict)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; give a readable file") from error
    except (yaml.YAMLError, UnicodeDecodeError, TypeError) as error:
        raise UserError(f"{path.name} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path.name} is no mapping of keys to values; start from one of the shipped files")
    return Section(path.name, "", content)


class Section:
    """A mapping that is read key by key; `done` refuses what nobody read.

    Args:
        file: The file's name, for messages.
        path: The mapping's own key with those above it, joined by dots.
        content: Keys and values.
    """

    def __init__(self, file: str, path: str, content: Mapping[Any, Any]) -> None:
        self.file, self.path, self._content, self._read = file, path, content, set[str]()

    def wrong(self, key: str, problem: str) -> UserError:
        """The error for the value of `key`."""
        return UserError(f"{self.file}: {self._full(key)}: {problem}")

    @property
    def keys(self) -> list[str]:
        """All keys, in the file's order."""
        return [str(key) for key in self._content]

    def has(self, key: str) -> bool:
        """Whether an optional key is there."""
        self._read.add(key)
        return key in self._content

    def text(self, key: str) -> str:
        """A text that is not empty."""
        value = self._value(key, "a text")
        if not isinstance(value, str) or not value:
            raise self.wrong(key, f"{value!r} is no text; give one, in quotes if it looks like a number")
        return value

    def flag(self, key: str) -> bool:
        """true or false."""
        value = self._value(key, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, f"{value!r} is neither true nor false")
        return value

    def number(self, key: str, unit: str, *, positive: bool = False) -> float:
        """A finite number; `unit` is for the message."""
        return self._number(key, self._value(key, unit), unit, positive)

    def numbers(self, key: str, count: int, unit: str) -> tuple[float, ...]:
        """`count` finite numbers."""
        value = self._value(key, f"[{', '.join(['number'] * count)}] in {unit}")
        if not isinstance(value, list) or len(value) != count:
            raise self.wrong(key, f"{value!r} is not a list of {count} numbers; give them in {unit}")
        return tuple(self._number(key, item, unit, False) for item in value)

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or more."""
        value = self._value(key, "[a text, ...]")
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, f"{value!r} is no list of texts; give one or more")
        return tuple(value)

    def section(self, key: str) -> Section:
        """A mapping within this one."""
        value = self._value(key, "keys and values")
        if not isinstance(value, dict) or not value:
            raise self.wrong(key, f"{value!r} is no mapping; give keys and values")
        return Section(self.file, self._full(key), value)

    def done(self) -> None:
        """Refuse keys that nobody read.

        Raises:
            UserError: Names the first of them and the known key closest to it.
        """
        for key in self.keys:
            if key not in self._read:
                raise self.wrong(key, f"unknown key.{suggest(key, self._read)}")

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _value(self, key: str, what: str) -> Any:
        self._read.add(key)
        if key not in self._content:
            raise self.wrong(key, f"missing; give {what}")
        return self._content[key]

    def _number(self, key: str, value: Any, unit: str, positive: bool) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self.wrong(key, f"{value!r} is no finite number; give {unit} (5000.0, not 5e3)")
        if positive and value <= 0:
            raise self.wrong(key, f"{value!r} must be positive ({unit})")
        return float(value)

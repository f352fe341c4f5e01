"""An arm's YAML key by key: each is known, there, of its type and plausible, or one line says where and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError, suggest

Band = tuple[float, float]
"""Least and largest value that is plausible."""
OVERRIDES = "overrides"
"""The file's list of keys whose values lie beyond their bands on purpose."""
_LARGEST, _LONGEST = 1e300, 256


def read_yaml(path: Path) -> Section:
    """The file's mapping; UserError as of `read_mapping`, and where PyYAML is missing."""
    try:  # here: the core itself needs NumPy alone
        from embodied_rl.utils.strict_yaml import read_mapping
    except ImportError as error:
        raise UserError(
            f"{path.name}: reading it needs PyYAML: pip install pyyaml (ROS 2 brings python3-yaml)"
        ) from error
    file = Section(path.name, "", read_mapping(path, path.name))
    if file.has(OVERRIDES):
        file.overrides.update(dict.fromkeys(file.texts(OVERRIDES), False))
    return file


class Section:
    """A mapping that is read key by key; `done` refuses what nobody read.

    Args:
        file: The file's name, for messages.
        path: The mapping's own key with those above it, joined by dots.
        content: Keys and values.
        overrides: Whole keys whose values may lie beyond their bands, and whether one does.
    """

    def __init__(
        self, file: str, path: str, content: Mapping[Any, Any], overrides: dict[str, bool] | None = None
    ) -> None:
        self.file, self.path, self._content, self._read = file, path, content, set[str]()
        self.overrides: dict[str, bool] = {} if overrides is None else overrides

    def wrong(self, key: str, problem: str) -> UserError:
        """The error for the value of `key`."""
        return UserError(" ".join(f"{self.file}: {self._full(key):.120}: {problem}".split()))

    def plausible(self, key: str, values: Sequence[float], band: Band, unit: str) -> None:
        """Refuse values beyond their band: a slip of the unit or of the hand.

        Raises:
            UserError: One is, and the file does not name the key under `overrides`.
        """
        least, most = band
        beyond = [value for value in values if not least <= value <= most]
        if not beyond:
            return
        if self._full(key) in self.overrides:
            self.overrides[self._full(key)] = True
        else:
            usual = f"{beyond[0]:g} lies beyond {least:g} to {most:g} ({unit})"
            raise self.wrong(key, f"{usual}: correct it, or name {self._full(key):.120} under {OVERRIDES}")

    @property
    def keys(self) -> list[str]:
        """All keys, in the file's order."""
        return [str(key) for key in self._content]

    def has(self, key: str) -> bool:
        """Whether an optional key is there."""
        self._read.add(key)
        return key in self._content

    def text(self, key: str) -> str:
        """A short text in one line that is not empty."""
        value = self._value(key, "a text")
        if not isinstance(value, str) or not value:
            raise self.wrong(key, f"{_shown(value)} is no text; give one, in quotes if it looks like a number")
        return self._plain(key, value)

    def flag(self, key: str) -> bool:
        """true or false."""
        value = self._value(key, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(key, f"{_shown(value)} is neither true nor false")
        return value

    def number(self, key: str, unit: str, band: Band, *, positive: bool = False) -> float:
        """A finite number that is plausible; `unit` is for the message."""
        value = self._number(key, self._value(key, unit), unit, positive)
        self.plausible(key, [value], band, unit)
        return value

    def numbers(self, key: str, count: int, unit: str, band: Band) -> tuple[float, ...]:
        """`count` finite numbers that are plausible."""
        value = self._value(key, f"[{', '.join(['number'] * count)}] in {unit}")
        if not isinstance(value, list) or len(value) != count:
            raise self.wrong(key, f"{_shown(value)} is not a list of {count} numbers; give them in {unit}")
        values = tuple(self._number(key, item, unit, False) for item in value)
        self.plausible(key, values, band, unit)
        return values

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or more."""
        value = self._value(key, "[a text, ...]")
        if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
            raise self.wrong(key, f"{_shown(value)} is no list of texts; give one or more")
        return tuple(self._plain(key, item) for item in value)

    def section(self, key: str) -> Section:
        """A mapping within this one."""
        value = self._value(key, "keys and values")
        if not isinstance(value, dict) or not value:
            raise self.wrong(key, f"{_shown(value)} is no mapping; give keys and values")
        return Section(self.file, self._full(key), value, self.overrides)

    def done(self) -> None:
        """Refuse keys that nobody read.

        Raises:
            UserError: Names the first of them and the known key closest to it.
        """
        for key in self.keys:
            if key not in self._read:
                raise self.wrong(key, f"unknown key.{suggest(key, self._read)}")

    def overrides_done(self, *, ros: bool) -> None:
        """Refuse overrides that nothing needs; `ros`: of the ros section, or of all others.

        Raises:
            UserError: Names the first of them.
        """
        for key, used in self.overrides.items():
            if not used and key.startswith("ros.") == ros:
                raise self.wrong(OVERRIDES, f"{key:.120} is no key whose value lies beyond what is usual; remove it")

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _value(self, key: str, what: str) -> Any:
        self._read.add(key)
        if key not in self._content:
            raise self.wrong(key, f"missing; give {what}")
        return self._content[key]

    def _plain(self, key: str, value: str) -> str:
        if len(value) > _LONGEST or not value.isprintable() or value != value.strip():
            problem = f"more than {_LONGEST} characters, a line's end, or spaces around it; correct it"
            raise self.wrong(key, f"{_shown(value)} has {problem}")
        return value

    def _number(self, key: str, value: Any, unit: str, positive: bool) -> float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not abs(value) <= _LARGEST:
            raise self.wrong(key, f"{_shown(value)} is no finite number; give {unit} (5000.0, not 5e3)")
        if positive and value <= 0:
            raise self.wrong(key, f"{value:g} must be positive ({unit})")
        return float(value)


def _shown(value: object) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python writes no whole numbers of more than 4300 digits
        return "a number of very many digits"

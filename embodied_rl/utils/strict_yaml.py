"""Strict YAML: the mapping in a file that people write, or one line that says where it is wrong and what to do."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.errors import UserError

_MOST_BYTES, _DEEPEST = 1 << 20, 20
_OTHER_BASE = re.compile(r"[-+]?(0[0-9_]+|[0-9_]+(:[0-9_.]*)+)")
"""YAML 1.1 reads 0100 as 64, and 1:40 as 100."""


def read_mapping(path: Path, source: str = "") -> dict[Any, Any]:
    """Read a YAML file whose content is a mapping; an empty file has no keys.

    Args:
        source: Name of the file, for messages; '': its path.

    Raises:
        UserError: It can't be read, is no YAML or no mapping, uses anchors, a key occurs twice, a number would be read
            to another base, or mappings and lists lie too deep in each other.
    """
    source = source or str(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{source} has more than {_MOST_BYTES >> 20} MiB: it is no file of settings.")
        loader = _StrictLoader(path.read_text(encoding="utf-8"))
        loader.source = source
        content = loader.get_single_data()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{source} is not valid YAML: {' '.join(str(error).split()):.300}.") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{source} must hold keys and values, as in 'name: value'.")
    return content


class _StrictLoader(yaml.SafeLoader):
    """PyYAML's safe loader without what a file of settings does not need."""

    source = ""
    _depth = 0

    def _wrong(self, mark: yaml.Mark, problem: str) -> UserError:
        return UserError(f"{self.source} line {mark.line + 1}: {problem}.")

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:  # of an alias, too
            raise self._wrong(
                event.start_mark, "anchors and aliases (& and *) are not read: write the value where it is used"
            )
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._wrong(
                event.start_mark, f"brackets or mappings lie more than {_DEEPEST} deep in each other: remove them"
            )
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if node.tag == "tag:yaml.org,2002:int" and _OTHER_BASE.fullmatch(value):
            raise self._wrong(node.start_mark, f"{value:.80} would be read to another base: write a decimal number")
        return value

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen = set[Hashable]()
        for place, _ in node.value:
            if place.tag == "tag:yaml.org,2002:merge":
                raise self._wrong(place.start_mark, "the key << is not read: write the keys out")
            key = self.construct_object(place, deep=True)
            if isinstance(key, str) and not key.isprintable():
                raise self._wrong(place.start_mark, f"the key {key!r:.80} holds what cannot be printed: correct it")
            if key in seen:
                raise self._wrong(place.start_mark, f"the key {key!s:.80} occurs twice: remove one")
            seen.add(key)
        return super().construct_mapping(node, deep)

"""The one reader of dataclasses from files; config and checkpoints have their own tests of its messages."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import pytest

from embodied_rl.errors import UserError
from embodied_rl.utils.dataclass_io import read_dataclass


@dataclass(frozen=True)
class Inner:
    size: int
    shape: tuple[int, int] = (1, 2)

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be negative")


@dataclass(frozen=True)
class Outer:
    inner: Inner
    rate: float = 0.1
    kind: Literal["a", "b"] | None = None


def read(data: Any, base: Outer | None = None) -> Outer:
    return read_dataclass(Outer, data, where="model", source="x.json", base=base)


def test_what_asdict_made_is_read_back() -> None:
    value = Outer(Inner(3, (4, 5)), 2.0, "b")
    assert read(asdict(value)) == value


def test_a_base_gives_what_is_not_named() -> None:
    assert read({"rate": 1}, Outer(Inner(3))) == Outer(Inner(3), 1.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "x.json: 'model' lacks inner"),
        ([], "x.json: 'model' must hold keys and values"),
        ({"inner": {"size": 1, "shpe": [1, 2]}}, "unknown key 'model.inner.shpe'. Did you mean 'shape'"),
        ({"inner": {}}, "'model.inner' lacks size"),
        ({"inner": {"size": -1}}, "x.json describes no usable model.inner: size must not be negative"),
        ({"inner": {"size": 1, "shape": [1]}}, "'model.inner.shape' must be a list of 2 numbers"),
        ({"inner": {"size": 1}, "kind": "c"}, "'model.kind' must be one of a, b or null, got 'c'"),
        ({"inner": {"size": True}}, "'model.inner.size' must be a whole number, got True"),
    ],
)
def test_what_does_not_fit_is_named(data: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        read(data)
    assert message in str(caught.value)

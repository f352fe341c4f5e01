"""Arrays that compiled code hands on without counting references."""

# pyright: reportCallIssue=false
# numba passes an intrinsic's typing context itself

from __future__ import annotations

import sys
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from embodied_rl.sim.mujoco.borrow import borrowed
from embodied_rl.types import Array


class _Pair(NamedTuple):
    one: Array
    other: tuple[Array, int]


@njit
def _lend(array: Array) -> Array:
    return borrowed(array)  # whoever gets it must hold `array`, as these tests do


@njit
def _lend_pair(pair: _Pair) -> tuple[Array, Array, int]:
    pair = borrowed(pair)
    pair.one[0] = 7.0
    return pair.one[1:], pair.other[0], pair.other[1]


def test_a_borrowed_array_is_the_same_memory_without_its_owner() -> None:
    array = np.arange(6.0).reshape(2, 3)
    before = sys.getrefcount(array)
    lent = _lend(array)
    assert lent is not array
    assert lent.base is None
    assert lent.ctypes.data == array.ctypes.data
    assert sys.getrefcount(array) == before
    np.testing.assert_array_equal(lent, array)
    del lent
    np.testing.assert_array_equal(array.ravel(), np.arange(6.0))


def test_tuples_are_borrowed_with_all_that_they_hold() -> None:
    one, other = np.zeros(3), np.arange(4)[::2]
    part, strided, number = _lend_pair(_Pair(one, (other, 5)))
    assert one[0] == 7.0
    assert part.base is None
    assert strided.base is None
    assert part.ctypes.data == one[1:].ctypes.data
    assert strided.strides == other.strides
    np.testing.assert_array_equal(strided, other)
    assert number == 5


@pytest.mark.parametrize("value", ["text", (np.zeros(1), "text")])
def test_what_holds_references_otherwise_is_refused(value: object) -> None:
    with pytest.raises(TypingError, match="can be borrowed"):
        _lend(value)  # type: ignore[arg-type]

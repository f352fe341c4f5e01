"""Vectorised draws have the bits of one NumPy generator a row, whatever else is in the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from embodied_rl import rng as rng_module
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.types import Array

COUNTS = (1, 2, 7, 8, 9, 28, 128)
LARGEST = 2**63 - 1
WORDS = st.one_of(st.integers(0, 3), st.integers(0, LARGEST), st.sampled_from([2**32 - 1, 2**32, LARGEST]))


def by_row(seed: Array, decision: Array, count: int, normal: bool) -> Array:
    rows = [philox(int(s), int(d), int(normal)) for s, d in zip(seed, decision, strict=True)]
    return np.stack([(r.standard_normal if normal else r.random)(count, dtype=np.float32) for r in rows])


def bits(values: Array) -> Array:
    assert values.dtype == np.float32
    return values.view(np.uint32)


def draw(seed: Array, decision: Array, count: int, normal: bool) -> Array:
    rng = DecisionRng(seed, decision)
    return rng.normal(count) if normal else rng.uniform(count)


@pytest.mark.parametrize("normal", [False, True])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_keys_give_the_bits_of_numpys_generators(data: st.DataObject, normal: bool) -> None:
    rows = data.draw(st.integers(1, 80))
    seed, decision = (data.draw(arrays(np.int64, rows, elements=WORDS)) for _ in range(2))
    count = data.draw(st.integers(0, 140))
    np.testing.assert_array_equal(
        bits(draw(seed, decision, count, normal)), bits(by_row(seed, decision, count, normal))
    )


@pytest.mark.parametrize("normal", [False, True])
@pytest.mark.parametrize("count", COUNTS)
def test_many_rows_with_every_step_of_the_ziggurat(count: int, normal: bool) -> None:
    """Enough rows that wedges, rejections and the tail of the normal distribution all occur."""
    random = np.random.default_rng(count)
    seed, decision = random.integers(0, LARGEST, 3000), random.integers(0, 2000, 3000)
    drawn = draw(seed, decision, count, normal)
    np.testing.assert_array_equal(bits(drawn), bits(by_row(seed, decision, count, normal)))
    assert not normal or count < 28 or np.abs(drawn).max() > 3.66, "no draw from the tail: the test shows nothing"


@pytest.mark.parametrize("normal", [False, True])
def test_a_row_is_the_same_alone_and_in_a_batch(normal: bool) -> None:
    seed, decision = np.arange(200), np.arange(200) % 7
    together = draw(seed, decision, 9, normal)
    for part in (slice(0, 1), slice(5, 6), slice(0, 31), slice(40, 140)):
        np.testing.assert_array_equal(bits(draw(seed[part], decision[part], 9, normal)), bits(together[part]))


def test_few_rows_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectorised path does the work: NumPy draws the tail, about one number in 4,000."""
    left: list[int] = []

    def counted(seeds: Array, decisions: Array, count: int, *, normal: bool) -> Array:
        left.append(len(seeds))
        return by_row(seeds, decisions, count, normal)

    monkeypatch.setattr(rng_module, "_draw_by_row", counted)
    seed = np.arange(4096)
    draw(seed, seed, 7, False)
    draw(seed, seed, 7, True)
    assert len(left) == 1
    assert 0 < left[0] < 60


@pytest.mark.parametrize(("name", "value"), [("_ROUNDS", 9), ("_MARGIN", -(2.0**20)), ("_KEY", 0x5EEC)])
def test_a_broken_generator_is_found(monkeypatch: pytest.MonkeyPatch, name: str, value: float) -> None:
    seed = np.arange(1000)
    expected = [by_row(seed, seed, 28, normal) for normal in (False, True)]
    monkeypatch.setattr(rng_module, name, value)
    drawn = [draw(seed, seed, 28, normal) for normal in (False, True)]
    assert any((bits(a) != bits(b)).any() for a, b in zip(drawn, expected, strict=True))

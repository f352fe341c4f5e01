"""Sensor noise equals the official code's, ImageMagick's motion blur among it, given the same random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.rng import philox
from embodied_rl.sim.libero.plus import noise
from embodied_rl.sim.libero.plus.noise import add_noise, describe
from embodied_rl.types import Array
from tests.sim.libero.plus_golden import EVERY, NOISE, NUMBERS, LegacyDraws, picture


@pytest.fixture(scope="module")
def golden() -> dict[int, Array]:
    with np.load(NOISE) as arrays:
        return dict(zip(NUMBERS, arrays["noise"], strict=True))


def share_unlike(made: Array, official: Array) -> float:
    """Of the values: another SciPy may round one in a thousand otherwise."""
    apart = np.abs(made[::EVERY, ::EVERY].astype(int) - official)
    return 1.0 if apart.max() > 1 else float((apart > 0).mean())


@pytest.mark.parametrize("number", NUMBERS)
def test_each_is_the_official_one(number: int, golden: dict[int, Array]) -> None:
    before = picture()
    made = add_noise(before, number, LegacyDraws(number))
    assert share_unlike(made, golden[number]) <= 1e-3
    assert np.array_equal(before, picture()), "the simulator's picture stays"
    assert not np.array_equal(made, before)


@pytest.mark.parametrize("number", [3, 14, 21, 38, 42])
def test_another_strength_other_numbers_or_the_other_way_up_are_found(number: int, golden: dict[int, Array]) -> None:
    official = golden[number]
    assert share_unlike(add_noise(picture(), number + 1, LegacyDraws(number)), official) > 1e-3
    if number not in (14, 21):  # which draw nothing
        assert share_unlike(add_noise(picture(), number, LegacyDraws(number + 1)), official) > 1e-3
    assert share_unlike(add_noise(picture()[::-1], number, LegacyDraws(number))[::-1], official) > 1e-3 or number == 14


def test_a_swap_for_a_copy_is_found(golden: dict[int, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    """The official code writes a swap, and NumPy's views make a copy of it."""

    def swapped(picture: Array, last: int, offsets: Array) -> None:
        for row in range(len(offsets)):
            for column in range(len(offsets)):
                y, x = last - row, last - column
                there = y + offsets[row, column, 1], x + offsets[row, column, 0]
                picture[y, x], picture[there] = picture[there].copy(), picture[y, x].copy()

    monkeypatch.setattr(noise, "_take_nearby", swapped)
    assert share_unlike(add_noise(picture(), 50, LegacyDraws(50)), golden[50]) > 1e-3


def test_numbers_are_classes_of_ten() -> None:
    found = [describe(number) for number in range(1, 51)]
    assert found[0] == ("motion blur", 1)
    assert found[9:11] == [("motion blur", 10), ("Gaussian blur", 1)]
    assert found[20] == ("zoom blur", 1)
    assert found[39:41] == [("fog", 10), ("glass blur", 1)]
    assert len(set(found)) == 50
    for number in (0, 51, -1):
        with pytest.raises(ValueError, match="1 to 50"):
            describe(number)


def test_draws_decide_and_pictures_of_other_sizes_are_refused() -> None:
    one, again, other = (add_noise(picture(), 41, philox(seed, 1)) for seed in (1, 1, 2))
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    with pytest.raises(ValueError, match="256 x 256"):
        add_noise(picture()[:224, :224], 11, philox(0, 1))

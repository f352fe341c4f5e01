"""The closed form of the shortest stop against one found by bisection, and what makes it a fallback."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.real_robot.core.braking import plan_stop, ramp_length, ramp_sum


def searched(x: float, y: float, most: float, ticks: int) -> tuple[np.ndarray, np.ndarray]:
    """x and y of the stop, from the profile's definition: the length of the ramp back is bisected."""
    side = -1.0 if x + np.sign(y) * ramp_sum(np.array(abs(y))) < 0 else 1.0
    k = np.arange(1, ticks + 1)
    low, high = max(-side * y, 0.0), float(ticks)
    for _ in range(100):
        middle = (low + high) / 2
        profile = np.maximum(np.maximum(side * y - k, -most), np.minimum(0, k - middle))
        low, high = (middle, high) if side * x + profile.sum() > 0 else (low, middle)
    profile = np.asarray(side * profile)
    return x + np.cumsum(profile), profile


def states(count: int) -> np.ndarray:
    """Rows of x, y and the acceleration limit; every fifth of whole numbers, where the cases meet."""
    rng = np.random.default_rng(0)
    most = rng.choice([0.3, 0.5, 0.9, 1, 1.5, 2, 3, 7.3, 12], count)
    found = np.stack([rng.normal(size=count) * rng.choice([0.1, 1, 10, 40], count), rng.uniform(-1, 1, count), most], 1)
    found[::5, :2] = np.round(found[::5, :2])
    found[:, 1] *= most
    return found


def test_the_stop_is_the_searched_one() -> None:
    x, y, most = states(600).T
    stop = plan_stop(x, y, most)
    path, steps, changes = stop.path(most, 500)
    for row in range(len(x)):
        want_x, want_y = searched(x[row], y[row], most[row], 500)
        np.testing.assert_allclose(steps[:, row], want_x, atol=1e-7)
        np.testing.assert_allclose(changes[:, row], want_y, atol=1e-7)
    np.testing.assert_allclose(stop.distance(most), path[-1], rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(stop.first(most), changes[0], atol=1e-12)
    assert stop.ticks() < 500


def test_the_stop_keeps_jerk_and_acceleration_and_ends_at_rest() -> None:
    x, y, most = states(5000).T
    stop = plan_stop(x, y, most)
    _, steps, changes = stop.path(most, stop.ticks())
    assert np.abs(np.diff(changes, axis=0, prepend=y[None])).max() <= 1 + 1e-9
    assert (np.abs(changes) <= most * (1 + 1e-12)).all()
    assert np.abs(steps[-1]).max() < 1e-9
    assert not changes[-1].any()


def test_the_stop_of_its_next_state_is_its_rest() -> None:
    x, y, most = states(5000).T
    stop = plan_stop(x, y, most)
    first = stop.first(most)
    after = plan_stop(x + first, first, most)
    np.testing.assert_allclose(x + first + after.distance(most), stop.distance(most), rtol=1e-9, atol=1e-7)


def test_the_distance_is_continuous() -> None:
    """A jump would make set points hunt around their target."""
    x = np.linspace(-30, 30, 200_001)
    for y, most in ((0.0, 0.4), (0.7, 1.0), (-2.5, 3.0), (2.0, 2.0)):
        distance = plan_stop(x, np.full_like(x, y), np.array(most)).distance(np.array(most))
        assert (np.diff(distance) >= -1e-9).all()
        assert np.abs(np.diff(distance)).max() < 0.0003 * 110


@pytest.mark.parametrize(("length", "total"), [(1, 0), (2, 1), (3, 3), (2.5, 2), (4, 6)])
def test_sums_of_ramps(length: float, total: float) -> None:
    assert ramp_sum(np.array(length)) == pytest.approx(total)
    assert ramp_length(np.array(float(total))) == pytest.approx(length)

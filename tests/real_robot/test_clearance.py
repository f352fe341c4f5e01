"""The distance between two arms against MuJoCo's, on a model that is made of the file alone."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

from embodied_rl.real_robot.core.clearance import line_distance
from embodied_rl.real_robot.core.two_arms import load_two_arms
from tests.real_robot.two_arms_model import TwoArmModel

ALOHA = load_two_arms("aloha")


NEAR = np.array([0.0, 0.1, 0.3, 0.0, -0.25, 0.0] * 2)


def poses(count: int, seed: int = 0) -> np.ndarray:
    """About where both hands are in one place."""
    limits, wide = ALOHA.limits, np.array([0.3, 0.3, 0.3, 1.0, 0.5, 1.0] * 2)
    return np.clip(NEAR + wide * np.random.default_rng(seed).normal(size=(count, 12)), limits.lower, limits.upper)


def test_the_distance_is_mujocos() -> None:
    model, angles = TwoArmModel(), poses(80)
    found = ALOHA.clearance.at(angles)
    assert (found < 0).any()
    assert (found > 0.1).any()
    apart = found > 0  # MuJoCo's depth of overlapping capsules is another measure
    expected = [model.distance(one) for one in angles[apart]]
    np.testing.assert_allclose(found[apart], expected, atol=2e-6)


def test_the_nearest_links_are_named() -> None:
    left, right, apart = ALOHA.clearance.nearest(ALOHA.home)
    assert (left, right) == ("left hand", "right hand")
    assert apart == pytest.approx(ALOHA.clearance.at(ALOHA.home))


def test_fingers_are_compared_with_all_of_the_other_arm_but_its_hand() -> None:
    """Arms that hand something over: their fingers meet."""
    pairs = {ALOHA.clearance.nearest(pose)[:2] for pose in poses(150, seed=1)}
    assert any("finger" in one or "finger" in other for one, other in pairs)
    both = [(one, other) for pair in pairs for one, other in (pair, pair[::-1]) if "finger" in one]
    assert not any(other.endswith(("finger", "hand")) for _, other in both)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (([0, 0, 0], [1, 0, 0]), ([0.5, -1, 1], [0.5, 1, 1]), 1.0),  # within both
        (([0, 0, 0], [1, 0, 0]), ([2, 0, 0], [3, 0, 0]), 1.0),  # in one line
        (([0, 0, 0], [1, 0, 0]), ([0.2, 2, 0], [0.8, 2, 0]), 2.0),  # parallel
        (([0, 0, 0], [1, 0, 0]), ([0.2, 2, 0], [0.8, 2, 1e-9]), 2.0),  # nearly parallel
        (([0, 0, 0], [0, 0, 0]), ([3, 4, 0], [3, 4, 0]), 5.0),  # points
        (([0, 0, 0], [0, 0, 0]), ([-1, 2, 0], [1, 2, 0]), 2.0),  # a point and a line
        (([-1, 0, 0], [1, 0, 0]), ([0, -1, 0], [0, 1, 0]), 0.0),  # crossing
    ],
)
def test_lines_of_every_kind(
    one: tuple[list[float], list[float]], other: tuple[list[float], list[float]], expected: float
) -> None:
    ends = [np.array(end, np.float64) for end in (*one, *other)]
    assert line_distance(*ends) == pytest.approx(expected, abs=1e-12)
    assert line_distance(ends[2], ends[3], ends[0], ends[1]) == pytest.approx(expected, abs=1e-12)


def test_no_point_of_two_lines_is_nearer() -> None:
    rng = np.random.default_rng(0)
    ends = rng.normal(size=(4, 300, 3))
    shares = np.linspace(0, 1, 41)[:, None, None]
    points = ends[0] + shares * (ends[1] - ends[0]), ends[2] + shares * (ends[3] - ends[2])
    nearest = np.linalg.norm(points[0][:, None] - points[1][None], axis=-1).min((0, 1))
    found = line_distance(*ends)
    assert (found <= nearest + 1e-12).all()
    assert (nearest - found).max() < 0.15, "as near as the grid is fine"


def lowest_on_the_way(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The least distance between pairs of poses [m, n], at 15 moments."""
    shares = np.linspace(0, 1, 15)[:, None, None]
    return ALOHA.clearance.at(before + shares * (after - before)).min(0)


def test_the_bound_holds_on_the_way_and_its_broken_variants_do_not() -> None:
    """Broken: a look at the ends of the way alone, and arms that are taken to go a tenth of what they can."""
    before = poses(100, seed=2)
    after = before + np.random.default_rng(2).uniform(-0.4, 0.4, before.shape)
    lowest = lowest_on_the_way(before, after)
    short = copy(ALOHA.clearance)
    short._reach = 0.1 * short._reach
    bound, broken = (
        np.array([one.between(np.stack(pair))[0] for pair in zip(before, after, strict=True)])
        for one in (ALOHA.clearance, short)
    )
    assert (bound <= lowest + 1e-9).all()
    assert (broken > lowest + 1e-3).any()
    ends = np.minimum(ALOHA.clearance.at(before), ALOHA.clearance.at(after))
    assert (ends > lowest + 1e-3).any()


def test_at_rest_the_bound_is_the_distance() -> None:
    assert ALOHA.clearance.between(ALOHA.home[None])[0] == pytest.approx(ALOHA.clearance.at(ALOHA.home))

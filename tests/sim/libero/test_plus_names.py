"""Names of LIBERO-plus' tasks: the whole official map is understood, and counts as published."""

from __future__ import annotations

from collections import Counter

import pytest

from embodied_rl.sim.libero.plus.names import HOME, Viewpoint, parse_name
from embodied_rl.utils.suites import PLUS_SUITES
from tests.sim.libero.plus_golden import names


def test_the_whole_official_map_counts_as_published() -> None:
    table = names()
    assert {suite: len(rows) for suite, rows in table.items()} == {
        "libero_spatial": 2402,
        "libero_object": 2518,
        "libero_goal": 2591,
        "libero_10": 2519,
    }
    assert tuple(table) == PLUS_SUITES
    found = [parse_name(name) for rows in table.values() for name in rows]
    assert Counter((name.dimension, bool(name.needs)) for name in found) == {
        ("camera", False): 1599,
        ("robot", False): 1550,
        ("language", False): 1537,
        ("noise", False): 1601,
        ("layout", False): 696,
        ("layout", True): 829,
        ("light", True): 1142,
        ("background", True): 1076,
    }
    assert sum(not name.needs for name in found) == 6983
    bases = {suite: {parse_name(name).base for name in rows} for suite, rows in table.items()}
    assert all(len(tasks) == 10 for tasks in bases.values()), "a base that is misread would be an eleventh"
    assert {name.noise for name in found} == set(range(51))
    assert {name.start for name in found} <= set(range(501))


def test_what_a_name_says() -> None:
    changed = parse_name("put_the_bowl_on_the_plate_view_345_15_120_3_358_initstate_0")
    assert (changed.base, changed.dimension) == ("put_the_bowl_on_the_plate", "camera")
    assert changed.view == Viewpoint(345, 15, 120, 3, 358)
    noisy = parse_name("KITCHEN_SCENE3_turn_on_the_stove_view_0_0_100_0_0_initstate_0_noise_45")
    assert (noisy.noise, noisy.view, noisy.start, noisy.base) == (45, HOME, 0, "KITCHEN_SCENE3_turn_on_the_stove")
    moved = parse_name("turn_on_the_stove_moved_level2_sample4")
    assert (moved.base, moved.dimension, moved.needs) == ("turn_on_the_stove", "layout", "")


@pytest.mark.parametrize(
    "name",
    [
        "turn_on_the_stove",
        "turn_on_the_stove_view_0_0_100_0_0_initstate_0",
        "turn_on_the_stove_view_15_0_100_0_0_initstate_3",
        "turn_on_the_stove_view_0_0_100_0_initstate_3",
        "turn_on_the_stove_level1_sample1 copy",
    ],
)
def test_what_is_no_task_of_it_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="LIBERO-plus"):
        parse_name(name)

"""The emergency stop's buttons: a bit for each, and silence that is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.real_robot.core.buttons import Buttons

MS, S = 1_000_000, 1_000_000_000


def test_silence_of_a_button_that_repeats_is_noticed_to_the_nanosecond() -> None:
    buttons = Buttons()
    for tick in range(4):
        buttons.heard(b"a", "cell", False, tick * 100 * MS)
        assert buttons.problem(60 * S) == "" if tick < 3 else True
    assert buttons.problem(800 * MS) == ""
    assert buttons.problem(800 * MS + 1) == "cell repeats and is silent for 0.500 s, at most 0.500"
    buttons.heard(b"a", "cell", False, 900 * MS)
    assert buttons.problem(2000 * MS) == "", "a gap that was longer: three of the longest"
    assert buttons.problem(2701 * MS).startswith("cell repeats")


@pytest.mark.parametrize("period_ms", [10, 100, 400, 1000, 1900])
def test_the_age_is_half_a_second_or_three_periods(period_ms: int) -> None:
    buttons, now = Buttons(), 0
    for _ in range(6):
        now += period_ms * MS
        buttons.heard(b"a", "cell", False, now)
    (button,) = buttons.present
    assert button.rate_hz == pytest.approx(1000 / period_ms)
    most = max(500, 3 * period_ms)
    assert buttons.problem(now + most * MS) == ""
    assert buttons.problem(now + most * MS + 1)


def test_a_long_silence_does_not_allow_another_one() -> None:
    """A loose cable: ten seconds of silence, a few words, silence again."""
    buttons, now = Buttons(), 0
    for _ in range(10):
        now += 100 * MS
        buttons.heard(b"a", "cell", False, now)
    for _ in range(3):
        now += 10 * S
        assert buttons.problem(now)
        for _ in range(3):
            buttons.heard(b"a", "cell", False, now)
            now += 100 * MS
        assert buttons.problem(now - 100 * MS + 6 * S + 1).startswith("cell repeats")
    for _ in range(8):
        buttons.heard(b"a", "cell", False, now)
        now += 100 * MS
    assert buttons.problem(now + 400 * MS + 1), "after eight words half a second again"


@pytest.mark.parametrize("pressed", [True, False])
def test_a_button_that_repeats_and_dies_as_it_moves_is_silent(pressed: bool) -> None:
    buttons, now = Buttons(), 0
    for _ in range(10):
        now += 100 * MS
        buttons.heard(b"a", "cell", not pressed, now)
    buttons.heard(b"a", "cell", pressed, now + 100 * MS)
    assert buttons.problem(now + 100 * MS + 500 * MS) == ""
    assert buttons.problem(now + 100 * MS + 500 * MS + 1).startswith("cell repeats")


def test_a_button_that_speaks_when_it_moves_may_be_silent() -> None:
    buttons, now = Buttons(), 0
    for pressed in (False, True, False, True, False):
        now += 300 * MS
        buttons.heard(b"a", "cell", pressed, now)
        buttons.heard(b"a", "cell", pressed, now + MS)  # the same by another subscription
    for _ in range(5):  # now and then
        now += 3 * S
        buttons.heard(b"a", "cell", False, now)
    assert buttons.problem(now + 3600 * S) == ""


def test_each_silent_button_is_named_though_others_are_heard() -> None:
    buttons = Buttons()
    for tick in range(20):
        buttons.heard(b"a", "left", False, tick * 100 * MS)
        if tick < 10:
            buttons.heard(b"b", "right", False, tick * 100 * MS)
    assert buttons.problem(2 * S).startswith("right repeats and is silent for 1.1")
    buttons.publish({b"a": "left"}, 2 * S)
    assert "right" in buttons.problem(2 * S), "one that is gone is silent"
    assert [button.name for button in buttons.gone] == ["right"]
    buttons.heard(b"c", "right", True, 3 * S)
    assert buttons.problem(2 * S).startswith("right"), "not by a press"
    buttons.publish({b"a": "left", b"d": "right"}, 3 * S)
    buttons.heard(b"d", "right", False, 3 * S)
    assert buttons.problem(2 * S) == ""


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_pressed_button_is_pressed_until_it_says_otherwise(words: list[tuple[str, bool]]) -> None:
    """Against a dictionary; the broken variant has one bit for all."""
    buttons, model = Buttons(), dict[str, bool]()
    for number, (name, pressed) in enumerate(words):
        moved = buttons.heard(name.encode(), name, pressed, number * MS, number)
        assert moved == (pressed != model.get(name, False))
        model[name] = pressed
        assert set(buttons.pressed) == {key for key, down in model.items() if down}


@pytest.mark.parametrize(
    ("name", "heard_s", "frees"),
    [("left", 6, True), ("left", 12, True), ("other", 6, False), ("other", 12, True), ("right", 6, False)],
)
def test_a_pressed_button_that_is_gone_is_freed_by_one_in_its_place_alone(name: str, heard_s: int, frees: bool) -> None:
    """It says its last word at 5 s and is gone from ROS' graph at 10 s, as one that was killed."""
    buttons = Buttons()
    buttons.heard(b"r", "right", False, 4 * S)
    buttons.heard(b"l", "left", True, 5 * S)
    for second in range(6, 16):
        publishers = {b"r": "right", b"n": name} | ({b"l": "left"} if second < 10 else {})
        buttons.publish(publishers, second * S)
        buttons.heard(b"r", "right", False, second * S)
        if second >= heard_s and name != "right":
            assert buttons.heard(b"n", name, False, second * S) is False
        assert bool(buttons.pressed) or second >= 10
    assert buttons.pressed == (() if frees else ("left",))
    buttons.heard(b"m", name, True, 20 * S)
    assert buttons.pressed[-1] == name


def test_messages_that_were_heard_already_or_come_late_are_left_out() -> None:
    buttons, rng = Buttons(), np.random.default_rng(0)
    said = [bool(rng.integers(2)) for _ in range(30)]
    for number, pressed in enumerate(said):
        buttons.heard(b"a", "cell", pressed, number * S, number)
        for _ in range(2):
            late = int(rng.integers(0, number + 1))
            assert not buttons.heard(b"a", "cell", said[late], number * S, late)
        assert bool(buttons.pressed) == pressed

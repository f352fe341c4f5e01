"""Figures in words: none is rounded to nothing, and a loss is no gain."""

from __future__ import annotations

import pytest

from embodied_rl.utils.words import file_size, moved, time_spent


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 bytes"), (1, "1 byte"), (4_000_000, "4.0 MB"), (450_000_000, "0.5 GB"), (15_200_000_000, "15.2 GB")],
)
def test_a_file_that_holds_something_is_not_of_size_nothing(count: int, said: str) -> None:
    assert file_size(count) == said


def test_a_short_time_is_not_none() -> None:
    assert (time_spent(1.2), time_spent(40), time_spent(90)) == ("1 second", "40 seconds", "1.5 minutes")


def test_what_got_worse_did_not_improve() -> None:
    assert moved(-1203.4, -153.2) == "improved by 1050.2"
    assert moved(-20.0, -34.0) == "got worse by 14.0"
    assert moved(3.0, 3.01) == "did not change"

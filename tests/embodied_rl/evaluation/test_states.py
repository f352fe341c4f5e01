"""Which states are trained on, which are evaluated, and what the report says about the overlap."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.evaluation.states import overlap, split_states, trained_states
from embodied_rl.types import EpisodeSpec


@given(st.integers(2, 200).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1))))
def test_the_split_loses_no_state_and_shares_none(sizes: tuple[int, int]) -> None:
    count, heldout = sizes
    split = split_states(count, heldout)
    assert sorted([*split.train, *split.heldout]) == list(range(count))
    assert len(split.heldout) == heldout
    assert split == split_states(count, heldout)


def test_the_default_halves_the_official_fifty() -> None:
    assert (split_states().train, split_states().heldout) == (range(25), range(25, 50))


@pytest.mark.parametrize(("count", "heldout"), [(50, 0), (50, 50), (50, -1), (1, 1), (0, 0)])
def test_a_split_without_both_parts_is_refused(count: int, heldout: int) -> None:
    with pytest.raises(UserError, match="can be held out"):
        split_states(count, heldout)


def specs(pairs: list[tuple[str, int]]) -> list[EpisodeSpec]:
    return [EpisodeSpec(i, task, row, 1, i) for i, (task, row) in enumerate(pairs)]


PAIRS = [("a/x", 0), ("a/x", 3), ("a/y", 0), ("a/y", 3)]


def test_overlap_by_hand() -> None:
    found = overlap({"a/x": [3, 4], "a/y": [], "b/z": [0]}, specs(PAIRS))
    assert (found.seen, found.shared, found.episodes) == ({"a/x": [3]}, 1, 4)
    assert found.sentence() == "1 of 4 episodes start from a state that was trained on"
    assert "none" in overlap({"a/x": [5]}, specs(PAIRS)).sentence()
    assert json.loads(json.dumps(found.to_json())) == {"seen": {"a/x": [3]}, "shared": 1, "episodes": 4}


def test_what_a_checkpoint_does_not_say_is_not_taken_for_no_overlap() -> None:
    assert trained_states({"command": "embodied-rl sft"}) is None
    assert overlap(None, specs(PAIRS)).sentence().startswith("unknown")


@pytest.mark.parametrize("entry", [[], "all", {"a": 3}, {"a": ["0"]}, {"a": [True]}])
def test_an_unreadable_record_is_an_error(entry: object) -> None:
    with pytest.raises(UserError, match="train_states"):
        trained_states({"train_states": entry})
    assert trained_states({"train_states": {"a": [1, 2]}}) == {"a": [1, 2]}

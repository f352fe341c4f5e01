"""What a policy was trained on, and what the report says about the overlap with what is evaluated."""

from __future__ import annotations

import json

import pytest

from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import demonstrated_states, join_states, overlap, trained_states
from embodied_rl.types import EpisodeSpec


def specs(pairs: list[tuple[str, int]]) -> list[EpisodeSpec]:
    return [EpisodeSpec(i, task, row, 1, i) for i, (task, row) in enumerate(pairs)]


PAIRS = [("a/x", 0), ("a/x", 3), ("a/y", 0), ("a/y", 3)]


def test_overlap_by_hand() -> None:
    found = overlap({"a/x": [3, 4], "a/y": [], "b/z": [0]}, specs(PAIRS))
    assert (found.seen, found.shared, found.episodes) == ({"a/x": [3]}, 1, 4)
    assert found.describe() == "1 of 4 episodes start from a state that was trained on"
    assert "none" in overlap({"a/x": [5]}, specs(PAIRS)).describe()
    assert json.loads(json.dumps(found.to_json())) == {"seen": {"a/x": [3]}, "shared": 1, "episodes": 4}


def test_what_a_checkpoint_does_not_say_is_not_taken_for_no_overlap() -> None:
    assert trained_states({"command": "embodied-rl sft"}) is None
    assert overlap(None, specs(PAIRS)).describe().startswith("unknown")


@pytest.mark.parametrize("entry", [[], "all", {"a": 3}, {"a": ["0"]}, {"a": [True]}])
def test_an_unreadable_record_is_an_error(entry: object) -> None:
    with pytest.raises(UserError, match="train_states"):
        trained_states({"train_states": entry})
    assert trained_states({"train_states": {"a": [1, 2]}}) == {"a": [1, 2]}


def test_training_on_adds_its_states_to_what_is_known() -> None:
    assert join_states({"a/x": [3, 1]}, {"a/x": [1, 2], "a/y": [0]}) == {"a/x": [1, 2, 3], "a/y": [0]}
    assert join_states({}, {"a/y": [0]}) == {"a/y": [0]}
    assert join_states(None, {"a/y": [0]}) is None, "what came before is not known, so the whole is not"


def test_demonstrations_say_where_they_start() -> None:
    assert demonstrated_states({"split": "fresh"}) == {}
    assert demonstrated_states({"split": "train", "train_states": {"a/x": [4]}}) == {"a/x": [4]}
    assert demonstrated_states({}) is None, "a dataset from elsewhere"

"""A policy server that goes wrong while the twin's arm runs: over real ROS 2, the arm holds and is told why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.process

WORDS = "pick up the bottle and place it in the basket"


@pytest.fixture(scope="module")
def found(live: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return live("policy_faults", "0.25", str(tmp_path_factory.mktemp("server")))


@pytest.mark.parametrize(
    ("fault", "why"), [("shape", "actions (3, 7) instead of (4, 7)"), ("late", "steps after its observation")]
)
def test_an_arm_whose_answers_are_not_used_holds_and_says_why(fault: str, why: str, found: dict[str, Any]) -> None:
    said = found[fault]
    assert said["held"]
    assert said["reason"].startswith("policy: ")
    assert why in said["why"]
    assert said["warned"].startswith("policy: ")
    assert said["diagnosed"], "a warning with the reason, for whoever watches /diagnostics"
    passed, detail = said["check"]
    assert not passed
    assert why in detail
    assert not said["resume"]


def test_nobody_changes_the_task_of_an_arm_that_runs(found: dict[str, Any]) -> None:
    told, instruction, _ = found["instruction"]
    assert told == "the instruction 'throw the mug' is not taken while the arm is running: disarm it"
    assert instruction == WORDS


def test_a_server_with_another_meaning_of_the_numbers_is_refused(found: dict[str, Any]) -> None:
    named, state, (resumed, why), (accepted, answer), ended = found["unnorm_key"]
    assert "unnorm_key bridge_orig, not libero_object" in named
    assert (state, resumed, accepted, ended) == ("holding", False, False, "")
    assert why == answer
    assert why in named


def test_other_weights_move_the_arm_after_a_yes(found: dict[str, Any]) -> None:
    named, state, (resumed, why), accepted, ended = found["weights"]
    assert "weights others, not none" in named
    assert (state, resumed, accepted, ended) == ("holding", False, [True, ""], "")
    assert why.endswith("~/accept_policy")


def test_a_task_that_the_policy_was_not_trained_on_is_warned_of(found: dict[str, Any]) -> None:
    warned, passed, detail = found["unknown"]
    assert warned == "'throw the mug' is none of the 1 tasks that the policy was trained on"
    assert passed, "a person may try"
    assert warned in detail

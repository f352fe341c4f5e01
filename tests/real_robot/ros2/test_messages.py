"""What other processes say is checked: anything else is named in a line, never a traceback."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.context import make_context
from embodied_rl.real_robot.ros2.messages import Each, Kind, Many, Maybe, MessageError, read
from embodied_rl.real_robot.ros2.metadata import unknown_task, wrong_metadata
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.preflight import from_json

KIND: dict[str, Kind] = {"a": int, "b": Maybe({"c": float}), "d": Each(str), "e": Many(bool)}
GOOD: dict[str, Any] = {"a": 1, "b": {"c": 2}, "d": {"x": "y"}, "e": [True], "more": None}
SERVER: dict[str, Any] = {
    "cameras": 2,
    "proprio_dim": 8,
    "chunk_len": 4,
    "action_dim": 7,
    "policy": "p",
    "instruction": True,
}


def test_what_is_as_it_should_be_is_read() -> None:
    assert read(json.dumps(GOOD), KIND) == GOOD
    assert read(json.dumps(GOOD | {"b": None}), KIND)["b"] is None
    assert np.isnan(read('{"a": NaN}', {"a": float})["a"]), "a rate of what never came"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("9" * 5000, "no JSON"),
        ("[1]", "the message is list, not keys and values"),
        ("{}", "a is missing"),
        (json.dumps(GOOD | {"a": True}), "a is bool, not int"),
        (json.dumps(GOOD | {"a": 1.5}), "a is float, not int"),
        (json.dumps(GOOD | {"a": 10**40}), "a is larger than 1e"),
        (json.dumps(GOOD | {"b": {}}), "c is missing"),
        (json.dumps(GOOD | {"b": {"c": "2"}}), "c is str, not float"),
        (json.dumps(GOOD | {"d": ["x"]}), "d is list, not keys and values"),
        (json.dumps(GOOD | {"d": {"x": 1}}), "x is int, not str"),
        (json.dumps(GOOD | {"e": {}}), "e is dict, not list"),
        (json.dumps(GOOD | {"e": [1]}), "e is int, not bool"),
    ],
)
def test_anything_else_is_named_in_a_line(text: str, words: str) -> None:
    with pytest.raises(MessageError, match=words) as caught:
        read(text, KIND)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "null", "[1]", '[{"name": "limits"}]', '[{"name": 1, "passed": 1, "detail": ""}]']
)
def test_checks_that_are_none_are_an_error_of_one_line(text: str) -> None:
    with pytest.raises(UserError, match="the bridge's checks are not understood"):
        from_json(text)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cameras": "two"}, "cameras is str, not int"),
        ({"policy": None}, "policy is NoneType, not str"),
        ({"chunk_len": 0}, "chunk_len is 0: it must lie in 1"),
        ({"cameras": -1}, "cameras is -1"),
        ({"protocol": 2}, "speaks version 2 of the protocol, the bridge 1"),
        ({"tasks": "open the drawer"}, "tasks is str, not list"),
        ({"tasks": [1]}, "tasks is int, not str"),
        ({"more": b"\xff"}, "not JSON serializable"),
        ({"more": np.zeros(2)}, "not JSON serializable"),
    ],
)
def test_a_server_that_describes_something_else_is_refused_in_a_line(change: dict[str, Any], words: str) -> None:
    assert wrong_metadata(SERVER) == ""
    client: Any = SimpleNamespace(metadata=SERVER | change)
    with pytest.raises(UserError, match=words) as caught:
        make_context(SimpleNamespace(), BridgeOptions(), [client])  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_server_that_says_too_little_is_refused_in_a_line() -> None:
    for name in SERVER:
        assert f"{name} is missing" in wrong_metadata({key: value for key, value in SERVER.items() if key != name})


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        ("Open the  drawer.", ""),
        ("turn on the stove", ""),
        (
            "open the door",
            "'open the door' is none of the 2 tasks that the policy was trained on; the nearest is 'open",
        ),
        ("x", "'x' is none of the 2 tasks that the policy was trained on"),
    ],
)
def test_an_instruction_that_the_policy_was_not_trained_on(instruction: str, words: str) -> None:
    tasks = ["open the drawer", "turn on the stove"]
    said = unknown_task(instruction, {"tasks": tasks})
    assert said.startswith(words)
    assert bool(said) == bool(words)
    assert unknown_task(instruction, {"tasks": None}) == unknown_task(instruction, {}) == ""

"""A policy server that goes wrong while the twin's arm runs: over real ROS 2, the arm holds and is told why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.environment import ros_environment

ROOT, SPEED = Path(__file__).parents[3], "0.25"
WORDS = "pick up the bottle and place it in the basket"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, alone: Callable[[], AbstractContextManager[None]]) -> Any:
    try:
        environment = ros_environment(domain=90 + os.getpid() % 80, loopback=True)
    except UserError as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))  # .ci/run installs it
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.real_robot.ros2.policy_faults", SPEED]
    command.append(str(tmp_path_factory.mktemp("server")))
    with alone():
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


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

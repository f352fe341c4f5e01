"""Anybody may publish on the bridge's and the twin's topics: what is no such message is left out, counted and shown."""

from __future__ import annotations

import json
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from embodied_rl.real_robot.deploy.dashboard import dashboard
from embodied_rl.real_robot.deploy.launcher import Launcher
from embodied_rl.real_robot.deploy.subscriptions import STATE, STATUS, TWIN, Subscriptions
from embodied_rl.real_robot.ros2.messages import read
from embodied_rl.real_robot.twin.node import EPISODE, TwinNode

FLOW = {"rate_hz": 100.0, "age_ms": float("nan"), "problem": ""}
GOOD: dict[str, Any] = {
    "state": "running",
    "mode": "live",
    "faults": [],
    "tick_ms": None,
    "step_ms": {"p50": 50.0, "p99": 51.0, "max": 52.0},
    "acting": 0.95,
    "answer_ms": None,
    "delay_steps": 1,
    "answers": 3,
    "unused": 1,
    "warnings": ["policy: late"],
    "errors": 0,
    "last_error": "",
    "outcomes": {"allow": 3},
    "reasons": {},
    "holds": 0,
    "last_hold": "",
    "interventions": 1,
    "since_intervention_s": 2.0,
    "instruction": "open the drawer",
    "policy": "p",
    "detector": {"name": "clock 1a2b", "alarms": []},
    "recording": {"file": "a.mcap", "dropped": 0, "problem": ""},
    "flows": {"joint_states": FLOW},
}


def shown(status: dict[str, Any], ignored: str = "") -> str:
    console = Console(file=StringIO(), width=200)
    console.print(dashboard(status, [], "", ignored))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def message(said: object) -> Any:
    return SimpleNamespace(data=said if isinstance(said, str) else json.dumps(said))


def test_what_is_no_message_is_left_out_and_counted() -> None:
    subscriptions, taken = Subscriptions(), list[dict[str, Any]]()
    callback = subscriptions.on("/embodied_rl/status", STATUS, taken.append)
    callback(message(GOOD))
    assert subscriptions.ignored == ""
    for wrong in ("", "{", {}, [], GOOD | {"flows": {"front": {}}}, GOOD | {"holds": "many"}, GOOD | {"faults": [1]}):
        callback(message(wrong))
    assert len(taken) == 1
    assert subscriptions.ignored == "7 messages left out, the last on /embodied_rl/status: faults is int, not str"
    assert "7 messages left out" in shown(GOOD, subscriptions.ignored)


@pytest.mark.parametrize("key", sorted(STATUS))
def test_a_status_that_lacks_anything_the_dashboard_reads_is_left_out(key: str) -> None:
    subscriptions, taken = Subscriptions(), list[dict[str, Any]]()
    subscriptions.on("~/status", STATUS, taken.append)(message({name: GOOD[name] for name in GOOD if name != key}))
    assert taken == []
    least = {name: GOOD[name] for name in STATUS}
    assert "open the drawer" in shown(read(json.dumps(least), STATUS)), "nothing else is read"


def test_words_are_shown_as_they_are() -> None:
    words = "open the [red] drawer [/]"
    text = shown(GOOD | {"instruction": words, "policy": "[/b]", "last_hold": "[/]", "interventions": 1})
    assert words in text
    assert "[/b]; 3 answers" in text
    assert "clock 1a2b; no alarm in this episode" in shown(GOOD)
    assert "clock 1a2b; alarm at decision 6, 31" in shown(
        GOOD | {"detector": {"name": "clock 1a2b", "alarms": [6, 31]}}
    )
    assert "clock" not in shown(GOOD | {"detector": None})
    assert "takeovers" in shown(GOOD | {"since_intervention_s": None})


def test_what_wakes_somebody_is_a_message_that_was_taken() -> None:
    subscriptions, taken = Subscriptions(), list[dict[str, Any]]()
    subscriptions.on("~/state", STATE, taken.append)(message({"state": "armed", "event": "arm", "reason": ""}))
    assert subscriptions.wait(lambda: bool(taken), 0.0)
    subscriptions.on("/twin/state", TWIN, taken.append)(message({"number": 1}))
    assert not subscriptions.wait(lambda: len(taken) > 1, 0.0)


def test_deploy_that_hears_nothing_any_more_ends() -> None:
    launcher = Launcher.__new__(Launcher)
    launcher.processes, launcher.session = {}, SimpleNamespace(error=None)  # type: ignore[assignment]
    assert launcher.ended() == ""
    launcher.session.error = KeyError("state")
    assert "deploy hears nothing any more: KeyError" in launcher.ended()


class Log:
    """A node's, and the node."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def get_logger(self) -> Log:
        return self

    def warning(self, line: str) -> None:
        self.lines.append(line)


def test_the_twin_leaves_out_what_is_no_episode_and_no_fault() -> None:
    from threading import Lock

    twin, log = TwinNode.__new__(TwinNode), Log()
    twin._session = SimpleNamespace(node=log)  # type: ignore[assignment]
    twin.plant = SimpleNamespace(unknown=lambda task, *_: "unknown task" if task == "x" else "")  # type: ignore[assignment]
    twin._lock, twin._wanted, twin._dropped, twin._deaf = Lock(), None, set(), False
    good = {"number": 1, "task": "a", "state": 50, "seed": 0}
    for wrong in ("{", {}, good | {"state": "50"}, good | {"task": "x"}):
        twin._episode(message(wrong))
    assert twin._wanted is None
    for wrong in (
        "",
        {"dropped": "agentview", "deaf": False, "spoilt": {}},
        {"dropped": [1], "deaf": False, "spoilt": {}},
        {"dropped": [], "deaf": 1, "spoilt": {}},
        {"dropped": [], "deaf": False, "spoilt": ["joints"]},
    ):
        twin._inject(message(wrong))
    assert twin._dropped == set()
    assert len(log.lines) == 9
    assert log.lines[3] == "/twin/episode left out: unknown task"
    twin._episode(message(good))
    twin._inject(message({"dropped": ["agentview"], "deaf": True, "spoilt": {}}))
    assert (twin._wanted, twin._dropped, twin._deaf) == (good, {"agentview"}, True)
    twin._trajectory(None)  # is not even looked at
    assert set(EPISODE) == set(good)

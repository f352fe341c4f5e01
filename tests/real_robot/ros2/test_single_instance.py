"""Two bridges never run on one domain, also where they start at once and where ROS has not seen the first one yet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.real_robot.ros2 import single_instance as module
from embodied_rl.real_robot.ros2.single_instance import SecondBridgeError, claimed, single_instance

ROOT = Path(__file__).parents[3]
HELD = """
import time
from embodied_rl.real_robot.ros2.single_instance import claimed
with claimed({key!r}, "/embodied_rl"):
    print("held", flush=True)
    time.sleep(60)
"""


class Graph:
    """A domain's nodes; `answering` are those that are alive."""

    def __init__(self) -> None:
        self.nodes: list[tuple[str, str]] = []
        self.answering: set[str] = set()
        self.asked: list[str] = []

    def session(self, name: str) -> Any:
        self.nodes.append((name, "/"))
        self.answering.add(f"/{name}")
        node = SimpleNamespace(get_namespace=lambda: "/", get_node_names_and_namespaces=lambda: list(self.nodes))
        return Opened(node)

    def answers(self, node: Any, name: str) -> bool:
        self.asked.append(name)
        return name in self.answering


class Opened:
    """A session."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def start(self) -> None:
        """Nothing to run."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Graph:
    made = Graph()
    monkeypatch.setattr(module, "Session", made.session)
    monkeypatch.setattr(module, "_answers", made.answers)
    monkeypatch.setattr(module, "_DISCOVERY_S", 0.1)
    monkeypatch.setenv("ROS_DOMAIN_ID", f"test{os.getpid()}")
    return made


def test_two_that_start_at_once_on_one_computer_are_not_both_let_in(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_refuse_others", lambda *_: None)  # neither is discovered yet
    with single_instance("embodied_rl"):
        with (
            pytest.raises(SecondBridgeError, match="a bridge runs already, /embodied_rl"),
            single_instance("embodied_rl"),
        ):
            raise AssertionError("two")
        monkeypatch.setenv("ROS_DOMAIN_ID", f"other{os.getpid()}")
        with single_instance("embodied_rl"):
            """Another domain is another arm's."""
    with single_instance("embodied_rl"):
        """The first one has ended."""


def test_two_that_start_at_once_on_two_computers_are_not_both_let_in(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.session("_embodied_rl_alone_0123")  # it still looks for others itself: there is no bridge's node yet
    with pytest.raises(SecondBridgeError, match="starts at the same moment"), single_instance("embodied_rl"):
        raise AssertionError("two")


def test_a_bridge_without_the_hidden_node_is_seen(graph: Graph) -> None:
    graph.session("embodied_rl")
    with pytest.raises(SecondBridgeError), single_instance("embodied_rl"):
        raise AssertionError("two")


def test_a_bridge_that_was_killed_is_no_hindrance_and_asked_once(graph: Graph) -> None:
    for name in ("embodied_rl", "_embodied_rl_alone_0123", "somebody_else"):
        graph.session(name)
    graph.answering.clear()
    with single_instance("embodied_rl"):
        assert sorted(graph.asked) == ["/_embodied_rl_alone_0123", "/embodied_rl"]


@pytest.mark.process
def test_a_killed_process_holds_nothing() -> None:
    key = f"test/{os.getpid()}" + 200 * "/long"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", HELD.format(key=key)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(SecondBridgeError), claimed(key, "/embodied_rl"):
            raise AssertionError("two")
        other.send_signal(signal.SIGKILL)
    with claimed(key, "/embodied_rl"):
        """It is free."""

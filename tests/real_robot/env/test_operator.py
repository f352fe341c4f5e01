"""A person's keys beside training on a real arm: the stop at any moment, scenes, judgements, and the end."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.states import Event
from embodied_rl.real_robot.env.arm import ArmStoppedError
from embodied_rl.real_robot.env.operator import ArmOperator
from embodied_rl.real_robot.ros2.preflight import Check
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.signals import StopRequest

SPEC = EpisodeSpec(2, "arm/open the drawer", 7, seed=1)


class Typed:
    """A terminal whose keys come when a test presses them."""

    def __init__(self) -> None:
        self.pressed = queue.SimpleQueue[str]()
        self.left = False

    def read(self, seconds: float) -> str:
        try:
            return self.pressed.get(timeout=seconds)
        except queue.Empty:
            return ""

    def __enter__(self) -> Typed:
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True


class Bridge:
    """Keeps what it is asked for, and says what a test wants to be checked."""

    error: BaseException | None = None

    def __init__(self) -> None:
        self.checks = [Check("pose", True, "at rest"), Check("policy", False, "no answer yet")]
        self.asked: list[object] = []
        self.heard = threading.Condition()

    def preflight(self) -> list[Check]:
        return self.checks

    def fire(self, event: Event) -> str:
        return self._note(event)

    def release(self) -> str:
        return self._note("release")

    def _note(self, what: object) -> str:
        with self.heard:
            self.asked.append(what)
            self.heard.notify_all()
        return ""

    def wait(self, what: object) -> bool:
        with self.heard:
            return self.heard.wait_for(lambda: what in self.asked, 60.0)


class Desk:
    def __init__(self) -> None:
        self.keys, self.bridge, self.shown = Typed(), Bridge(), StringIO()
        keys: Any = self.keys
        self.operator = ArmOperator({SPEC.task: "open the drawer"}, keys, Console(file=self.shown, width=200))

    @contextmanager
    def open(self) -> Iterator[ArmOperator]:
        bridge: Any = self.bridge
        with self.operator.watching(bridge):
            yield self.operator

    def asked(self, work: Callable[[], Any], words: str, keys: str) -> Any:
        """What `work` returns or raises, where these keys are pressed once `words` are shown."""
        found: list[Any] = []

        def run() -> None:
            try:
                found.append(work())
            except (UserError, ArmStoppedError) as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        while words not in self.shown.getvalue() and thread.is_alive():
            thread.join(0.01)
        for key in keys:
            self.keys.pressed.put(key)
        thread.join(60.0)
        assert not thread.is_alive()
        return found[0]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_the_space_bar_stops_the_arm_whatever_is_asked(desk: Desk) -> None:
    with desk.open() as operator:
        found = desk.asked(lambda: operator.reset(SPEC), "set up initial state 7", " xls")
        assert found == "open the drawer"
        assert desk.bridge.asked == [Event.ESTOP, Event.RESET, "release"]
        desk.bridge.asked.clear()
        desk.keys.pressed.put(" ")  # nobody is asked anything now
        assert desk.bridge.wait(Event.ESTOP)
    assert desk.keys.left


def test_a_scene_is_set_up_or_left_out(desk: Desk) -> None:
    with desk.open() as operator:
        assert isinstance(desk.asked(lambda: operator.reset(SPEC), "open the drawer", "yk"), ArmStoppedError)


def test_a_success_is_said_while_the_arm_moves_and_asked_at_the_horizon(desk: Desk) -> None:
    with desk.open() as operator:
        assert not operator.succeeded()
        desk.keys.pressed.put("y")
        desk.keys.pressed.put("x")
        assert desk.bridge.wait(Event.RESET), "so the key before it was read"
        assert operator.succeeded()
        assert not operator.succeeded(), "it was of that episode"
        assert desk.asked(operator.judge, "did it succeed?", "sn") is False


def test_nothing_is_armed_before_the_limits_were_read_or_where_a_check_fails(desk: Desk) -> None:
    with desk.open() as operator:
        assert desk.asked(operator.confirm, "read the limits", "sc") is None
        desk.bridge.checks.append(Check("workspace", False, "outside"))
        refused = desk.asked(operator.confirm, "never shown", "")
        assert isinstance(refused, UserError)
        assert "mend what is marked" in str(refused)


def test_who_is_asked_to_stop_waits_for_nobody(desk: Desk) -> None:
    with desk.open() as operator, StopRequest(lambda: None) as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked
        with pytest.raises(ArmStoppedError, match="asked to stop"):
            operator.judge()


def test_a_bridge_that_failed_is_not_waited_for(desk: Desk) -> None:
    with desk.open() as operator:
        desk.bridge.error = RuntimeError("the control thread ended")
        with pytest.raises(RuntimeError, match="control thread"):
            operator.judge()

"""A process ends in order: it gets as long as it needs, and a person is told where it had to be killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.real_robot.deploy import launcher as fleets
from embodied_rl.real_robot.deploy import processes
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.ros2.options import CLOSE_S, JOIN_S, REST_S, SERVER_S, BridgeOptions

SLOW = """
import pathlib, signal, sys, threading, time
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
print("slow ready", flush=True)
told.wait(60)
time.sleep(float(sys.argv[1]))
pathlib.Path(sys.argv[2]).write_text("footer")
"""


def started(tmp_path: Path, seconds: float, **options: Any) -> Process:
    (tmp_path / "slow.py").write_text(SLOW)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    process = Process("bridge", "slow", [str(seconds), str(tmp_path / "end")], environment, "slow ready", **options)
    process.wait_ready(60.0)
    return process


@pytest.mark.process
def test_a_process_that_needs_long_is_waited_for_and_a_person_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "_TERM_S", 0.1)
    monkeypatch.setattr(processes, "_TELL_S", 0.1)
    started(tmp_path, 0.5, ending_s=60.0).close()
    assert (tmp_path / "end").read_text() == "footer"
    assert "waiting for the bridge to end in order, 60 s at most" in capsys.readouterr().err


@pytest.mark.process
def test_a_process_that_was_killed_is_named_with_what_may_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "_TELL_S", 0.1)
    process = started(tmp_path, 60.0, ending_s=0.3, loses="look at the arm")
    process.close()
    assert not process.running
    assert not (tmp_path / "end").exists()
    assert "did not end in 0 s and was killed; look at the arm: slow ready" in capsys.readouterr().err


class Noted:
    """A process that only keeps what was asked of it."""

    made: list[Noted]

    def __init__(self, name: str, *words: object, **options: Any) -> None:
        self.name, self.options, self.signals = name, options, list[signal.Signals]()
        self.made.append(self)

    def wait_ready(self, seconds: float) -> None:
        """It is."""

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def close(self) -> None:
        if self.name == "bridge":
            raise KeyboardInterrupt


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Launcher:
    monkeypatch.setattr(Noted, "made", [], raising=False)
    monkeypatch.setattr(fleets, "Process", Noted)
    made = Launcher.__new__(Launcher)
    made.config = LauncherConfig(environment={}, server=None, bridge=BridgeOptions(record="a.mcap"), twin=None)
    made.processes, made._options = {}, made.config.bridge
    return made


def test_the_bridge_gets_as_long_as_its_own_end_can_take(launcher: Launcher) -> None:
    launcher.start_bridge()
    assert Noted.made[0].options["ending_s"] == launcher.config.bridge.ending_s
    assert "recording" in Noted.made[0].options["loses"]


@pytest.mark.parametrize(
    ("options", "least"),
    [
        (BridgeOptions(), SERVER_S + REST_S + 2 * JOIN_S + CLOSE_S),
        (BridgeOptions(speed=0.05), REST_S / 0.05),
        (BridgeOptions(requests=16), 16 * CLOSE_S + 2 * JOIN_S),
        (BridgeOptions(record="a.mcap"), 60.0),
    ],
)
def test_the_time_to_end_grows_with_what_there_is_to_end(options: BridgeOptions, least: float) -> None:
    assert options.ending_s > least


def test_whoever_interrupts_the_end_leaves_no_process_behind(launcher: Launcher) -> None:
    launcher.start_bridge()
    others: Sequence[Noted] = [Noted("twin"), Noted("server")]
    launcher.processes |= {one.name: one for one in others}  # type: ignore[misc]
    with pytest.raises(KeyboardInterrupt):
        launcher._end_processes()
    assert [one.signals for one in others] == [[signal.SIGTERM]] * 2


def test_nobody_is_told_of_a_process_that_has_no_longer_than_usual() -> None:
    assert processes._TELL_S >= processes._TERM_S

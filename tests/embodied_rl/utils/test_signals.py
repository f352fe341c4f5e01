"""Ctrl-C during imports; what a request to stop hears."""

from __future__ import annotations

import importlib
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from embodied_rl.utils.signals import STOPPING, Interrupted, StopRequest, whole_imports

INTERRUPTED = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
deadline = time.monotonic() + 0.3
while time.monotonic() < deadline:
    pass
through = True
"""


pytestmark = pytest.mark.usefixtures("hears_signals")


def import_and_wait(name: str) -> None:
    importlib.import_module(name)
    time.sleep(10)


def test_an_import_comes_to_its_end_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guarded, the module is whole when KeyboardInterrupt comes; unguarded it never is."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, guard in (("guarded_slow_module", whole_imports()), ("bare_slow_module", nullcontext())):
        (tmp_path / f"{name}.py").write_text(INTERRUPTED)
        importlib.invalidate_caches()
        with pytest.raises(KeyboardInterrupt), guard:
            import_and_wait(name)
    assert sys.modules["guarded_slow_module"].through
    assert "bare_slow_module" not in sys.modules
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_outside_an_import_it_comes_at_once() -> None:
    through: list[bool] = []

    def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        through.append(True)

    with pytest.raises(KeyboardInterrupt), whole_imports():
        interrupted()
    assert not through


def test_somebody_elses_handler_stays() -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with whole_imports():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, previous)
    assert heard == [signal.SIGINT]


@pytest.mark.parametrize("number", STOPPING)
def test_each_of_these_asks_to_stop_once(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    asked: list[int] = []
    with StopRequest(lambda: asked.append(1)) as stop:
        signal.raise_signal(number)
        assert signal.getsignal(number) is before  # the second acts as usual
        with pytest.raises(Interrupted):
            stop.check_interrupt()
    assert asked == [1]


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequest(lambda: None) as stop:
            signal.raise_signal(signal.SIGHUP)
            stop.check_interrupt()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

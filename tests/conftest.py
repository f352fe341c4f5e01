"""What holds for every test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Imported before any test puts a stand-in in the place of `factory.envs.open_env`: it would keep the stand-in for good.
import embodied_rl.factory.suite_env  # noqa: F401

# No test depends on how long something takes: hypothesis' deadline would fail one on a loaded machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _no_gl_in_this_process() -> Iterator[None]:
    """A process has one OpenGL platform for good: a test that takes one here would break another, by their order."""
    before = os.environ.get("PYOPENGL_PLATFORM")
    yield
    assert os.environ.get("PYOPENGL_PLATFORM") == before, "draw with OpenGL in a process of its own: tests' run_script"


@pytest.fixture
def hears_signals() -> Iterator[None]:
    """Python's own handlers, which tests under nohup or in a shell's background do not have, nor their children."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)

"""What holds for every test."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

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


@contextmanager
def _locked(path: Path, kind: int) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, kind)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)  # by name: a child that a test forked may still hold the file


@pytest.fixture(scope="session")
def _turns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(autouse=True)
def _not_beside_one_that_runs_alone(_turns: Path) -> Iterator[None]:
    with _locked(_turns / "door", fcntl.LOCK_SH):  # the one that waits to be alone holds it: no further test begins
        pass
    with _locked(_turns / "running", fcntl.LOCK_SH):
        yield


@pytest.fixture(scope="session")
def alone(_turns: Path) -> Callable[[], AbstractContextManager[None]]:
    """For module fixtures that keep a clock: inside `with alone():` no other worker runs a test."""

    @contextmanager
    def wait() -> Iterator[None]:
        with _locked(_turns / "door", fcntl.LOCK_EX), _locked(_turns / "running", fcntl.LOCK_EX):
            yield

    return wait


@pytest.fixture
def hears_signals() -> Iterator[None]:
    """Python's own handlers, which tests under nohup or in a shell's background do not have, nor their children."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)

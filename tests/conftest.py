"""What holds for every test: two tiers, no clock, no process that a test does not say it starts."""

from __future__ import annotations

import fcntl
import importlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# Before torch is imported: threads of a command that ran in this process would spin, on cores that other workers need.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No test depends on how long something takes: hypothesis' deadline would fail one on a loaded machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

QUICK = frozenset({"git", "uname", "ldconfig", "gcc", "g++", "nvidia-smi", "lscpu"})
"""Programs that any test may start: small ones. Python, Ray, ROS, a browser or OpenGL make a test a `process` one."""
UNIT_TIER = "not process"
"""What `make test` gives to -m."""
INSTALLS = "libero_real"
"""The fixture that runs pip and LIBERO's own code in processes of Python, once for a machine."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What uses the real LIBERO installation starts its installer, wherever the fixture stands in between."""
    for item in items:
        if INSTALLS in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.process)


class Children:
    """The processes that the test at work has started, and whether it may."""

    def __init__(self) -> None:
        self.test: pytest.Item | None = None
        self.forbidden: list[str] = []

    def started(self, program: str) -> None:
        """Fails an unmarked test where it starts a process, before it does."""
        name = Path(program).name
        if name in QUICK or self.test is None or self.test.get_closest_marker("process") is not None:
            return
        self.forbidden.append(name)
        pytest.fail(f"{self.test.name} starts {name}: mark it with @pytest.mark.process (or its module: pytestmark)")


_children = Children()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fixtures count as part of the test that is the first to need them."""
    _children.test, _children.forbidden = item, []
    try:
        return (yield)
    finally:
        _children.test = None


@pytest.fixture(scope="session", autouse=True)
def _processes_are_watched(pytestconfig: pytest.Config) -> Iterator[None]:
    """In `make test` alone: a test that is run by its path may start what it likes."""
    if pytestconfig.getoption("markexpr") != UNIT_TIER:
        yield
        return
    # MuJoCo's renderer imports it, and it then asks its library's version in a process: whichever test came first.
    importlib.import_module("glfw")
    popen, start = subprocess.Popen.__init__, BaseProcess.start

    def watched_popen(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
        _children.started(os.fspath(args if isinstance(args, str | os.PathLike) else next(iter(args))))
        popen(self, args, *more, **options)

    def watched_start(self: BaseProcess) -> None:
        _children.started(f"a process of multiprocessing ({type(self).__name__})")
        start(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", watched_popen)
        patch.setattr(BaseProcess, "start", watched_start)
        yield


@pytest.fixture(autouse=True)
def _starts_no_process_unless_marked() -> Iterator[None]:
    """Also where the code under test, or a thread, took the failure at the start for its own."""
    yield
    assert not _children.forbidden, f"unmarked, and starts {_children.forbidden}: mark it with @pytest.mark.process"


@pytest.fixture(autouse=True)
def _no_gl_in_this_process() -> Iterator[None]:
    """A process has one OpenGL platform for good: a test that takes one here would break another, by their order."""
    before = os.environ.get("PYOPENGL_PLATFORM")
    yield
    assert os.environ.get("PYOPENGL_PLATFORM") == before, "draw with OpenGL in a process of its own: tests' run_script"


_RUNNING = threading.Lock()
"""Held while a test of this worker runs."""


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
    with _locked(_turns / "running", fcntl.LOCK_SH), _RUNNING:
        yield


@pytest.fixture(scope="session")
def alone(_turns: Path) -> Callable[[], AbstractContextManager[None]]:
    """For module fixtures that keep a clock: inside `with alone():` no other worker runs a test."""

    @contextmanager
    def wait() -> Iterator[None]:
        assert not _RUNNING.locked(), "a test that has begun would wait for its own end: be alone in a module's fixture"
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

"""The lock of a folder: one process at a time, named to the others, gone with its process."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.utils.lock import LOCK, locked

HOLD = """
import sys
from pathlib import Path
from embodied_rl.utils.lock import locked
from embodied_rl.utils.signals import StopRequest
with StopRequest(lambda: print("asked", flush=True)), locked(Path(sys.argv[1]), "at it"):
    print("held", flush=True)
    sys.stdin.read()
"""


class Said(io.StringIO):
    """What another thread says; pytest's own capture may lose what is written while it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = threading.Event()

    def flush(self) -> None:
        """The line is whole."""
        self.whole.set()


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], env=environment, stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.process
def test_the_holder_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    other = holder(path)
    try:
        line = f"^process {other.pid} is training in x already: wait"
        with pytest.raises(UserError, match=line), locked(path, "training in x"):
            pytest.fail("two hold the lock")
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    assert path.is_file()  # left behind, and no hindrance
    with locked(path, "training in x"):
        assert path.read_text() == f"{os.getpid()}\n"
    assert not path.exists()


@pytest.mark.process
@pytest.mark.usefixtures("hears_signals")
def test_one_that_was_asked_to_stop_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may still have to save: whoever goes on with its work need not be told to try again."""
    path, said = tmp_path / LOCK, Said()
    monkeypatch.setattr(sys, "stderr", said)

    def take() -> str:
        with locked(path, "training in x"):
            return path.read_text()

    other = holder(path)
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        with pytest.raises(UserError, match="already"), locked(path, "training in x"):
            pytest.fail("two hold the lock")
        other.send_signal(signal.SIGTERM)
        assert other.stdout.readline() == "asked\n"
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(take)
            waiting.add_done_callback(lambda _: said.whole.set())  # where it fails instead, nothing is said
            said.whole.wait()
            assert not waiting.done()
            other.stdin.close()
            assert waiting.result() == f"{os.getpid()}\n"
    finally:
        other.kill()
        other.wait()
    assert said.getvalue() == f"process {other.pid} is training in x and about to end: waiting for it\n"


def test_a_stale_file_of_a_longer_number_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("123456789012\n")
    with locked(tmp_path / LOCK, "x"):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_a_lock_whose_file_is_removed_meanwhile_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking, the holder before leaves: a lock on its removed file would be worth nothing."""
    import fcntl

    kept, first = fcntl.flock, [True]

    def flock(handle: int, how: int) -> None:
        if first.pop() if first else False:
            (tmp_path / LOCK).unlink()
        kept(handle, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked(tmp_path / LOCK, "x"), pytest.raises(UserError, match="already"), locked(tmp_path / LOCK, "x"):
        pass


def test_a_file_system_without_locks_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(UserError, match="No locks available"), locked(tmp_path / LOCK, "x"):
        pass

"""Processes that work for this one: what is done, refused, killed or stopped, and that none outlives its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.utils.signals import Interrupted, StopRequest
from embodied_rl.utils.work_pool import WorkPool
from tests.embodied_rl.pool_work import toy
from tests.embodied_rl.processes import descendants, wait_for

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]


def test_items_are_done_once_by_the_processes_and_one_refusal_stops_the_rest(tmp_path: Path) -> None:
    heard: list[Any] = []
    stop = StopRequest(lambda: None)
    with WorkPool(2, toy) as pool:
        names = [str(tmp_path / str(number)) for number in range(6)]
        pool.run([("short", name) for name in names], heard.append, stop)
        assert [Path(name).read_text() for name in names] == ["done"] * 6
        assert len(heard) == 6
        for kind, message in (("refuse", "this cannot be done"), ("break", "ZeroDivisionError: a mistake")):
            with pytest.raises(UserError, match=message):
                pool.run([("long", str(tmp_path / "long")), (kind, ""), ("short", str(tmp_path / "no"))], print, stop)
        assert (tmp_path / "long").read_text() == "begun"
        pool.run([("short", names[0])], heard.append, stop)  # the processes are still there
        with pytest.raises(UserError, match="exit code -9; what was finished is kept"):
            pool.run([("long", str(tmp_path / "long")), ("die", "")], print, stop)


def test_the_first_request_to_stop_stops_all_at_their_next_check(tmp_path: Path) -> None:
    stop = StopRequest(lambda: None)
    names = [str(tmp_path / str(number)) for number in range(3)]

    def ask(_: Any) -> None:
        stop.asked = True

    with WorkPool(2, toy) as pool, pytest.raises(Interrupted):
        pool.run([("long", name) for name in names], ask, stop)
    assert not Path(names[2]).exists()
    assert "done" not in [Path(name).read_text() for name in names[:2] if Path(name).exists()]


def test_a_ctrl_c_while_they_start_ends_no_process(tmp_path: Path) -> None:
    names = [str(tmp_path / str(number)) for number in range(2)]
    with WorkPool(2, toy) as pool:
        for worker in pool._workers:
            os.kill(worker.process.pid or 0, signal.SIGINT)
        pool.run([("short", name) for name in names], lambda _: None, StopRequest(lambda: None))
    assert [Path(name).read_text() for name in names] == ["done"] * 2


def test_no_process_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    names = [str(tmp_path / str(number)) for number in range(2)]
    words = [sys.executable, "-m", "tests.embodied_rl.pool_work", *names]
    with subprocess.Popen(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True) as parent:
        wait_for(lambda: all(Path(name).exists() for name in names), parent)
        children = list(descendants(parent.pid))
        assert len(children) >= 2
        parent.kill()
    reader = subprocess.Popen(["sleep", "600"], text=True)
    with contextlib.ExitStack() as stack:
        stack.callback(reader.wait)
        stack.callback(reader.kill)
        wait_for(lambda: not any(map(alive, children)), reader, 60)


def alive(pid: int) -> bool:
    """Whether the process still runs; one that only waits to be reaped doesn't."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Watching a command that runs in a process of its own, and what it starts."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """Processes below `pid` and their command lines."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
            except OSError:
                continue  # it has just ended
    found: dict[int, str] = {}
    for child in parents:
        above = child
        while above in parents and above != pid:
            above = parents[above]
        if above == pid and child != pid:
            found[child] = names[child]
    return found


def wait_for(what: Callable[[], object], process: subprocess.Popen[str], seconds: float = 3600.0) -> None:
    """Until it is so; AssertionError if the process ends first, or in `seconds` it is not (machines are busy)."""
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)

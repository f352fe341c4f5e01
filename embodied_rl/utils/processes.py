"""Child processes that end when their parent does, and not when a signal is sent to every process of a job; memory."""

from __future__ import annotations

import atexit
import re
import resource
import signal
import sys
import weakref
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path

from embodied_rl.utils.signals import STOPPING

_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


def start(process: BaseProcess) -> None:
    """Start a daemonic process whose code calls `leave_stopping_to_the_parent`.

    At exit, multiprocessing asks daemonic children to end with the signal that these ignore, and waits.
    """
    # The child inherits the mask: a Ctrl-C while it still imports must not end it either. The tracker comes first, as
    # multiprocessing unblocks the signals where it has to start it.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _started.add(process)


def leave_stopping_to_the_parent() -> None:
    """Ignore the signals that ask a job to end, which its children get too: the parent still needs them to finish its
    step and to save. For the main thread of the child."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


@atexit.register
def _end() -> None:
    for process in list(_started):
        if process.is_alive():
            process.kill()


def peak_memory() -> int:
    """The most memory that this process has had so far, bytes; what it started counts nothing."""
    status = Path("/proc/self/status")
    if status.is_file():  # rusage's may be that of the process that started this one
        found = re.search(r"VmHWM:\s*(\d+) kB", status.read_text(encoding="ascii", errors="replace"))
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024

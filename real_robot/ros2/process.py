"""What the bridge and the twin have in common as processes: when they end, and with which code."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from embodied_rl.errors import UserError

_LOOK_S = 0.1
_PARENT = os.getppid()
"""Whoever started this process."""


def run_process(name: str, main: Callable[[threading.Event], int]) -> int:
    """Run a process' main function.

    Args:
        name: For messages.
        main: Gets an event that SIGINT and SIGTERM set; its result is the exit code.

    Returns:
        The exit code; 2 after a `UserError`, which is printed in one line.
    """
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        return main(stopping)
    except UserError as error:
        print(f"embodied-rl {name}: error: {error}", file=sys.stderr)
        return 2


def watch(
    name: str,
    stopping: threading.Event,
    error: Callable[[], BaseException | None],
    ended: Callable[[], bool] = lambda: False,
) -> int:
    """Say that the process is ready, and wait until it should end.

    Args:
        name: Of the process; the line on standard output is 'NAME ready'.
        stopping: Set where somebody wants it to end.
        error: What has gone wrong in one of its threads, if anything.
        ended: Whether it has ended by itself, as a node that was shut down.

    Returns:
        0 where it was told to end, has ended or whoever started it is gone, 1 after an error, which is printed.
    """
    print(f"{name} ready", flush=True)
    while not stopping.wait(_LOOK_S) and not ended() and os.getppid() == _PARENT:
        if wrong := error():
            print(f"the {name} failed: {type(wrong).__name__}: {wrong}", file=sys.stderr, flush=True)
            return 1
    return 0

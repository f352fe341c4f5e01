"""Processes that say when they are ready, and end together."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType

from embodied_rl.errors import UserError

_LOOK_S = 0.05
_TERM_S = 5.0
_TELL_S = 5.0
"""After so long a person is told what is waited for."""


class Process:
    """A Python module as a process of its own.

    Args:
        name: For messages.
        module: What `python -m` runs.
        arguments: Its command line.
        environment: All of it.
        ready: A pattern of the line with which it says that it is ready.
        ending_s: How long it may take to end in order.
        loses: What may be lost where it has to be killed, for the message.

    Example:
        >>> twin = Process("twin", "embodied_rl.real_robot.twin", [options], ros_environment(), "twin ready")
        >>> twin.wait_ready(60.0)
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        ready: str,
        *,
        ending_s: float = _TERM_S,
        loses: str = "",
    ) -> None:
        self.name, self._ready = name, re.compile(ready)
        self._ending_s, self._loses = ending_s, loses
        self.lines: deque[str] = deque(maxlen=200)
        """What it said last."""
        self._found: re.Match[str] | None = None
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,  # Ctrl-C is for this process, which ends them in order
        )
        self._reader = threading.Thread(target=self._read, name=f"{name} output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._popen.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def wait_ready(self, seconds: float) -> re.Match[str]:
        """The ready line's match.

        Raises:
            UserError: It ended first, or is not ready in time; with its last line.
        """
        deadline = time.monotonic() + seconds
        while self._found is None:
            if not self.running:
                self._reader.join(timeout=2.0)
                raise UserError(f"the {self.name} ended before it was ready: {self.last_line}")
            if time.monotonic() > deadline:
                raise UserError(f"the {self.name} is not ready after {seconds:.0f} s: {self.last_line}")
            time.sleep(_LOOK_S)
        return self._found

    @property
    def last_line(self) -> str:
        """The last that it said."""
        return next((line for line in reversed(self.lines) if line.strip()), "it said nothing")

    def wait_end(self, seconds: float) -> int:
        """Its exit code, once it has ended by itself; UserError where it has not in so many seconds."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise UserError(f"the {self.name} has not ended after {seconds:.0f} s: {self.last_line}") from None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        if self.running:
            os.kill(self.pid, number)

    def close(self) -> None:
        """SIGTERM, and SIGKILL where it has not ended `ending_s` later; a person is told that it is waited for."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            if not self._ends(min(_TELL_S, self._ending_s)) and not self._ends_late():
                self.signal(signal.SIGKILL)
                loss = f"; {self._loses}" if self._loses else ""
                _tell(f"the {self.name} did not end in {self._ending_s:.0f} s and was killed{loss}: {self.last_line}")
        self._popen.wait()
        self._reader.join(timeout=2.0)
        if self._popen.stdout is not None:
            self._popen.stdout.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ends(self, seconds: float) -> bool:
        try:
            self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _ends_late(self) -> bool:
        left_s = self._ending_s - _TELL_S
        if left_s <= 0:
            return False
        _tell(f"waiting for the {self.name} to end in order, {left_s:.0f} s at most")
        return self._ends(left_s)

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            self.lines.append(line.rstrip("\n"))
            if self._found is None:
                self._found = self._ready.search(line)


def _tell(words: str) -> None:
    print(f"embodied-rl deploy: {words}", file=sys.stderr, flush=True)

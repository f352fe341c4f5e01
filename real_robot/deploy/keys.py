"""Single keys from a terminal."""

from __future__ import annotations

import os
import select
import sys
from types import TracebackType
from typing import Any

from embodied_rl.errors import UserError

KEYS = {
    "a": "arm",
    "s": "start",
    "h": "hold",
    "r": "resume",
    "d": "disarm",
    " ": "emergency_stop",
    "x": "reset",
    "l": "release",
    "p": "accept_policy",
}
"""Keys, and the bridge's services that they call. The space bar is the emergency stop."""
CONFIRM = "c"
"""The key that says that a person has read the limits that hold."""
LABELS = {"y": "success", "n": "failure"}
"""Keys that say how the running or the last episode ended, for the recording."""


class Keys:
    """Reads keys without Enter while it is open.

    Raises:
        UserError: There is no terminal.

    Example:
        >>> with Keys() as keys:
        ...     key = keys.read(0.1)
    """

    def __init__(self) -> None:
        if not sys.stdin.isatty():
            raise UserError("a real arm is started by a person at a terminal: run this in one")
        self._file = sys.stdin.fileno()
        self._before: list[Any] = []

    def read(self, seconds: float) -> str:
        """The next key within so long; empty without one."""
        ready, _, _ = select.select([self._file], [], [], seconds)
        return os.read(self._file, 1).decode("utf-8", "replace").lower() if ready else ""

    def __enter__(self) -> Keys:
        import termios
        import tty

        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import termios

        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

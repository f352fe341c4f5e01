"""Ctrl-C and SIGTERM, once: finish what must be whole, save, leave. Twice: leave at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; the message says how to go on."""


class StopRequest:
    """While entered, the first SIGINT or SIGTERM only sets `asked` and calls `on_ask`; the second acts as usual.

    Only the main thread may enter it.
    """

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self.asked = False
        self._on_ask = on_ask
        self._previous: dict[int, object] = {}

    def poll(self) -> None:
        """Raise Interrupted if a stop was asked for."""
        if self.asked:
            raise Interrupted("interrupted")

    def __enter__(self) -> StopRequest:
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()
        self._on_ask()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}

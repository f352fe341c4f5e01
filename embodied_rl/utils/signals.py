"""Ctrl-C, SIGTERM and SIGHUP, once: finish what must be whole, save, leave. Twice: leave at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType

from embodied_rl.utils.lock import say_ending

_AGAIN_SECONDS = 0.1
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What terminals, SLURM, systemd, `timeout` and a closed connection send to a job that should end."""


class Interrupted(KeyboardInterrupt):
    """The user asked to stop; the message says how to go on."""


_ENTERED: list[StopRequest] = []


def stop_asked() -> bool:
    """Whether a `StopRequest` of this process was asked to stop: for what waits long between two of its checks."""
    return any(request.asked for request in _ENTERED)


class StopRequest:
    """While entered, the first signal of `STOPPING` only sets `asked` and calls `on_ask`; the second acts as usual.

    Others then wait for the locks that this process holds (`utils.lock`).

    An ignored SIGHUP stays so: that is what `nohup` asks for. Only the main thread may enter it.
    """

    def __init__(self, on_ask: Callable[[], None]) -> None:
        self.asked = False
        self._on_ask = on_ask
        self._previous: dict[int, object] = {}

    def check_interrupt(self) -> None:
        """Raise Interrupted if a stop was asked for."""
        if self.asked:
            raise Interrupted("interrupted")

    def __enter__(self) -> StopRequest:
        immune = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        heard = [number for number in STOPPING if number != signal.SIGHUP or not immune]
        self._previous = {number: signal.signal(number, self._handle) for number in heard}
        _ENTERED.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ENTERED.remove(self)
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()
        say_ending()
        # This runs in the middle of anything, of another line's output too: what is to be saved must not be lost by it.
        with suppress(Exception):
            self._on_ask()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous = {}


@contextmanager
def whole_imports() -> Iterator[None]:
    """In the `with` block Ctrl-C waits until an import is through, then it is the usual KeyboardInterrupt.

    Extension modules take an interruption for a failed import: the user would see their tracebacks. Does nothing where
    somebody else handles SIGINT, or outside the main thread.
    """
    own = threading.current_thread() is threading.main_thread()
    if not own or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _after_import)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _after_import(number: int, frame: FrameType | None) -> None:
    outer = frame
    while outer is not None:
        if outer.f_code.co_filename.startswith("<frozen importlib."):
            again = threading.Timer(_AGAIN_SECONDS, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        outer = outer.f_back
    signal.default_int_handler(number, frame)

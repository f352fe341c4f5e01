"""A person's service calls to the bridge, in threads of their own: the emergency stop waits for none of them."""

from __future__ import annotations

import threading
from collections.abc import Callable

STOP = "emergency_stop"


class ServiceCalls:
    """Calls services so that the terminal goes on reading keys.

    One call at a time: what is asked for while another waits is refused, not kept for later. The emergency stop is
    called at once, whatever waits.

    Args:
        call: Calls a service: whether it was done, and its words.

    Example:
        >>> calls = ServiceCalls(remote.call)
        >>> calls.ask("arm")
        >>> calls.ask("emergency_stop")
    """

    def __init__(self, call: Callable[[str], tuple[bool, str]]) -> None:
        self._call, self._lock = call, threading.Lock()
        self._waiting, self._note = "", ""
        self._problem: Exception | None = None

    @property
    def waiting(self) -> bool:
        """Whether a call has not been answered; the emergency stop's does not count."""
        with self._lock:
            return bool(self._waiting)

    @property
    def note(self) -> str:
        """What the last call led to.

        Raises:
            UserError: The bridge did not answer.
        """
        with self._lock:
            if self._problem is not None:
                raise self._problem
            return f"{self._waiting} ..." if self._waiting and not self._note else self._note

    def say(self, words: str) -> None:
        """Show these words."""
        with self._lock:
            self._note = words

    def ask(self, name: str) -> None:
        """Call a service."""
        if name == STOP:
            threading.Thread(target=self._work, args=(self._answer(name), ""), name=name, daemon=True).start()
        else:
            self.do(name, self._answer(name))

    def do(self, name: str, work: Callable[[], str]) -> bool:
        """Do what may take a while: whether it was begun. `work` returns words to show."""
        with self._lock:
            if self._waiting:
                self._note = f"no {name}: {self._waiting} has not been answered yet"
                return False
            self._waiting, self._note = name, ""
        threading.Thread(target=self._work, args=(work, name), name=name, daemon=True).start()
        return True

    def _answer(self, name: str) -> Callable[[], str]:
        return lambda: self._call(name)[1]

    def _work(self, work: Callable[[], str], waited: str) -> None:
        words, problem = "", None
        try:
            words = work()
        except Exception as error:  # noqa: BLE001 - raised by `note`, in the terminal's thread
            problem = error
        with self._lock:
            self._note, self._problem = words, self._problem or problem
            if waited:
                self._waiting = ""

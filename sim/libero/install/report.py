"""What shows the user how far an installation is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Reporter(Protocol):
    """Receives lines, steps and their progress."""

    def say(self, text: str) -> None:
        """A line for the user."""
        ...

    def step(self, text: str) -> None:
        """A new step begins."""
        ...

    def progress(self, done: int, total: int) -> None:
        """How much of the present step is done."""
        ...


class StepNames:
    """A reporter that only passes on what each step is called."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def say(self, text: str) -> None:
        """Passed on."""
        self._tell(text)

    def step(self, text: str) -> None:
        """Passed on."""
        self._tell(text)

    def progress(self, done: int, total: int) -> None:
        """Shown nowhere."""


class _Bars:
    """Shows steps as progress bars."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._now: TaskID | None = None

    def say(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def step(self, text: str) -> None:
        self._finish()
        self._now = self._bars.add_task(text, total=None)

    def progress(self, done: int, total: int) -> None:
        if self._now is not None:
            self._bars.update(self._now, completed=done, total=total)

    def _finish(self) -> None:
        if self._now is not None:
            self._bars.update(self._now, completed=1, total=1)


class _Lines:
    """Shows steps as lines, and every tenth of a step that counts: for a log, where a bar would show only its end."""

    def __init__(self) -> None:
        self._step, self._tenth = "", 0

    def say(self, text: str) -> None:
        print(text, flush=True)

    def step(self, text: str) -> None:
        self._step, self._tenth = text, 0
        print(text, flush=True)

    def progress(self, done: int, total: int) -> None:
        tenth = 10 * done // total if total else 10
        if tenth > self._tenth:
            self._tenth = tenth
            print(f"{self._step}: {10 * tenth} %", flush=True)


@contextmanager
def progress_bars() -> Iterator[Reporter]:
    """A reporter with a progress bar a step; where the output is no terminal, lines."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    if not sys.stdout.isatty():
        yield _Lines()
        return
    percent = TextColumn("{task.percentage:>3.0f} %")
    with Progress(TextColumn("{task.description}"), BarColumn(), percent, TimeElapsedColumn()) as bars:
        yield _Bars(bars)

"""What a run shows while it goes: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import TracebackType

from numba.core import event
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from embodied_rl.utils.words import counted

_SILENCE_S = 30.0
"""How long a log may say nothing of episodes that are running."""


class RunProgress(event.Listener):
    """One bar for the iterations and one for the episodes of the current rollout or evaluation.

    Says when machine code is compiled meanwhile, since that makes the first iteration slow. Use as a context manager.

    Args:
        iterations: of the run; 0 if there are none to count.
        done: iterations that were finished by the run that this one resumes.
        console: where to (None: stdout). In a terminal bars move; elsewhere there is a line an iteration, and one each
            half minute while episodes run.
        warmup: iterations of the run in which the critic learns alone: they are shorter, and say nothing of the others.
    """

    def __init__(self, iterations: int, done: int = 0, console: Console | None = None, warmup: int = 0) -> None:
        self.console = console or Console()
        self._live = self.console.is_terminal
        self._iterations, self._done, self._first, self._warmup = iterations, done, done, warmup
        self._started = self._spoke = time.monotonic()
        self._over = threading.Event()
        self._stage, self._episodes, self._total, self._note = "", 0, 0, ""
        self._successes, self._returns = 0, 0.0
        self._compiling = ""
        """' (compiling)' from when something was compiled to the end of that iteration."""
        self._told = False
        self._bars = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=24 if self.console.width >= 100 else 10),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            _Remaining(),
            # What a narrow terminal has no room for is cut off here, and not at the times.
            TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=self.console,
            disable=not self._live,
            expand=True,
        )
        self._all = self._bars.add_task(
            "run", total=iterations, completed=done, note="", eta="-:--", visible=iterations > 0
        )
        self._part = self._bars.add_task("", total=None, note="", eta="", visible=False)

    def __enter__(self) -> RunProgress:
        self._bars.start()
        event.register("numba:compile", self)
        if not self._live:  # the first episode of a large policy may end after minutes
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        event.unregister("numba:compile", self)
        self._bars.stop()

    def on_start(self, event: event.Event) -> None:
        """Machine code is being compiled, in any thread."""
        self._compiling = " (compiling)"
        self._bars.update(self._part, note=self._compiling)
        if not self._live and not self._told:
            self.message("compiling, once for this installation: a minute on an idle machine")
        self._told = True

    def on_end(self, event: event.Event) -> None:
        """It is compiled; the next episode shows its success again."""

    def stage(self, name: str, episodes: int) -> None:
        """A rollout or evaluation of about `episodes` episodes begins."""
        if name != "evaluate" and self._stage in ("", "evaluate") and self._done == self._first:
            self._started = time.monotonic()  # the evaluation before the first update says nothing of an update's time
        self._stage, self._episodes, self._total, self._note = name, 0, episodes, ""
        self._successes, self._returns = 0, 0.0
        self._bars.reset(self._part, description=escape(name), total=episodes, note="", eta="", visible=True)
        if name == "evaluate" and not self._live:
            self.message(f"evaluate: {counted(episodes, 'episode')}")

    def episode(self, success: bool | None, reward: float = 0.0) -> None:
        """An episode of the current stage ended; success: None where tasks have no goal, and `reward` counts."""
        self._episodes += 1
        self._successes += bool(success)
        self._returns += reward
        # Dynamic sampling may run more episodes than were planned.
        self._total = max(self._total, self._episodes)
        mean = f"mean return {self._returns / self._episodes:.1f}"
        self._note = mean if success is None else f"success {self._successes}/{self._episodes}"
        self._bars.update(self._part, completed=self._episodes, total=self._total, note=self._note)
        self._break_silence()

    def _break_silence(self) -> None:
        """Say in a log where the episodes are, if nothing was said for long."""
        if not self._live and self._stage and time.monotonic() - self._spoke >= _SILENCE_S:
            self.message(f"{self._stage}: {self._episodes}/{self._total}  {self._note}".rstrip())

    def _watch(self) -> None:
        while not self._over.wait(_SILENCE_S):
            if self._episodes < self._total:  # else an update is running
                self._break_silence()

    def iteration(self, done: int, metrics: Mapping[str, float]) -> None:
        """Iteration `done` (counted from 1) is finished."""
        self._done = done
        note, self._compiling = summary(metrics) + self._compiling, ""
        eta = self._eta()
        self._bars.update(self._all, completed=done, note=note, eta=eta)
        if not self._live:
            left = f"  ETA {eta}" if done < self._iterations else ""  # an evaluation may follow the last one
            self.message(f"iteration {done}/{self._iterations}  {note}{left}")
        if done == self._warmup:
            self._first, self._started = done, time.monotonic()

    def message(self, text: str) -> None:
        """A line that stays."""
        self._spoke = time.monotonic()
        self.console.print(text, soft_wrap=True, markup=False, highlight=False)

    def _eta(self) -> str:
        finished = self._done - self._first
        seconds = (time.monotonic() - self._started) / max(finished, 1) * (self._iterations - self._done)
        return "over " * (self._done <= self._warmup) + duration(seconds)


class _Remaining(TimeRemainingColumn):
    """What the task's field `eta` says; rich's own estimate where that is ''."""

    def render(self, task: Task) -> Text:
        eta = task.fields["eta"]
        return Text(eta, style="progress.remaining") if eta else super().render(task)


def summary(metrics: Mapping[str, float]) -> str:
    """The three or four figures that a person follows, of those that are there."""
    by_return = "rollout/success" not in metrics and "eval/success" not in metrics
    shown = [
        ("success", "rollout/success", "{:.0%}"),
        ("held-out", "eval/success", "{:.0%}"),
        *([("return", "rollout/reward", "{:.1f}"), ("held-out", "eval/return", "{:.1f}")] if by_return else []),
        ("loss", "train/loss", "{:+.4f}"),
        ("decisions/s", "speed/decisions_per_s", "{:.0f}"),
    ]
    found = [f"{label} {form.format(metrics[name])}" for label, name, form in shown if name in metrics]
    return "  ".join([*found, *utilisation(metrics)])


def utilisation(metrics: Mapping[str, float]) -> list[str]:
    """['busy: learner 70% sim 95% act 40%'] of a pipelined run, else []."""
    shares = [f"{name.removeprefix('busy/')} {value:.0%}" for name, value in metrics.items() if name[:5] == "busy/"]
    return [f"busy: {' '.join(shares)}"] if shares else []


def duration(seconds: float) -> str:
    """'1:02:03', '4:05'."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

"""The progress bar of `collect` and `sft`."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

_SILENCE_S = 30.0
"""How long a log may say nothing."""


class ProgressBar(Progress):
    """A bar with count, elapsed time, ETA and, cut off where it is long, the task field `note`; add one task to it.

    Where there is no terminal, a line each half minute of updates.
    """

    def __init__(self, console: Console, label: str) -> None:
        super().__init__(
            TextColumn(label),
            BarColumn(bar_width=24 if console.width >= 100 else 10),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            expand=True,
        )
        self._label, self._spoke = label, time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change the task."""
        super().update(task_id, **changes)
        if not self.console.is_terminal and time.monotonic() - self._spoke >= _SILENCE_S:
            self._spoke = time.monotonic()
            task = self.tasks[task_id]
            self.console.print(f"{self._label}: {task.completed:.0f}/{task.total:.0f}  {task.fields['note']}")

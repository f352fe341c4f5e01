"""The progress bar of `collect` and `sft`."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column


def progress_bar(console: Console, label: str) -> Progress:
    """A bar with count, elapsed time, ETA and, cut off where it is long, the task field `note`; add one task to it."""
    return Progress(
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

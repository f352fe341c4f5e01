"""Metrics of a run: one JSON object a line."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.telemetry.trackers import Tracking


class MetricsLog:
    """Appends lines {"step": int, name: number, ...} to `path`, after what is there; `tracking` gets the same."""

    def __init__(self, path: Path, tracking: Tracking | None = None) -> None:
        self.path = path
        self._tracking = tracking
        self._file = open(path, "ab")  # noqa: SIM115 - closed in close()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line, and hand it to the tracker. NaN and infinities become null: JSON has no word for them."""
        row = {name: float(value) for name, value in metrics.items()}
        line = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._file.write((json.dumps({"step": step, **line}) + "\n").encode())
        self._file.flush()
        if self._tracking is not None:
            self._tracking.log(step, row)

    def position(self) -> int:
        """Bytes written so far, after making them durable: what a checkpoint stores."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.seek(0, os.SEEK_END)

    def rewind(self, position: int) -> None:
        """Cut off what follows byte `position`, which a checkpoint stored: those iterations will be run again."""
        size = self.position()
        if size < position:
            raise UserError(
                f"{self.path} is shorter ({size} bytes) than the checkpoint says ({position}); restore the file."
            )
        self._file.truncate(position)
        self._file.seek(position)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line that a kill cut short is left out. UserError if it is not one."""
    rows: list[dict[str, Any]] = []
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}.") from error
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path} line {number} is not JSON: {error}.") from error
    return rows

"""Metrics of a run: one JSON object a line, always; TensorBoard or Weights & Biases when asked."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from embodied_rl.errors import UserError


class Tracker(Protocol):
    """Another place that metrics go to."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` of iteration `step`."""
        ...

    def close(self) -> None:
        """Flush and leave."""
        ...


class MetricsLog:
    """Appends lines {"step": int, name: number, ...} to `path`, after what is there."""

    def __init__(self, path: Path, trackers: tuple[Tracker, ...] = ()) -> None:
        self.path = path
        self._trackers = trackers
        self._file = open(path, "ab")  # noqa: SIM115 - closed in close()

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line and hand it to the trackers. NaN and infinities become null: JSON has no word for them."""
        row = {name: float(value) for name, value in metrics.items()}
        line = {name: value if math.isfinite(value) else None for name, value in row.items()}
        self._file.write((json.dumps({"step": step, **line}) + "\n").encode())
        self._file.flush()
        for tracker in self._trackers:
            tracker.log(step, row)

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
        """Close the file and the trackers."""
        self._file.close()
        for tracker in self._trackers:
            tracker.close()

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


def need_tracker(name: str) -> None:
    """Raise UserError unless the package of the tracker `name`, 'tensorboard' or 'wandb', is installed."""
    if importlib.util.find_spec(name) is None:
        extra = "track" if name == "tensorboard" else "wandb"
        raise UserError(f"--track {name} needs a package that is not installed: pip install 'embodied-rl[{extra}]'.")


def make_trackers(name: str, folder: Path, config: Mapping[str, Any]) -> tuple[Tracker, ...]:
    """The trackers that `track` names: 'none', 'tensorboard' or 'wandb'. UserError if its package is missing."""
    if name == "none":
        return ()
    need_tracker(name)
    return (_TensorBoard(folder / "tensorboard"),) if name == "tensorboard" else (_Wandb(folder, config),)


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb  # pyright: ignore[reportMissingImports]

        # The folder's name as id: a resumed run continues the same curve.
        self._run = wandb.init(
            project="embodied-rl",
            id=folder.name,
            name=folder.name,
            dir=str(folder),
            config=dict(config),
            resume="allow",
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()

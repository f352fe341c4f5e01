"""A run elsewhere too, its metrics, videos and report: in TensorBoard, Weights & Biases or Trackio."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.utils.console import LastingConsole


def need_tracker(name: str) -> None:
    """Raise UserError unless the package of the tracker 'tensorboard', 'wandb' or 'trackio' is installed."""
    if importlib.util.find_spec(name) is None:
        extra = "track" if name == "tensorboard" else name
        raise UserError(f"--track {name} needs a package that is not installed: pip install 'embodied-rl[{extra}]'.")


class Tracking:
    """The tracker that `track` names, from `open` to the end of the `with` block.

    One that fails, of a full disk or for want of a network, is said once and gets nothing more: the run goes on.
    """

    def __init__(self, track: str, folder: Path, console: LastingConsole) -> None:
        self._track, self._folder, self._console = track, folder, console
        self._tracker: _TensorBoard | _Wandb | None = None

    def open(self, config: Mapping[str, Any]) -> None:
        """Begin with the config as plain data; UserError if the tracker's package is missing."""
        if self._track == "none":
            return
        need_tracker(self._track)
        with self._surviving():
            if self._track == "tensorboard":
                self._tracker = _TensorBoard(self._folder / "tensorboard")
            else:
                self._tracker = _Wandb(self._track, self._folder, config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics; step: updates so far."""
        self._tell(lambda tracker: tracker.log(step, metrics))

    def video(self, step: int, name: str, path: Path) -> None:
        """Add an MP4 file."""
        self._tell(lambda tracker: tracker.video(step, name, path))

    def report(self, step: int, page: Path, text: str) -> None:
        """Add the report: an HTML file, and its head in Markdown for TensorBoard, which shows no pages."""
        self._tell(lambda tracker: tracker.report(step, page, text))

    def _tell(self, what: Callable[[_TensorBoard | _Wandb], None]) -> None:
        with self._surviving():
            if self._tracker is not None:
                what(self._tracker)

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - a tracker raises what it likes
            self._tracker = None
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._console.say(f"--track {self._track} failed and is left out from here on: {reason}")

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._tell(lambda tracker: tracker.close())


class _TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def video(self, step: int, name: str, path: Path) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]

        from embodied_rl.telemetry.video import read_video, write_gif

        # What SummaryWriter.add_video writes, which needs moviepy for it.
        frames, fps = read_video(path)
        gif = io.BytesIO()
        write_gif(gif, frames, fps)
        height, width, channels = frames[0].shape
        image = Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=gif.getvalue())
        self._writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def report(self, step: int, page: Path, text: str) -> None:
        self._writer.add_text("report", text, step)

    def close(self) -> None:
        self._writer.close()


class _Wandb:
    """Weights & Biases; Trackio takes the same calls."""

    def __init__(self, track: str, folder: Path, config: Mapping[str, Any]) -> None:
        # The folder's name as id: a resumed run continues the same curve. Trackio's runs have no id but their name.
        place = {"id": folder.name, "dir": str(folder)} if track == "wandb" else {}
        self._package: Any = importlib.import_module(track)
        self._run = self._package.init(
            project="embodied-rl", name=folder.name, config=dict(config), resume="allow", **place
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def video(self, step: int, name: str, path: Path) -> None:
        self._run.log({name: self._package.Video(str(path))}, step=step)

    def report(self, step: int, page: Path, text: str) -> None:
        self._run.log({"report": self._package.Html(str(page), inject=False)}, step=step)

    def close(self) -> None:
        self._run.finish()

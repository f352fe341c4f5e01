"""Trackers get figures, videos and the report; one that fails is said once and costs the run nothing."""

from __future__ import annotations

import io
import sys
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from embodied_rl.errors import UserError
from embodied_rl.telemetry.metrics import MetricsLog, read_metrics
from embodied_rl.telemetry.trackers import Tracking
from embodied_rl.telemetry.video import VideoWriter
from embodied_rl.utils.console import LastingConsole
from tests.embodied_rl.telemetry.stand_in_tracker import PARAMETERS, StandIn


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Twelve frames of 48 times 80 pixels at 20 Hz; frame n is a grey of 20 n."""
    path = tmp_path / "a-before.mp4"
    with VideoWriter(path, 20) as writer:
        for step in range(12):
            writer.write(np.full((48, 80, 3), 20 * step, np.uint8))
    return path


@pytest.fixture
def console() -> LastingConsole:
    return LastingConsole(file=io.StringIO(), width=400)


def said(console: LastingConsole) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_tensorboard_gets_figures_videos_and_the_report(tmp_path: Path, video: Path, console: LastingConsole) -> None:
    with Tracking("tensorboard", tmp_path, console) as tracking:
        tracking.open({"seed": 1})
        tracking.log(3, {"rollout/success": 0.5})
        tracking.log(4, {"rollout/success": 0.75})
        tracking.video(0, "videos/a", video)
        tracking.video(4, "videos/a", video)
        tracking.report(4, tmp_path / "report.html", "# Better\n")
    assert said(console) == []
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("rollout/success")] == [(3, 0.5), (4, 0.75)]
    (text,) = events.Tensors("report/text_summary")
    assert text.tensor_proto.string_val == [b"# Better\n"]
    shown = events.Images("videos/a")
    assert [(image.step, image.width, image.height) for image in shown] == [(0, 80, 48), (4, 80, 48)]
    with av.open(io.BytesIO(shown[0].encoded_image_string), "r") as container:
        stream = container.streams.video[0]
        assert (container.format.name, stream.average_rate) == ("gif", 20)
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert [frame.shape for frame in frames] == [(48, 80, 3)] * 12
    assert [frame.mean() for frame in frames] == pytest.approx(range(0, 240, 20), abs=4)


@pytest.mark.parametrize("track", ["wandb", "trackio"])
def test_the_others_get_the_files(
    track: str, tmp_path: Path, video: Path, console: LastingConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, page = StandIn(track), tmp_path / "report.html"
    monkeypatch.setitem(sys.modules, track, package)
    first, *_ = PARAMETERS[track]["Run.log"].split()
    source, *_ = PARAMETERS[track]["Video"].split()
    with Tracking(track, tmp_path / "run", console) as tracking:
        tracking.open({"seed": 1})
        tracking.log(3, {"loss": 0.5})
        tracking.video(3, "videos/a", video)
        tracking.report(3, page, "# Better\n")
    assert said(console) == []
    asked = {"project": "embodied-rl", "name": "run", "config": {"seed": 1}, "resume": "allow"}
    assert package.calls == [
        ("init", asked | ({"id": "run", "dir": str(tmp_path / "run")} if track == "wandb" else {})),
        ("log", {first: {"loss": 0.5}, "step": 3}),
        ("log", {first: {"videos/a": {source: str(video)}}, "step": 3}),
        ("log", {first: {"report": {"data": str(page), "inject": False}}, "step": 3}),
        ("finish", {}),
    ]


@pytest.mark.parametrize("call", ["init", "log", "finish"])
def test_one_without_a_network_is_said_once(
    call: str, tmp_path: Path, video: Path, console: LastingConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = StandIn("wandb", fails=call)
    monkeypatch.setitem(sys.modules, "wandb", package)
    with Tracking("wandb", tmp_path, console) as tracking, MetricsLog(tmp_path / "m.jsonl", tracking) as log:
        tracking.open({})
        log.write(1, {"loss": 0.5})
        log.write(2, {"loss": 0.25})
        tracking.video(2, "videos/a", video)
    assert [row["loss"] for row in read_metrics(tmp_path / "m.jsonl")] == [0.5, 0.25]
    assert said(console) == [
        "--track wandb failed and is left out from here on: ConnectionError: no route to the server"
    ]
    assert len(package.calls) == {"init": 0, "log": 1, "finish": 4}[call]


def test_a_full_disk_is_said_once(tmp_path: Path, console: LastingConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()  # of TensorBoard's thread, whose exception pytest would report
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())
    with Tracking("tensorboard", tmp_path, console) as tracking:
        tracking.open({})
        (events,) = (tmp_path / "tensorboard").iterdir()
        events.unlink()
        events.symlink_to("/dev/full")  # TensorBoard's writer opens its file anew for each write
        for step in range(50):  # its queue holds 10, so that its thread has failed by then
            tracking.log(step, {"loss": 0.5})
    ended.wait()
    (line,) = said(console)
    assert line.startswith("--track tensorboard failed")
    assert "No space left on device" in line


def test_ctrl_c_is_no_failure_of_the_tracker(
    tmp_path: Path, console: LastingConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = StandIn("wandb", fails="log", error=KeyboardInterrupt)
    monkeypatch.setitem(sys.modules, "wandb", package)
    with Tracking("wandb", tmp_path, console) as tracking:
        tracking.open({})
        with pytest.raises(KeyboardInterrupt):
            tracking.log(1, {"loss": 0.5})
    assert [name for name, _ in package.calls] == ["init", "finish"]
    assert said(console) == []


@pytest.mark.parametrize(("name", "extra"), [("tensorboard", "track"), ("wandb", "wandb"), ("trackio", "trackio")])
def test_a_missing_tracker_says_what_to_install(
    name: str, extra: str, tmp_path: Path, console: LastingConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=rf"pip install 'embodied-rl\[{extra}\]'"):
        Tracking(name, tmp_path, console).open({})


def test_no_tracker_unless_asked(tmp_path: Path, console: LastingConsole) -> None:
    with Tracking("none", tmp_path, console) as tracking:
        tracking.open({})
        tracking.log(1, {"loss": 0.5})
    assert list(tmp_path.iterdir()) == []

"""Pictures, events, clocks and the way to rclpy: the bridge's parts that need no ROS."""

from __future__ import annotations

import os
import struct
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.states import ArmState, Event, Transition
from embodied_rl.real_robot.ros2 import environment
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.events import BackgroundSink, Events, StateChanged
from embodied_rl.real_robot.ros2.images import ImageError, of_compressed, of_raw
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (4, 5, 3), np.uint8)


def message(encoding: str, pixels: np.ndarray, padding: int = 0) -> SimpleNamespace:
    rows = pixels.reshape(pixels.shape[0], -1)
    rows = np.concatenate([rows, np.zeros((len(rows), padding), np.uint8)], 1)
    return SimpleNamespace(encoding=encoding, height=4, width=5, step=rows.shape[1], data=rows.tobytes())


@pytest.mark.parametrize("padding", [0, 3])
def test_raw_pictures_of_every_encoding(padding: int) -> None:
    alpha = np.concatenate([IMAGE, IMAGE[:, :, :1]], 2)
    assert (of_raw(message("rgb8", IMAGE, padding)) == IMAGE).all()
    assert (of_raw(message("bgr8", IMAGE[:, :, ::-1], padding)) == IMAGE).all()
    assert (of_raw(message("rgba8", alpha, padding)) == IMAGE).all()
    assert (of_raw(message("bgra8", alpha[:, :, [2, 1, 0, 3]], padding)) == IMAGE).all()
    assert (of_raw(message("mono8", IMAGE[:, :, 0], padding)) == IMAGE[:, :, :1]).all()


@pytest.mark.parametrize(
    "change", [{"encoding": "16UC1"}, {"height": 5}, {"step": 14}, {"width": 0}, {"height": 2**31, "width": 2**31}]
)
def test_raw_pictures_that_are_none(change: dict[str, object]) -> None:
    wrong = message("rgb8", IMAGE)
    vars(wrong).update(change)
    with pytest.raises(ImageError):
        of_raw(wrong)


def test_compressed_pictures() -> None:
    import cv2

    data = cv2.imencode(".png", IMAGE[:, :, ::-1])[1].tobytes()
    assert (of_compressed(SimpleNamespace(data=data, format="png")) == IMAGE).all()
    for width in (640, 30):
        image = np.tile(IMAGE[:1, :1], (20, width, 1))
        jpeg = cv2.imencode(".jpg", image)[1].tobytes()
        assert of_compressed(SimpleNamespace(data=jpeg, format="jpeg")).shape == (20, width, 3)
    for broken in (b"", b"no picture", jpeg[:20], data[:30], b"\xff\xd8\xff\xff", b"\xff\xd8" + b"x" * 99):
        with pytest.raises(ImageError, match="cannot be decoded"):
            of_compressed(SimpleNamespace(data=broken, format="jpeg"))


@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_a_picture_that_says_it_is_huge_is_not_decoded(kind: str) -> None:
    import cv2

    data = bytearray(cv2.imencode(kind, IMAGE)[1].tobytes())
    if kind == ".png":
        data[16:24] = struct.pack(">II", 60_000, 60_000)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    else:
        at = data.find(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 65_000, 65_000)
    with pytest.raises(ImageError, match="too many"):
        of_compressed(SimpleNamespace(data=bytes(data), format=kind))


def changed(number: int) -> StateChanged:
    return StateChanged(number, Transition(number, Event.HOLD, ArmState.RUNNING, ArmState.HOLDING, "", True))


def test_a_slow_sink_keeps_nobody_waiting_and_loses_what_it_cannot_hold() -> None:
    events, gate, seen = Events(), threading.Event(), list[int]()

    def slow(event: object) -> None:
        gate.wait(900)
        assert isinstance(event, StateChanged)
        seen.append(event.time_ns)

    sink = BackgroundSink(slow, capacity=4)
    events.subscribe(sink)
    for number in range(10):
        events.emit(changed(number))
    gate.set()
    sink.close()
    assert seen == sorted(seen)
    assert len(seen) + sink.dropped == 10
    assert sink.dropped >= 5


def test_a_sink_that_fails_is_named_and_harms_nobody() -> None:
    def fails(event: object) -> None:
        raise OSError("disk full")

    sink = BackgroundSink(fails)
    for number in range(3):
        sink(changed(number))
    with pytest.raises(RuntimeError, match="disk full"):
        sink.close()


def test_slow_clocks_agree_on_stamps() -> None:
    clock = Clock(0.25)
    stamp = clock.ros_ns()
    age = clock.now_ns() - clock.own_ns(stamp)
    assert 0 <= age < 10**9


def test_options_survive_the_command_line() -> None:
    bridge = BridgeOptions(robot="fr3", horizon=3, resume_s=0.5)
    assert BridgeOptions.from_json(bridge.to_json()) == bridge
    twin = TwinOptions(looks=("light",), friction=0.5)
    assert TwinOptions.from_json(twin.to_json()) == twin


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("{'robot': 'fr3'}", "no JSON"),
        ("[]", "not keys and values"),
        ('{"robots": "fr3"}', "unknown key 'bridge.robots'. Did you mean 'robot'"),
        ('{"port": "8000"}', "'bridge.port' must be a whole number, got '8000'"),
        ('{"aligned": 1}', "'bridge.aligned' must be true or false, got 1"),
        ('{"token": 3}', "'bridge.token' must be text or null, got 3"),
        ('{"speed": 0}', "speed must lie in 0.01 to 1"),
        ('{"requests": 17}', "requests must lie in 1 to 16"),
        ('{"mode": "dry-run"}', "'bridge.mode' must be one of live, dry_run, shadow"),
        ('{"overlap": "mean"}', "overlap is one of newest, blend, ensemble, realtime"),
    ],
)
def test_options_that_are_none_are_refused_in_a_line(text: str, words: str) -> None:
    with pytest.raises(UserError, match=f"the bridge's options: .*{words}") as caught:
        BridgeOptions.from_json(text)
    assert "\n" not in str(caught.value)


def test_the_twin_takes_no_option_that_it_does_not_know() -> None:
    with pytest.raises(UserError, match=r"the twin's options: unknown key 'twin.look'. Did you mean 'looks'"):
        TwinOptions.from_json('{"look": ["light"]}')


def test_options_that_a_person_leaves_out_have_their_defaults() -> None:
    options = BridgeOptions.from_json('{"robot": "arm.yaml", "speed": 1, "record": null, "autostart": false}')
    assert options == BridgeOptions(robot="arm.yaml", autostart=False)


def test_without_ros_one_line_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "has_rclpy", lambda: False)
    monkeypatch.setattr(environment, "wheels_folder", lambda: tmp_path)
    with pytest.raises(UserError, match="make ros2"):
        environment.ros_environment()


def test_with_ros_sourced_a_process_takes_the_environment_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_rclpy", lambda: True)
    monkeypatch.setenv("ROS_DOMAIN_ID", "0")
    environment.enter("nowhere", [], environment.ros_environment(domain=7))
    assert os.environ["ROS_DOMAIN_ID"] == "7", "as the processes that it starts"


def test_the_loopback_profile_is_named_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "has_rclpy", lambda: True)
    monkeypatch.delenv("FASTDDS_DEFAULT_PROFILES_FILE", raising=False)
    assert "FASTDDS_DEFAULT_PROFILES_FILE" not in environment.ros_environment()
    local = environment.ros_environment(domain=7, loopback=True)
    assert local["ROS_DOMAIN_ID"] == "7"
    assert Path(local["FASTDDS_DEFAULT_PROFILES_FILE"]).is_file()

"""The recorder: what goes in comes out, a kill loses the last moment only, memory is bounded, the loop never waits."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.reader import NonSeekingReader, make_reader
from mcap.writer import Writer

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.executor import Chunk, Receipt
from embodied_rl.real_robot.core.gate import Command, GateDecision
from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.states import ArmState, Event, Transition
from embodied_rl.real_robot.record import codec, events
from embodied_rl.real_robot.record.reader import RecordingFile
from embodied_rl.real_robot.record.recorder import Recorder
from tests.real_robot.robot_loop import ROBOT, ScriptedRobot, picture, session
from tests.real_robot.ros2.test_peers import missing

ROOT = Path(__file__).parents[2]


class Memory:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def record(self, event: events.RecordEvent) -> bool:
        self.events.append(event)
        return True


def recorded(path: Path) -> list[Any]:
    return [message.event() for message in RecordingFile(path).messages()]


def same(one: Any, other: Any) -> bool:
    return json.dumps(codec.plain(one)) == json.dumps(codec.plain(other))


def test_everything_comes_back_in_order(tmp_path: Path) -> None:
    memory, path = Memory(), tmp_path / "run.mcap"
    with Recorder(path, session(version="1")) as recorder:
        for sink in (memory, recorder):
            robot = ScriptedRobot(sink)
            robot.episode(0, 12, success=True, human=range(4, 7))
            robot.stop()
    recording = RecordingFile(path)
    assert same(recording.session, session(version="1"))
    got = [message.event() for message in recording.messages()][1:]
    assert recording.whole
    assert recorder.dropped == {}
    assert len(got) == len(memory.events)
    for event, back in zip(memory.events, got, strict=True):
        if isinstance(event, Tick):
            assert event.record() == {key: value for key, value in back.items() if key != "setpoint_velocities"}
        elif isinstance(event, events.CameraImage):
            assert (event.time_ns, event.camera) == (back.time_ns, back.camera)
            assert (event.image == back.image).all(), "a small picture is stored without loss"
        else:
            assert type(event) is type(back)
            assert same(event, back)


def test_gate_decisions_interventions_and_the_stop_are_there_with_reasons(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path, session()) as recorder:
        robot = ScriptedRobot(recorder)
        robot.episode(0, 6, success=False, human=range(2, 4))
        robot.tick(ROBOT.home + 9.0)
        robot.stop()
    recording = RecordingFile(path)
    ticks = list(recording.events(Tick))
    assert {reason["kind"] for reason in ticks[-1]["gate"]["reasons"]} >= {"position", "velocity"}
    assert [tick["intervention"] for tick in ticks].count(True) == 2 * 5
    transitions = list(recording.events(Transition))
    assert [t.event for t in transitions if t.event is Event.TAKEOVER] == [Event.TAKEOVER]
    assert (transitions[-1].after, transitions[-1].reason) == (ArmState.ESTOPPED, "button")
    assert [stop.pressed for stop in recording.events(events.EmergencyStop)] == [True]


def test_other_readers_read_it(tmp_path: Path) -> None:
    path, payload = tmp_path / "run.mcap", b"\x00\x01\x00\x00\x05\x00\x00\x00"
    with Recorder(path, session()) as recorder:
        recorder.record(events.RawMessage(5, "/joint_states", "std_msgs/msg/Int32", "int32 data\n", payload))
        recorder.record(events.CameraImage(7, "front", picture(1, 0)))
        recorder.record(events.PolicyChanged(8, "v2", {"checkpoint": "runs/x"}))
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        messages: dict[str, Any] = {made.topic: (layout, message) for layout, made, message in reader.iter_messages()}
        summary = reader.get_summary()
    assert summary is not None
    assert summary.statistics is not None
    assert summary.statistics.message_count == 4
    layout, message = messages["/joint_states"]
    assert (layout.name, layout.encoding, message.data) == ("std_msgs/msg/Int32", "ros2msg", payload)
    layout, message = messages["/embodied_rl/camera/front"]
    assert layout.name == "sensor_msgs/msg/CompressedImage"
    assert message.log_time == session().wall_ns + 7
    layout, message = messages["/embodied_rl/policy"]
    assert (layout.name, layout.encoding) == ("std_msgs/msg/String", "ros2msg")
    assert codec.decode(events.PolicyChanged, message.data).stamp == {"checkpoint": "runs/x"}
    channels = {made.topic: made for made in summary.channels.values()}
    assert {made.message_encoding for made in channels.values()} == {"cdr"}
    described = json.loads(channels["/embodied_rl/policy"].metadata["json_schema"])
    assert set(described["properties"]) == {"time_ns", "policy", "stamp"}


def rosbags_reader() -> Any:
    """rosbags' reader of any recording, which knows ROS 2 and nothing of embodied-rl."""
    if importlib.util.find_spec("rosbags") is None:
        missing("rosbags is not installed")
    return importlib.import_module("rosbags.highlevel").AnyReader


def read_by_rosbags(path: Path) -> list[tuple[str, Any]]:
    with rosbags_reader()([path]) as reader:
        return [(c.topic, reader.deserialize(raw, c.msgtype)) for c, _, raw in reader.messages()]


def read_by_mcap(path: Path, reader: Any) -> list[str]:
    with path.open("rb") as file:
        return [channel.topic for _, channel, _ in reader(file, validate_crcs=True).iter_messages()]


def test_rosbags_reads_a_recording(tmp_path: Path) -> None:
    """Every kind of event, opened and deserialised by another program's reader of ROS 2 bags."""
    memory, path = Memory(), tmp_path / "run.mcap"
    with Recorder(path, session()) as recorder:
        for sink in (memory, recorder):
            robot = ScriptedRobot(sink)
            robot.episode(0, 3, success=True, human=range(1, 2))
            robot.stop()
        recorder.record(
            events.RawMessage(5, "/n", "std_msgs/msg/Int32", "int32 data\n", b"\x00\x01\x00\x00\x05\x00\x00\x00")
        )
    got = read_by_rosbags(path)
    assert len(got) == len(memory.events) + 2
    assert [message.data for topic, message in got if topic == "/n"] == [5]
    steps = [json.loads(message.data) for topic, message in got if topic == "/embodied_rl/step"]
    assert steps == [codec.plain(event) for event in memory.events if isinstance(event, events.ControlStep)]
    shown = [message for topic, message in got if topic.startswith("/embodied_rl/camera/")]
    assert shown
    assert {message.format for message in shown} == {"png"}


@pytest.mark.parametrize("text", ["", "a", "abc", "äöü\n", "x" * 1000])
def test_a_text_of_any_length_is_read_by_rosbags(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path, session()) as recorder:
        recorder.record(events.EpisodeStarted(1, 0, text))
    started = [
        json.loads(message.data) for topic, message in read_by_rosbags(path) if topic.endswith("episode_started")
    ]
    assert [event["instruction"] for event in started] == [text]


def test_other_readers_open_what_is_left_of_a_recorder_that_is_killed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its thread has written anything."""
    path = tmp_path / "run.mcap"
    monkeypatch.setattr(Recorder, "_run", lambda self: None)
    Recorder(path, session())
    assert read_by_rosbags(path) == []
    assert read_by_mcap(path, NonSeekingReader) == read_by_mcap(path, make_reader) == []
    with pytest.raises(UserError, match="does not begin with a session"):
        RecordingFile(path)


def test_the_session_is_written_at_once(tmp_path: Path) -> None:
    """Not after the first of the times by which what was written is brought to the disk."""
    path = tmp_path / "run.mcap"
    recorder = Recorder(path, session(), flush_s=1e6)
    while not read_by_mcap(path, NonSeekingReader):
        assert recorder.problem == ""
    recorder.close()


def test_other_readers_read_what_a_kill_left(tmp_path: Path) -> None:
    """The file as it is between two writes, while the recorder still runs."""
    path, left = tmp_path / "run.mcap", tmp_path / "left.mcap"
    recorder = Recorder(path, session(), flush_s=0.0)
    sizes = set()
    for step in range(5):
        recorder.record(events.EmergencyStop(step, False))
        until_written(recorder, path, step)
        shutil.copy(path, left)
        sizes.add(left.stat().st_size)
        wanted = ["/embodied_rl/session"] + ["/embodied_rl/estop"] * (step + 1)
        assert read_by_mcap(left, NonSeekingReader) == read_by_mcap(left, make_reader) == wanted
        assert [topic for topic, _ in read_by_rosbags(left)] == wanted
        recording = RecordingFile(left)
        assert len(list(recording.events(events.EmergencyStop))) == step + 1
        assert not recording.whole, "the recorder was not closed"
    recorder.close()
    recording = RecordingFile(path)
    assert [event.time_ns for event in recording.events(events.EmergencyStop)] == list(range(5))
    assert recording.whole
    assert len(sizes) == 5


def until_written(recorder: Recorder, path: Path, step: int) -> None:
    """Wait until the recorder has written the event of `step`: until its reader finds it."""
    while recorder.problem == "":
        with contextlib.suppress(UserError):
            if [e.time_ns for e in RecordingFile(path).events(events.EmergencyStop)][-1:] == [step]:
                return
    raise AssertionError(recorder.problem)


def test_a_recording_of_bare_json_is_read(tmp_path: Path) -> None:
    """As recorders wrote it before its texts were ROS 2 messages."""
    path, started = tmp_path / "old.mcap", session()
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start(profile="ros2", library="embodied-rl")
        kind = writer.register_schema("embodied_rl.SessionStarted", "jsonschema", b"{}")
        number = writer.register_channel("/embodied_rl/session", "json", kind)
        writer.add_message(number, 0, json.dumps(codec.plain(started)).encode(), 0)
        writer.finish()
    assert same(RecordingFile(path).session, started)


def test_a_large_picture_is_compressed_and_close(tmp_path: Path) -> None:
    rows, columns = np.mgrid[:480, :640]
    image = np.stack([rows / 2, columns / 3, (rows + columns) / 5], axis=-1).astype(np.uint8)
    data = codec.encode_image(events.CameraImage(5, "front@left", image), 10**18)
    assert len(data) < image.nbytes / 8
    back = codec.decode_image(data)
    assert (back.time_ns, back.camera) == (5, "front@left")
    assert np.abs(back.image.astype(int) - image).max() <= 8


@settings(max_examples=50, deadline=None)
@given(name=st.text(min_size=1, max_size=20), time_ns=st.integers(-(10**15), 10**18), size=st.integers(1, 9))
def test_a_picture_message_is_aligned_whatever_its_names(name: str, time_ns: int, size: int) -> None:
    image = np.random.default_rng(size).integers(0, 256, (size, size + 1, 3), np.uint8)
    back = codec.decode_image(codec.encode_image(events.CameraImage(time_ns, name, image), 123_456_789))
    assert (back.camera, back.time_ns) == (name, time_ns)
    assert (back.image == image).all()


def test_numbers_that_are_not_finite_come_back(tmp_path: Path) -> None:
    actions = np.array([[np.nan, np.inf], [-np.inf, 1e-310]])
    event = events.ChunkArrived(3, Chunk(1, actions, "v"), Receipt(False, "an action is not finite", 0))
    back = codec.decode(events.ChunkArrived, codec.encode(event))
    np.testing.assert_array_equal(back.chunk.actions, actions)
    assert back.receipt == event.receipt


@pytest.mark.process
def test_a_kill_loses_the_last_moment_only(tmp_path: Path) -> None:
    """kill -9 in the middle of writing: what was there half a second before is read, in order and unharmed."""
    path, program = tmp_path / "run.mcap", tmp_path / "write.py"
    program.write_text(
        "import sys, time\nfrom pathlib import Path\n"
        "from embodied_rl.real_robot.record import events\n"
        "from embodied_rl.real_robot.record.recorder import Recorder\n"
        "from tests.real_robot.robot_loop import picture, session\n"
        "recorder = Recorder(Path(sys.argv[1]), session(), flush_s=0.05)\n"
        "for step in range(10**9):\n"
        "    recorder.record(events.CameraImage(step, 'front', picture(step, 0)))\n"
        "    recorder.record(events.EmergencyStop(step, False))\n"
        "    print(step, flush=True)\n"
        "    time.sleep(0.001)\n"
    )
    with subprocess.Popen(
        [sys.executable, str(program), str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        while not path.exists() or path.stat().st_size < 60_000:
            assert process.poll() is None
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    recording = RecordingFile(path)
    steps = [event.time_ns for event in recording.events(events.EmergencyStop)]
    assert not recording.whole
    assert len(steps) > 20
    assert steps == list(range(len(steps)))
    images = [m.event() for m in recording.messages() if m.topic == "/embodied_rl/camera/front"]
    assert all((shown.image == picture(shown.time_ns, 0)).all() for shown in images)


def test_any_cut_and_any_wrong_byte_is_survived(tmp_path: Path) -> None:
    path, cut = tmp_path / "run.mcap", tmp_path / "cut.mcap"
    with Recorder(path, session(), flush_s=0.0) as recorder:
        for step in range(30):
            recorder.record(events.EmergencyStop(step, False))
            time.sleep(0.001)
    data = path.read_bytes()
    counts = []
    for length in range(600, len(data), 97):
        cut.write_bytes(data[:length])
        with contextlib.suppress(UserError):  # it was cut off before its session
            counts.append(len(list(RecordingFile(cut).events(events.EmergencyStop))))
    assert counts == sorted(counts)
    assert counts[-1] == 30
    spoiled = bytearray(data)
    spoiled[len(data) // 3] ^= 0xFF
    cut.write_bytes(spoiled)
    got = [event.time_ns for event in RecordingFile(cut).events(events.EmergencyStop)]
    assert got == list(range(len(got))), "nothing behind the damage is taken for sound"


def test_a_damaged_byte_anywhere_is_said_with_its_place(tmp_path: Path) -> None:
    """Head, first chunk, index and end: what comes before is read, or one line says where the damage is."""
    path, spoilt = tmp_path / "run.mcap", tmp_path / "spoilt.mcap"
    with Recorder(path, session()) as recorder:
        recorder.record(events.EpisodeStarted(1, 0, "open it"))
        recorder.record(events.EmergencyStop(2, False))
    data, found = path.read_bytes(), set()
    for place in {*range(0, len(data), 7), *range(48)}:
        content = bytearray(data)
        content[place] ^= 0xFF
        spoilt.write_bytes(content)
        try:
            recording = RecordingFile(spoilt)
            stops = [event.time_ns for event in recording.events(events.EmergencyStop)]
        except UserError as error:
            found.add(str(error).replace(str(spoilt), "").partition(" at byte")[0].strip())
        else:
            assert stops in ([], [2])
            assert recording.damaged_at is None or 8 <= recording.damaged_at <= len(data)
            if recording.damaged_at is not None:
                found.add("read up to there")
    found.discard("is no recording of embodied-rl: it does not begin with a session")  # the first chunk's kind
    assert found == {"is no MCAP file", "is damaged", "read up to there"}


def test_memory_is_bounded_drops_are_said_and_what_happened_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stands still: pictures are dropped, transitions are not."""
    gate = threading.Event()
    write = Recorder._write
    monkeypatch.setattr(Recorder, "_write", lambda self, item: (gate.wait(), write(self, item))[1])
    path = tmp_path / "run.mcap"
    recorder = Recorder(path, session(), memory_mib=0.1)
    taken = [recorder.record(events.CameraImage(step, "front", picture(step, 0))) for step in range(100)]
    assert sum(taken) * 3072 <= 104857 < (sum(taken) + 2) * 3072
    assert all(recorder.record(events.EmergencyStop(step, True)) for step in range(100))
    topic = "/embodied_rl/camera/front"
    assert recorder.dropped == {topic: 100 - sum(taken)}
    gate.set()
    recorder.close()
    recording = RecordingFile(path)
    assert len(list(recording.events(events.EmergencyStop))) == 100
    notes = [message.event() for message in recording.messages(["/embodied_rl/dropped"])]
    assert sum(note["count"] for note in notes if note["topic"] == topic) == 100 - sum(taken)


def test_a_failing_disk_is_said_and_does_not_stop_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    recorder = Recorder(tmp_path / "run.mcap", session(), flush_s=0.0)
    monkeypatch.setattr(os, "fsync", full)
    while not recorder.problem:
        recorder.record(events.EmergencyStop(1, True))
    recorder._thread.join()
    assert not recorder.record(events.EmergencyStop(2, True))
    monkeypatch.undo()
    with pytest.raises(UserError, match="No space left"):
        recorder.close()


def test_what_is_no_event_is_counted_and_raises_nothing(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.mcap", session())
    bad: list[Any] = [
        object(),
        events.CameraImage(1, "front", np.zeros((4, 4), np.uint8)),
        events.EmergencyStop("now", True),  # type: ignore[arg-type]
        events.PolicyChanged(1, "v", {"x": object()}),
    ]
    assert not any(recorder.record(event) for event in bad)
    assert sum(recorder.dropped.values()) == 4
    assert recorder.record(events.EmergencyStop(2, True))
    with pytest.raises(UserError, match="cannot be recorded"):
        recorder.close()
    assert len(list(RecordingFile(tmp_path / "run.mcap").events(events.EmergencyStop))) == 1


def test_the_caller_may_use_its_arrays_again(tmp_path: Path) -> None:
    image, action = picture(3, 0), np.zeros(7)
    with Recorder(tmp_path / "run.mcap", session()) as recorder:
        recorder.record(events.CameraImage(1, "front", image))
        recorder.record(events.ControlStep(1, 0, 0, action, {}, action, "policy", False))
        image[:], action[:] = 9, 9
    shown, step = recorded(tmp_path / "run.mcap")[1:]
    assert (shown.image == picture(3, 0)).all()
    assert (step.action == 0).all()


def test_malformed_commands_are_recorded(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run.mcap", session()) as recorder:
        robot = ScriptedRobot(recorder)
        robot.episode(0, 2, success=None)
        for positions in ([np.nan] * 7, "no numbers", [[1], [2, 3]], None):
            robot.now += 10_000_000
            robot.runtime.joint_states(ROBOT.limits.names, robot.arm.tolist(), robot.now)
            tick = robot.runtime.tick(robot.now, Command(robot.now, ROBOT.limits.names, positions))
            assert isinstance(tick.decision, GateDecision)
            assert recorder.record(tick)
    kinds = [
        tick["gate"]["reasons"][0]["kind"] for tick in list(RecordingFile(tmp_path / "run.mcap").events(Tick))[-4:]
    ]
    assert kinds == ["not_finite", "shape", "shape", "shape"]


def test_bad_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    Recorder(path, session()).close()
    with pytest.raises(UserError, match="exists already"):
        Recorder(path, session())
    with pytest.raises(UserError, match="cannot be written"):
        Recorder(tmp_path / "none" / "run.mcap", session())
    with pytest.raises(UserError, match="cannot be read"):
        RecordingFile(tmp_path / "other.mcap")
    (tmp_path / "text").write_text("hello, this is some text that is long enough")
    with pytest.raises(UserError, match="no MCAP file"):
        RecordingFile(tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(UserError, match=r"no MCAP file|does not begin"):
        RecordingFile(tmp_path / "empty")

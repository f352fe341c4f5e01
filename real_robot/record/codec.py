"""Events as the bytes of an MCAP channel and back: JSON in ROS 2's `String`, pictures as its `CompressedImage`.

Every channel is CDR with the ros2msg text of its type, as MCAP's profile `ros2` demands: rosbags and ROS 2 read them.
The JSON schema of a `String` is in its channel's metadata.
"""

from __future__ import annotations

import functools
import json
import math
import struct
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.states import Transition
from embodied_rl.real_robot.record import events
from embodied_rl.real_robot.record.events import CameraImage, RawMessage, RecordEvent

PREFIX = "/embodied_rl"
TOPICS: dict[type, str] = {
    events.SessionStarted: f"{PREFIX}/session",
    events.PolicyChanged: f"{PREFIX}/policy",
    events.EpisodeStarted: f"{PREFIX}/episode_started",
    events.EpisodeEnded: f"{PREFIX}/episode_ended",
    events.JointStates: f"{PREFIX}/joint_states",
    events.ChunkArrived: f"{PREFIX}/chunk",
    events.AlarmRaised: f"{PREFIX}/alarm",
    events.ControlStep: f"{PREFIX}/step",
    events.EmergencyStop: f"{PREFIX}/estop",
    Tick: f"{PREFIX}/tick",
    Transition: f"{PREFIX}/transition",
}
"""Where each kind of event that is written as JSON goes."""
CAMERA_TOPIC = f"{PREFIX}/camera/"
DROPPED_TOPIC = f"{PREFIX}/dropped"
IMAGE_TYPE = "sensor_msgs/msg/CompressedImage"
STRING_TYPE = "std_msgs/msg/String"
LOSSLESS_PIXELS = 256 * 256
"""Up to this size a picture is stored as PNG, which costs little there; a larger one as JPEG of quality 95."""
_JPEG_QUALITY = 95
_SEPARATOR = "=" * 80
_IMAGE_DEFINITION = f"""\
std_msgs/Header header
string format
uint8[] data
{_SEPARATOR}
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
{_SEPARATOR}
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
"""
_CDR = b"\x00\x01\x00\x00"  # little endian; no JSON begins so
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class ChannelSpec:
    """What a CDR channel needs: topic, its type's name and ros2msg text, and what else is to be known of it."""

    topic: str
    type_name: str
    definition: str
    metadata: Mapping[str, str] = field(default_factory=dict)


def channel(event: RecordEvent) -> ChannelSpec:
    """The channel of an event."""
    if isinstance(event, RawMessage):
        return ChannelSpec(event.topic, event.type_name, event.definition)
    if isinstance(event, CameraImage):
        return ChannelSpec(CAMERA_TOPIC + event.camera, IMAGE_TYPE, _IMAGE_DEFINITION)
    return _event_channel(type(event))


@functools.cache
def _event_channel(cls: type) -> ChannelSpec:
    return json_channel(TOPICS[cls], cls.__name__, _TICK_SCHEMA if cls is Tick else schema(cls))


def json_channel(topic: str, name: str, layout: Mapping[str, Any]) -> ChannelSpec:
    """A channel of JSON texts; layout: their JSON schema."""
    metadata = {"event": f"embodied_rl.{name}", "json_schema": json.dumps(layout)}
    return ChannelSpec(topic, STRING_TYPE, "string data\n", metadata)


def encode(event: RecordEvent) -> bytes:
    """An event that is written as JSON -> its message."""
    return encode_json(
        event.record() | {"setpoint_velocities": _velocities(event)} if isinstance(event, Tick) else event
    )


def encode_json(value: Any) -> bytes:
    """What `plain` takes -> a CDR message of type `STRING_TYPE` that holds it as JSON."""
    return _CDR + _text(b"", json.dumps(plain(value), allow_nan=False, separators=(",", ":")))


def decode(cls: type, data: bytes) -> Any:
    """The message of an event of type `cls` -> the event; a `Tick` comes back as its plain values.

    Earlier recordings have the JSON itself as the message.
    """
    value = json.loads(_read_text(data, len(_CDR))[0] if data.startswith(_CDR) else data)
    return value if cls is Tick else _build(cls, value)


def _velocities(tick: Tick) -> list[float] | None:
    return None if tick.setpoint is None else tick.setpoint.velocities.tolist()


def plain(value: Any) -> Any:
    """Dataclasses, arrays and enums -> what JSON takes; numbers that are not finite become strings.

    Raises:
        TypeError: Something else is in it.
    """
    if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            return plain(value.tolist())
        return value.tolist()
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be recorded")


def _build(hint: Any, value: Any) -> Any:
    """JSON values -> what a type hint says."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _build(next(a for a in typing.get_args(hint) if a is not type(None)), value)
    if origin is tuple:
        return tuple(_build(typing.get_args(hint)[0], item) for item in value)
    if hint is np.ndarray:
        return np.array(_numbers(value), np.float64)
    if isinstance(hint, type) and is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{field.name: _build(hints[field.name], value[field.name]) for field in fields(hint)})
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    return _numbers(value) if hint is float else value


def _numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return _NOT_FINITE[value] if isinstance(value, str) else value


def schema(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type hint."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [schema(part) for part in typing.get_args(hint)]}
    if origin is tuple:
        return {"type": "array", "items": schema(typing.get_args(hint)[0])}
    if hint is np.ndarray:
        return {"type": "array"}
    if isinstance(hint, type) and is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return {"type": "object", "properties": {field.name: schema(hints[field.name]) for field in fields(hint)}}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"type": "string", "enum": [member.value for member in hint]}
    names = {int: "integer", float: "number", bool: "boolean", str: "string", type(None): "null"}
    return {"type": names.get(hint, "object")}


_TICK_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "time_ns": {"type": "integer"},
        "state": {"type": "string"},
        "faults": {"type": "array", "items": {"type": "string"}},
        "source": {"type": "string"},
        "intervention": {"type": "boolean"},
        "intervention_number": {"type": "integer"},
        "gate": {"type": ["object", "null"]},
        "setpoint": {"type": ["array", "null"]},
        "setpoint_velocities": {"type": ["array", "null"]},
    },
}


def encode_image(event: CameraImage, wall_ns: int) -> bytes:
    """Compress a picture into a CDR message of type `IMAGE_TYPE`; `wall_ns` is its time of day.

    `frame_id` is '<camera>@<time_ns>': the control loop's time is what control steps refer to.
    """
    import cv2

    height, width = event.image.shape[:2]
    small = height * width <= LOSSLESS_PIXELS
    options = [] if small else [cv2.IMWRITE_JPEG_QUALITY, _JPEG_QUALITY]
    done, packed = cv2.imencode(".png" if small else ".jpg", event.image[..., ::-1], options)
    if not done:
        raise UserError(f"camera {event.camera}: a picture of {width} x {height} cannot be compressed")
    seconds, nanoseconds = divmod(wall_ns, 1_000_000_000)
    body = struct.pack("<iI", seconds, nanoseconds)
    body = _text(body, f"{event.camera}@{event.time_ns}")
    body = _align(_text(body, "png" if small else "jpeg")) + struct.pack("<I", packed.size)
    return _CDR + body + packed.tobytes()


def decode_image_head(data: bytes) -> tuple[str, int, int]:
    """A message of `encode_image` -> camera, its `time_ns`, and where the compressed picture begins."""
    frame, at = _read_text(data, 12)
    _, at = _read_text(data, at)
    camera, _, time_ns = frame.rpartition("@")
    return camera, int(time_ns), _aligned(at) + 4


def decode_image(data: bytes) -> CameraImage:
    """A message of `encode_image` -> the picture."""
    import cv2

    camera, time_ns, at = decode_image_head(data)
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8, offset=at), cv2.IMREAD_COLOR)
    if decoded is None:
        raise UserError(f"camera {camera}: the picture of {time_ns} ns is damaged")
    return CameraImage(time_ns, camera, np.ascontiguousarray(decoded[..., ::-1]))


def _text(body: bytes, text: str) -> bytes:
    raw = text.encode() + b"\0"
    return _align(body) + struct.pack("<I", len(raw)) + raw


def _align(body: bytes) -> bytes:
    return body + bytes(-len(body) % 4)


def _aligned(at: int) -> int:
    return at + -at % 4  # the four bytes before the body keep its alignment


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    at = _aligned(at)
    (length,) = struct.unpack_from("<I", data, at)
    return data[at + 4 : at + 3 + length].decode(), at + 4 + length

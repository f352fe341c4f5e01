"""Read a recording, whole or cut off by a kill."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.record.codec import CAMERA_TOPIC, DROPPED_TOPIC, TOPICS, decode, decode_image
from embodied_rl.real_robot.record.events import RawMessage, SessionStarted
from embodied_rl.real_robot.record.recorder import INSTALL

_MAGIC = 8
_WRONG_BYTES = (struct.error, ValueError, LookupError, ArithmeticError, MemoryError, EOFError)
"""What mcap raises of records whose lengths, numbers or names are wrong."""
_CLASSES = {topic: cls for cls, topic in TOPICS.items()}


@dataclass(frozen=True)
class Recorded:
    """One message of a recording.

    Args:
        topic: Its channel's topic.
        wall_ns: Its time of day, ns since 1970.
        data: As it was written.
        type_name: Its schema's name.
        definition: Its schema's text.
    """

    topic: str
    wall_ns: int
    data: bytes
    type_name: str
    definition: str

    def event(self) -> Any:
        """The event, as it was recorded.

        A `Tick` comes back as its plain values, what was dropped as {'topic', 'count'}, a message of a middleware as a
        `RawMessage` with the time of day for `time_ns`.
        """
        if self.topic in _CLASSES:
            return decode(_CLASSES[self.topic], self.data)
        if self.topic.startswith(CAMERA_TOPIC):
            return decode_image(self.data)
        if self.topic == DROPPED_TOPIC:
            return decode(dict, self.data)
        return RawMessage(self.wall_ns, self.topic, self.type_name, self.definition, self.data)


class RecordingFile:
    """A recording that can be read as often as wanted, from its beginning.

    Args:
        path: The MCAP file.

    Raises:
        UserError: It is not there, no MCAP file, or not one of the recorder's; mcap is not installed.

    Example:
        >>> recording = RecordingFile(Path("run.mcap"))
        >>> takeovers = [t for t in recording.events(Transition) if t.event is Event.TAKEOVER and t.accepted]
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.whole = True
        """Whether the file was finished; known once it has been read to its end."""
        self.damaged_at: int | None = None
        """The byte from which on it cannot be read, cut off or damaged; None where all of it can."""
        first = next(self.messages(), None)
        if first is None and self.damaged_at is not None:
            raise UserError(f"{path} is damaged at byte {self.damaged_at}, before its first message: use a copy of it")
        if first is None or first.topic != TOPICS[SessionStarted]:
            raise UserError(f"{path} is no recording of embodied-rl: it does not begin with a session")
        self.session: SessionStarted = first.event()

    def messages(self, topics: Collection[str] | None = None) -> Iterator[Recorded]:
        """All messages in the order in which they were written, those of `topics` where given.

        What follows a place where the file is cut off or damaged is lost: `whole` is then False, and `damaged_at` says
        where.
        """
        try:
            from mcap.exceptions import InvalidMagic, McapError
            from mcap.records import Channel, Footer, Message, Schema
            from mcap.stream_reader import CRCValidationError, StreamReader
        except ImportError as error:
            raise UserError(f"reading a recording needs mcap ({error}): {INSTALL}") from None
        schemas: dict[int, Any] = {}
        channels: dict[int, Any] = {}
        self.whole, self.damaged_at = True, None
        with self._open() as file:
            try:
                at = 0
                for record in StreamReader(file, validate_crcs=True).records:
                    at = file.tell()
                    if isinstance(record, Schema):
                        schemas[record.id] = record
                    elif isinstance(record, Channel):
                        channels[record.id] = record
                    elif isinstance(record, Message):
                        of = channels[record.channel_id]
                        if topics is None or of.topic in topics:
                            kind = schemas[of.schema_id]
                            yield Recorded(of.topic, record.log_time, record.data, kind.name, kind.data.decode())
                    elif isinstance(record, Footer):
                        self.whole = record.summary_start > 0  # the recorder writes a summary when it is closed
            except (McapError, CRCValidationError, *_WRONG_BYTES, *_decompression_errors()) as error:
                if at == 0 and (isinstance(error, InvalidMagic) or file.tell() < _MAGIC):
                    raise UserError(f"{self.path} is no MCAP file") from None
                self.whole, self.damaged_at = False, max(at, _MAGIC)

    def events(self, *classes: type) -> Iterator[Any]:
        """Events of some types, or all that are not pictures or raw messages, in the order of writing."""
        yield from (message.event() for message in self.messages([TOPICS[cls] for cls in classes or TOPICS]))

    def _open(self) -> Any:
        try:
            return self.path.open("rb")
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror}") from None


def _decompression_errors() -> tuple[type[Exception], ...]:
    import zstandard

    return (zstandard.ZstdError,)

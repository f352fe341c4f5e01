"""The recorder: events go into a bounded queue, a thread of its own writes them to one MCAP file."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.record.codec import (
    DROPPED_TOPIC,
    ChannelSpec,
    channel,
    encode,
    encode_image,
    encode_json,
    json_channel,
)
from embodied_rl.real_robot.record.events import CameraImage, RawMessage, RecordEvent, SessionStarted
from embodied_rl.real_robot.record.whole_file import WholeFile

INSTALL = "pip install 'embodied-rl[record]'"
_CHUNK_BYTES = 1 << 20
_NEVER = 1 << 62
_RESERVE = 16 << 20
"""What events other than pictures and raw messages may take beyond the limit: they say what happened."""
_DROPPED_SCHEMA = {"type": "object", "properties": {"topic": {"type": "string"}, "count": {"type": "integer"}}}

_Item = tuple[ChannelSpec, int, bytes | CameraImage, int]  # channel, time_ns, message, bytes


class Recorder:
    """Writes events to an MCAP file without ever making the control loop wait.

    What does not fit into memory is dropped, counted by topic (`dropped`) and noted in the file. What is older than
    `flush_s` survives a kill of the process and a loss of power. After a kill the file still ends as an MCAP file does,
    without a summary: any reader opens it.

    Args:
        path: The file; it must not exist yet.
        session: The first event.
        memory_mib: Pictures and raw messages that wait to be written take at most this.
        flush_s: How often what was written is brought to the disk, s.

    Raises:
        UserError: The file exists or cannot be made, or mcap is not installed.

    Example:
        >>> with Recorder(Path("run.mcap"), session) as recorder:
        ...     recorder.record(runtime.tick(now_ns, command))
    """

    def __init__(self, path: Path, session: SessionStarted, *, memory_mib: float = 128.0, flush_s: float = 0.5) -> None:
        try:
            from mcap.writer import Writer
        except ImportError as error:
            raise UserError(f"recording needs mcap ({error}): {INSTALL}") from None
        try:
            self._file = WholeFile(path)
            output: Any = self._file
            self._writer = Writer(output, chunk_size=_NEVER)  # `_settle` ends the chunks
            self._writer.start(profile="ros2", library="embodied-rl")
            self._file.settle()  # whoever is killed at once leaves a recording without a message
        except FileExistsError:
            raise UserError(f"{path} exists already; choose another name") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}") from None
        self.path = path
        self._channels: dict[tuple[str, str], int] = {}
        self._schemas: dict[tuple[str, str], int] = {}
        self._offset_ns = session.wall_ns - session.time_ns
        self._limit, self._flush_s = round(memory_mib * (1 << 20)), flush_s
        self._queue: deque[_Item] = deque()
        self._waiting, self._ready = 0, threading.Condition()
        self._chunk = 0
        self._dropped: Counter[str] = Counter()
        self._problem, self._closing = "", False
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self.record(session)
        self._thread.start()

    @property
    def problem(self) -> str:
        """Why nothing is written any more or an event could not be taken; '' while all is well."""
        return self._problem

    @property
    def dropped(self) -> dict[str, int]:
        """How many events of each topic were not recorded."""
        with self._ready:
            return dict(self._dropped)

    def record(self, event: RecordEvent) -> bool:
        """Take an event; returns at once and raises nothing.

        Args:
            event: Its arrays may be changed by the caller afterwards.

        Returns:
            False if it was dropped: no room, the disk failed, or it is no event (see `problem`).
        """
        topic = "?"
        try:
            spec = channel(event)
            topic = spec.topic
            bulky = isinstance(event, (CameraImage, RawMessage))
            message = _message(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self._note(f"{type(event).__name__} cannot be recorded: {error}")
            message, bulky, spec = None, False, None
        if message is None or spec is None:
            with self._ready:
                self._dropped[topic] += 1
            return False
        size = message.image.nbytes if isinstance(message, CameraImage) else len(message)
        with self._ready:
            limit = self._limit if bulky else self._limit + _RESERVE
            if self._closing or not self._thread_well() or self._waiting + size > limit:
                self._dropped[topic] += 1
                return False
            self._waiting += size
            self._queue.append((spec, event.time_ns, message, size))
            self._ready.notify()
        return True

    def close(self) -> None:
        """Write what waits, finish the file and stop.

        Raises:
            UserError: Something was not written; says what.
        """
        with self._ready:
            if self._closing:
                return
            self._closing = True
            self._ready.notify()
        self._thread.join()
        self._file.close()
        if self._problem:
            raise UserError(f"{self.path} is not complete: {self._problem}")

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self.close()
        else:  # the error on its way says more
            with contextlib.suppress(UserError):
                self.close()

    def _thread_well(self) -> bool:
        return self._thread.ident is None or self._thread.is_alive()

    def _note(self, problem: str) -> None:
        self._problem = self._problem or problem

    def _run(self) -> None:
        """The thread: write batches until closed; a failure of the disk ends it."""
        told: Counter[str] = Counter()
        flushed, finished = -math.inf, False  # the session goes out at once
        try:
            while True:
                with self._ready:
                    self._ready.wait_for(lambda: self._queue or self._closing, timeout=self._flush_s)
                    item = self._queue.popleft() if self._queue else None
                    over = self._closing and item is None
                    news = self._dropped - told
                if item is not None:
                    self._write(item)
                told += news
                for topic, count in news.items():
                    self._write_dropped(topic, count)
                due = time.monotonic() - flushed >= self._flush_s
                if over:
                    self._writer.finish()
                    self._file.settle(finished=True)
                elif due or self._chunk >= _CHUNK_BYTES:
                    self._writer.flush()
                    self._file.settle()
                    self._chunk = 0
                if over or due:
                    self._file.sync()
                    flushed = time.monotonic()
                if over:
                    finished = True
                    return
        except OSError as error:
            self._note(f"writing failed: {error.strerror or error}")
        finally:
            if not finished:
                self._note("the recorder's thread ended")

    def _write(self, item: _Item) -> None:
        spec, time_ns, message, size = item
        wall_ns = max(time_ns + self._offset_ns, 0)
        try:
            data = encode_image(message, wall_ns) if isinstance(message, CameraImage) else message
            self._add(spec, wall_ns, data)
        except UserError as error:
            self._note(str(error))
            with self._ready:
                self._dropped[spec.topic] += 1
        with self._ready:
            self._waiting -= size

    def _add(self, spec: ChannelSpec, wall_ns: int, data: bytes) -> None:
        number = self._channels.get((spec.topic, spec.type_name))
        if number is None:
            kind = (spec.type_name, spec.definition)
            if kind not in self._schemas:
                self._schemas[kind] = self._writer.register_schema(spec.type_name, "ros2msg", spec.definition.encode())
            number = self._writer.register_channel(spec.topic, "cdr", self._schemas[kind], dict(spec.metadata))
            self._channels[spec.topic, spec.type_name] = number
        self._writer.add_message(number, log_time=wall_ns, publish_time=wall_ns, data=data)
        self._chunk += len(data)

    def _write_dropped(self, topic: str, count: int) -> None:
        data = encode_json({"topic": topic, "count": count})
        self._add(json_channel(DROPPED_TOPIC, "Dropped", _DROPPED_SCHEMA), time.time_ns(), data)


def _message(event: RecordEvent) -> bytes | CameraImage:
    """What waits in the queue: the message, or a picture of its own that is compressed later."""
    if not isinstance(event.time_ns, (int, np.integer)):
        raise TypeError(f"time_ns is {event.time_ns!r:.40}, not a number of nanoseconds")
    if isinstance(event, RawMessage):
        return bytes(event.payload)
    if not isinstance(event, CameraImage):
        return encode(event)
    image = np.asarray(event.image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ValueError(f"image must be uint8 [H, W, 3], got {image.dtype} {image.shape}")
    return CameraImage(event.time_ns, event.camera, image.copy())

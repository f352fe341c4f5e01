"""A file that ends as an MCAP file should after every write, so that a kill leaves one that other readers open."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_MAGIC = b"\x89MCAP0\r\n"
_DATA_END = struct.pack("<BQI", 0x0F, 4, 0)
_FOOTER = struct.pack("<BQQQI", 0x02, 20, 0, 0, 0)
END = _DATA_END + _FOOTER + _MAGIC
"""The end of an MCAP file without index and checksum (MCAP's specification, "Data End" and "Footer")."""


class WholeFile:
    """What MCAP's writer writes to: kept until `settle`, which brings it to the file with an end behind it.

    Args:
        path: The file; it must not exist yet.

    Raises:
        OSError: It exists or cannot be made.

    Example:
        >>> file = WholeFile(Path("run.mcap"))
        >>> file.write(b"a chunk")
        >>> file.settle()
    """

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._waiting, self._settled = bytearray(), 0

    def write(self, data: bytes) -> int:
        """Keep `data` for the next `settle`."""
        self._waiting += data
        return len(data)

    def tell(self) -> int:
        """Where the next byte goes."""
        return self._settled + len(self._waiting)

    def flush(self) -> None:
        """The writer's word after each chunk; `settle` does it, with the end behind."""

    def settle(self, *, finished: bool = False) -> None:
        """Write what waits, over the end of the last time.

        Args:
            finished: What waits ends with an end of its own.

        Raises:
            OSError: The disk is full or failed.
        """
        end = b"" if finished else END
        # One call: between two the file would have no end, or that of before.
        _write_all(self._handle, bytes(self._waiting) + end, self._settled)
        self._settled, self._waiting = self.tell(), bytearray()

    def sync(self) -> None:
        """Bring what was settled to the disk, so that it survives a loss of power."""
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file; what waits is lost."""
        os.close(self._handle)


def _write_all(handle: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, at)
        view, at = view[written:], at + written

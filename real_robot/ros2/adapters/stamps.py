"""Times in ROS messages."""

from __future__ import annotations

from typing import Any

_SECOND = 1_000_000_000


def set_time(message: Any, ns: int) -> None:
    """Write a time or a duration of `ns` nanoseconds into a builtin_interfaces Time or Duration."""
    message.sec, message.nanosec = divmod(ns, _SECOND)


def nanoseconds(message: Any) -> int:
    """The time or duration that a message holds, ns."""
    return int(message.sec) * _SECOND + int(message.nanosec)

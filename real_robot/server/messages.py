"""Reading a message of which neither size, nor pieces, nor time are the sender's to choose."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection

POLICY_VIOLATION = 1008
MAX_FRAGMENTS = 1024
"""Frames that one message may come in."""


async def receive(connection: ServerConnection, seconds: float) -> bytes | str | None:
    """The next message; None after the connection was closed for the way it came.

    Args:
        seconds: From the message's first fragment to its last.
    """
    pieces: list[Any] = []
    stream = connection.recv_streaming()
    try:
        pieces.append(await anext(stream))
        async with asyncio.timeout(seconds):
            async for piece in stream:
                pieces.append(piece)
                if len(pieces) > MAX_FRAGMENTS:
                    await connection.close(POLICY_VIOLATION, f"a message of more than {MAX_FRAGMENTS} fragments")
                    return None
    except TimeoutError:
        await connection.close(POLICY_VIOLATION, f"a message took longer than {seconds:g} s to arrive")
        return None
    return type(pieces[0])().join(pieces)


def ending(connection: ServerConnection) -> str:
    """How a closed connection ended, in words."""
    if connection.close_code in (None, 1006):
        return "the connection was cut"
    return connection.close_reason or f"closed ({connection.close_code})"


def address_of(connection: ServerConnection) -> str:
    """The address at its other end, without the port; '' where it has none."""
    address = connection.remote_address
    return address[0] if address else ""


def name_of(connection: ServerConnection) -> str:
    """The address and port at its other end."""
    address = connection.remote_address
    return f"{address[0]}:{address[1]}" if address else "a client"


def one_too_many(opening: Sequence[ServerConnection]) -> ServerConnection:
    """Which of the connections that wait to be opened to cut off: the oldest of the address that has most of them.

    A robot opens within milliseconds. So those that never do lose their place, wherever they come from.
    """
    count = Counter(address_of(connection) for connection in opening)
    return max(opening, key=lambda connection: count[address_of(connection)])  # the first of equals: the oldest

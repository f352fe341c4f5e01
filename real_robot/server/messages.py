"""Reading a message of which neither size, nor pieces, nor time are the sender's to choose."""

from __future__ import annotations

import asyncio
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

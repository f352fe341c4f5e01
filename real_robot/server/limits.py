"""What a policy server spends on its clients."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """Bounds on memory and time, whatever clients do.

    Example:
        >>> ServerLimits(max_clients=4).max_message_bytes
        16777216
    """

    max_clients: int = 16
    """Open connections; one more is told to try later."""
    max_message_bytes: int = 16 << 20
    """Of a request; a larger one closes its connection."""
    max_batch: int = 8
    """Requests that one call of the policy decides."""
    max_batch_delay_ms: float = 2.0
    """How long a request waits for those of other clients, if there are any."""
    deadline_ms: float = 5000.0
    """Longest wait of a request for its turn: an observation that old is refused, not acted upon."""
    handshake_s: float = 5.0
    """For a connection's opening."""
    message_s: float = 10.0
    """From the first fragment of a message to its last, and for an answer to be taken."""
    ping_s: float = 10.0
    """Between pings, and for each pong; a client that hangs within a frame cannot answer one."""
    drain_s: float = 10.0
    """For requests that wait when the server is asked to stop."""
    max_pending: int = 64
    """Connections that have not been opened yet; for one more the oldest of the busiest address is cut off."""
    max_unread_bytes: int = 1 << 20
    """Of pongs and the like that a client leaves unread; beyond it is cut off."""
    wrong_tokens: int = 10
    """Of one address within `wrong_tokens_s`; the next ones are refused as too many, the right token never."""
    wrong_tokens_s: float = 60.0
    """For how long a wrong token counts."""

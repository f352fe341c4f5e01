"""Who may open a connection, and what plain HTTP requests get."""

from __future__ import annotations

import hmac
import ipaddress
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

_SCHEMES = ("Bearer ", "Api-Key ")
"""The second is openpi's."""
_ADDRESSES = 4096
"""So many are remembered."""


def token_fits(headers: list[str], token: str | None) -> bool:
    """Whether one Authorization header carries `token`; always where there is none. In constant time."""
    if token is None:
        return True
    if len(headers) != 1:
        return False
    given = next((headers[0][len(scheme) :] for scheme in _SCHEMES if headers[0].startswith(scheme)), "")
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def has_token(request: Request, token: str | None) -> bool:
    """Whether `request` carries the server's token."""
    return token_fits(request.headers.get_all("Authorization"), token)


class WrongTokens:
    """Wrong tokens of late, by the address they came from.

    A request without a token is no try. The right token is let in whatever came before: what keeps a token from being
    found by trying is its length. An IPv6 address is its /64 network, which one machine may have to itself.

    Args:
        most: Tries of an address within `within_s` seconds, after which it is told to wait.
        clock: Gives the time, s.

    Example:
        >>> wrong = WrongTokens(most=10, within_s=60.0)
        >>> wrong.add("10.0.0.7")
        >>> wrong.too_many("10.0.0.7")
        False
    """

    def __init__(self, most: int, within_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._within_s, self._clock = most, within_s, clock
        self._tries: OrderedDict[str, deque[float]] = OrderedDict()

    def add(self, address: str) -> None:
        """Count one more wrong token of `address`; the addresses that were quiet for longest are forgotten."""
        key = _network(address)
        self._tries.setdefault(key, deque(maxlen=self._most)).append(self._clock())
        self._tries.move_to_end(key)
        if len(self._tries) > _ADDRESSES:
            self._tries.popitem(last=False)

    def too_many(self, address: str) -> bool:
        """Whether `address` must wait."""
        tries = self._tries.get(_network(address))
        return tries is not None and len(tries) == self._most and self._clock() - tries[0] < self._within_s


def _network(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped is not None else str(ipaddress.ip_network((parsed, 64), strict=False))


def plain(connection: ServerConnection, status: HTTPStatus, text: str, kind: str = "text/plain") -> Response:
    """An HTTP answer; nothing of it may be kept."""
    response = connection.respond(status, text)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = kind
    response.headers["Cache-Control"] = "no-store"
    return response

"""Who may open a connection, and what plain HTTP requests get."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from websockets.asyncio.server import ServerConnection
    from websockets.http11 import Request, Response

_SCHEMES = ("Bearer ", "Api-Key ")
"""The second is openpi's."""


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


def plain(connection: ServerConnection, status: HTTPStatus, text: str, kind: str = "text/plain") -> Response:
    """An HTTP answer; nothing of it may be kept."""
    response = connection.respond(status, text)
    del response.headers["Content-Type"]
    response.headers["Content-Type"] = kind
    response.headers["Cache-Control"] = "no-store"
    return response

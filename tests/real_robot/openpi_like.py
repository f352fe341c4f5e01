"""A client written from the description of openpi's protocol, without this project's: the wire is checked by it."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
from websockets.sync.client import ClientConnection, connect


def encode(message: Any) -> bytes:
    """msgpack; arrays as maps with binary keys."""

    def array(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}
        if isinstance(value, np.generic):
            return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
        raise TypeError(type(value))

    data = msgpack.packb(message, default=array)
    assert data is not None
    return data


def decode(data: bytes) -> Any:
    """The same, back."""

    def array(value: dict[Any, Any]) -> Any:
        if b"__ndarray__" in value:
            return np.ndarray(value[b"shape"], np.dtype(value[b"dtype"]), value[b"data"])
        return value

    return msgpack.unpackb(data, object_hook=array)


class OpenpiLike:
    """Metadata first, then a binary answer for each request; a text answer is an error."""

    def __init__(self, port: int, api_key: str | None = None, **options: Any) -> None:
        headers = {"Authorization": f"Api-Key {api_key}"} if api_key else None
        opening = connect(
            f"ws://127.0.0.1:{port}", compression=None, max_size=None, additional_headers=headers, proxy=None, **options
        )
        self.socket: ClientConnection = opening.__enter__()
        self.metadata = decode(self._bytes())

    def infer(self, obs: dict[str, Any]) -> dict[str, Any]:
        """The answer; RuntimeError with the server's text."""
        self.socket.send(encode(obs))
        return decode(self._bytes())

    def _bytes(self) -> bytes:
        answer = self.socket.recv(timeout=900)
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return answer

    def __enter__(self) -> OpenpiLike:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def libero_obs(seed: int, size: int = 8) -> dict[str, Any]:
    """An observation with the keys of openpi's LIBERO example; its state is float64, as there."""
    rng = np.random.default_rng(seed)
    return {
        "observation/image": rng.integers(0, 256, (size, size, 3), np.uint8),
        "observation/wrist_image": rng.integers(0, 256, (size, size, 3), np.uint8),
        "observation/state": rng.normal(size=8),
        "prompt": f"put bowl {seed} on the plate",
    }

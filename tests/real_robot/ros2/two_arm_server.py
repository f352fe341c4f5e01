"""A policy server for two arms that leads them together again and again: python two_arm_server.py --port P."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence

import numpy as np

from embodied_rl.real_robot.server.app import PolicyServer
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.limits import ServerLimits
from embodied_rl.real_robot.server.observations import PolicySpec, Request
from embodied_rl.types import Array

SPEC = PolicySpec(cameras=0, image_size=16, proprio_dim=14, chunk_len=16, action_dim=14)
TOGETHER = np.array([0.0, 0.1, 0.3, 0.0, -0.25, 0.0, 1.0] * 2)
_STEP = 0.03


def decide(requests: Sequence[Request]) -> list[Array | str]:
    """From where the arms are further to the middle, step by step."""
    answers: list[Array | str] = []
    for request in requests:
        here = np.asarray(request.proprio, np.float64)
        way = np.clip(TOGETHER - here, -1, 1)
        chunk = here + _STEP * np.arange(1, SPEC.chunk_len + 1)[:, None] * way
        answers.append(chunk.astype(np.float32))
    return answers


def main() -> None:
    """Serve until killed."""
    address = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    fitter = ImageFitter(size=SPEC.image_size, pipeline="as_rendered", mirror=False)
    names = ("cameras", "image_size", "proprio_dim", "chunk_len", "action_dim", "instruction")
    metadata = {name: getattr(SPEC, name) for name in names} | {"policy": "together", "weights": "none"}
    server = PolicyServer(decide, SPEC, fitter, metadata=metadata, limits=ServerLimits())
    ready = f"ready: ws://127.0.0.1:{address.getsockname()[1]}"
    asyncio.run(server.run(address, lambda: None, lambda: print(ready, flush=True)))


if __name__ == "__main__":
    main()

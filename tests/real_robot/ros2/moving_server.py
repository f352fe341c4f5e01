"""A policy server of a few lines that keeps the arm moving to and fro: python moving_server.py [--how FILE] --port P.

FILE is JSON and is read again for each answer: `length` of the chunks, `late_s` that they come late, `reach_m` at which
the tool turns back on either side, and, at the start, `metadata` that is said beyond the usual, and `limit` of a clock
that is said to watch.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.real_robot.server.app import PolicyServer
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.limits import ServerLimits
from embodied_rl.real_robot.server.observations import PolicySpec, Request
from embodied_rl.types import Array

SPEC = PolicySpec(cameras=2, image_size=16, proprio_dim=8, chunk_len=4, action_dim=7)


class Swing:
    """To and fro between two places, however long each way takes."""

    def __init__(self) -> None:
        self._side = 1

    def turn(self, at: float, reach: float) -> int:
        """1 or -1: on, or back where the tool at `at` is beyond `reach`, m."""
        self._side = -1 if at > reach else 1 if at < -reach else self._side
        return self._side


SWING = Swing()


def how() -> dict[str, Any]:
    """What FILE says."""
    return json.loads(Path(sys.argv[sys.argv.index("--how") + 1]).read_text()) if "--how" in sys.argv else {}


def decide(requests: Sequence[Request]) -> list[Array | str]:
    """Sideways for a second, and back, without ever resting long; the size says which decision it was."""
    answers: list[Array | str] = []
    said = how()
    time.sleep(said.get("late_s", 0.0))
    for request in requests:
        turn, number = divmod(request.decision or 0, 12)
        side = (-1) ** turn * (0.6 + number / 1000)
        if "reach_m" in said:
            side = 0.8 * SWING.turn(float(request.proprio[1]), said["reach_m"])
        answers.append(np.tile(np.array([0, side, 0.0, 0, 0, 0, -1], np.float32), (said.get("length", 4), 1)))
    return answers


def watch(request: Request) -> dict[str, Any]:
    """What a clock says of any observation."""
    return {"kind": "clock", "chunk_len": SPEC.chunk_len, "distance": 0.0, "to_go": 0.0, "limit": how()["limit"]}


def main() -> None:
    """Serve until killed."""
    address = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
    fitter = ImageFitter(size=SPEC.image_size, pipeline="as_rendered", mirror=False)
    names = ("cameras", "image_size", "proprio_dim", "chunk_len", "action_dim", "instruction")
    metadata = {name: getattr(SPEC, name) for name in names} | {"policy": "to and fro", "weights": "none"}
    metadata |= how().get("metadata", {})
    detector = watch if "limit" in how() else None
    metadata |= {"detector": None if detector is None else "clock test"}
    server = PolicyServer(decide, SPEC, fitter, metadata=metadata, limits=ServerLimits(), watch=detector)
    ready = f"ready: ws://127.0.0.1:{address.getsockname()[1]}"
    asyncio.run(server.run(address, lambda: None, lambda: print(ready, flush=True)))


if __name__ == "__main__":
    main()

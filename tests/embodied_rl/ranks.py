"""Processes that are ranks of each other, for tests."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from embodied_rl.utils.ranks import ProcessRank


def place(rank: int, size: int) -> ProcessRank:
    """One of `size` ranks on this machine."""
    return ProcessRank(rank, size, rank, size, launched=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def others(size: int, work: Callable[..., object], *arguments: Any) -> Iterator[list[Any]]:
    """Ranks 1, ..., size - 1 call work(rank, size, *arguments) in processes of their own; this one is rank 0.

    All find each other through the environment, as a launcher says it.
    """
    said = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo"}
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=work, args=(rank, size, *arguments), daemon=True) for rank in range(1, size)]
    try:
        for process in processes:
            process.start()
        yield processes
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for process in processes:
            process.join(60)
            process.kill()

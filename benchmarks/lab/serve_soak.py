"""Four robots and a hostile client on one policy server: is its memory flat?

`python -m embodied_rl.benchmarks.lab.serve_soak --minutes 10`. Prints the server's memory as it goes, and exits with 1
if it has grown, if a robot got no answer, or if the server did not end well.
"""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tyro

from embodied_rl.real_robot.client import PolicyClient
from embodied_rl.real_robot.client.wire import pack

_MARGIN = 1.03
"""What memory may grow by between the second and the last fifth of the time."""


@dataclass(frozen=True, kw_only=True)
class Soak:
    """Let robots and a hostile client work on a server, and watch its memory."""

    minutes: float = 10.0
    """How long."""
    clients: int = 4
    """Robots."""
    hz: float = 5.0
    """Requests a second of each."""
    side: int = 224
    """Pixels of a picture's side."""
    checkpoint: str = "shipped"
    """What is served."""
    json: Path | None = None
    """File for the figures."""


@dataclass
class _Counts:
    answers: int = 0
    attacks: int = 0
    failures: list[str] = field(default_factory=list)


def run(soak: Soak) -> bool:
    """Soak; returns whether all was well."""
    server = subprocess.Popen(
        [sys.executable, "-m", "embodied_rl", "serve", soak.checkpoint, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = _port(server)
        counts, stop = _Counts(), threading.Event()
        workers = [
            threading.Thread(target=_robot, args=(port, number, soak, counts, stop)) for number in range(soak.clients)
        ]
        workers.append(threading.Thread(target=_attacker, args=(port, counts, stop)))
        for worker in workers:
            worker.start()
        memory = _watch(server.pid, 60 * soak.minutes)
        stop.set()
        for worker in workers:
            worker.join()
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    finally:
        if server.poll() is None:
            server.kill()
    return _report(soak, counts, memory, server.returncode)


def _port(server: subprocess.Popen[str]) -> int:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.match(r"ready: ws://127\.0\.0\.1:(\d+) ", line):
            return int(found[1])
    raise SystemExit("the server did not start")


def _watch(pid: int, seconds: float) -> list[float]:
    """Its resident memory in MiB, a hundred times."""
    memory: list[float] = []
    for step in range(100):
        time.sleep(seconds / 100)
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        memory.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
        if step % 10 == 9:
            print(f"{seconds * (step + 1) / 100:7.0f} s  {memory[-1]:8.1f} MiB", flush=True)
    return memory


def _robot(port: int, number: int, soak: Soak, counts: _Counts, stop: threading.Event) -> None:
    rng = np.random.default_rng(number)
    try:
        with PolicyClient(port=port, seed=number) as client:
            about = client.metadata
            while not stop.wait(1 / soak.hz):
                shape = (about["cameras"], soak.side, soak.side, 3)
                obs = {"images": rng.integers(0, 256, shape, np.uint8), "instruction": f"robot {number}"}
                answer = client.infer(obs | {"proprio": rng.normal(size=about["proprio_dim"])})
                assert answer["actions"].shape == (about["chunk_len"], about["action_dim"])
                counts.answers += 1
    except Exception as error:  # noqa: BLE001 - the report has it
        counts.failures.append(f"robot {number}: {type(error).__name__}: {error}")


def _attacker(port: int, counts: _Counts, stop: threading.Event) -> None:
    """Malformed, oversized, nested and broken-off messages, each in a connection of its own."""
    from websockets.exceptions import WebSocketException
    from websockets.sync.client import connect

    rng = np.random.default_rng(99)
    while not stop.wait(0.2):
        side = int(rng.integers(8, 900))
        sent = (
            rng.bytes(5000),
            b"\xdc\x04\x00" + b"\xdc\x04\x00" * 5000,
            bytes(17 << 20),
            pack(
                {
                    "images": np.zeros((2, side, side + 1, 3), np.uint8),
                    "proprio": np.full(8, np.nan),
                    "instruction": "x",
                }
            ),
        )[counts.attacks % 4]
        with suppress(WebSocketException, OSError), connect(f"ws://127.0.0.1:{port}", proxy=None) as connection:
            connection.recv(timeout=10)
            connection.send(sent)
            connection.recv(timeout=10)
            connection.send([b"\x81", b"\xa1"])  # a message in pieces, of which nobody waits for the answer
        counts.attacks += 1


def _report(soak: Soak, counts: _Counts, memory: list[float], code: int) -> bool:
    fifth = len(memory) // 5
    early, late = statistics.median(memory[fifth : 2 * fifth]), statistics.median(memory[-fifth:])
    figures = {
        "minutes": soak.minutes,
        "clients": soak.clients,
        "answers": counts.answers,
        "attacks": counts.attacks,
        "early_mib": round(early, 1),
        "late_mib": round(late, 1),
        "growth": round(late / early, 4),
        "failures": counts.failures,
        "exit_code": code,
    }
    print("\n".join(f"{name:<10} {value}" for name, value in figures.items()))
    if soak.json is not None:
        soak.json.write_text(json.dumps(figures, indent=1) + "\n")
    return late <= _MARGIN * early and not counts.failures and code == 0


if __name__ == "__main__":
    sys.exit(0 if run(tyro.cli(Soak)) else 1)

"""Starts the ranks of a run on this machine, as `torchrun --nproc-per-node N -m embodied_rl train` would.

torchrun kills its ranks 30 seconds after Ctrl-C, which may be before a checkpoint is written; this waits for them, says
in one line which rank was lost, and leaves nothing behind.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType

from embodied_rl.utils.lock import say_ending
from embodied_rl.utils.signals import STOPPING

LAUNCHED = "EMBODIED_RL_LAUNCHED"
"""Set for ranks that this module started: it speaks for a rank that is lost."""
_TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Set for ranks whose parent is torchrun's or accelerate's agent."""
_GRACE_SECONDS = 5.0
_POLL_SECONDS = 0.05


def launch(processes: int, command: Sequence[str]) -> int:
    """Run `command` in so many processes, each told its rank; return the exit code of the run.

    If a rank is lost, the others are ended, one line says so, and the code is 1. Signals that ask to stop go to all.
    """
    host, port = "127.0.0.1", _free_port()
    common = {**os.environ, "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes), LAUNCHED: "1"}
    common |= {"MASTER_ADDR": host, "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.PIPE,  # closes when this process ends, however it does
            start_new_session=True,  # a terminal's Ctrl-C comes once, from here
        )
        for rank in range(processes)
    ]
    heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]  # nohup ignores SIGHUP
    before = {number: signal.signal(number, _forward_to(ranks)) for number in heard}
    try:
        return _wait(ranks)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()


def end_with_launcher() -> None:
    """In a rank that `launch`, torchrun or accelerate started: stop and save when that is gone, however it ended."""
    if LAUNCHED in os.environ:
        source = 0
    elif _TORCHRUN in os.environ:
        source = os.pidfd_open(os.getppid())
    else:
        return

    def watch() -> None:
        select.select([source], [], [])
        say_ending()  # at once: the signal may have to wait for an operator
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="launcher", daemon=True).start()


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Wait for all ranks; where one fails, the others have a little time to notice."""
    failed: tuple[int, int] | None = None
    deadline = 0.0
    while True:
        codes = [rank.poll() for rank in ranks]
        if failed is None and any(codes):
            # a signal before what it did to the others
            failed = min((code, number) for number, code in enumerate(codes) if code)
            deadline = time.monotonic() + _GRACE_SECONDS
        late = failed is not None and failed[0] != 130 and time.monotonic() > deadline
        if None not in codes or late:
            break
        time.sleep(_POLL_SECONDS)
    code, number = failed or (0, 0)
    if code < 0:
        print(
            f"embodied-rl: error: rank {number} was killed by signal {-code}; no step was taken without it. The last "
            "checkpoint is intact: resume from it.",
            file=sys.stderr,
        )
        return 1
    return code


def _forward_to(ranks: Sequence[subprocess.Popen[bytes]]) -> Callable[[int, FrameType | None], None]:
    def forward(number: int, frame: FrameType | None) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    return forward


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])

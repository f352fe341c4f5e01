"""Work for a pool's processes, which import it by name."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.utils.signals import StopRequest
from embodied_rl.utils.work_pool import WorkPool


def toy(item: tuple[str, str], say: Callable[[Any], None], check: Callable[[], None]) -> None:
    """Do as the first word says; the second is a file for what is kept."""
    kind, name = item
    path = Path(name)
    if kind == "refuse":
        raise UserError("this cannot be done.")
    if kind == "break":
        raise ZeroDivisionError("a mistake")
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    path.write_text("begun")
    say((os.getpid(), kind))
    while kind == "long":
        check()
        time.sleep(0.01)
    path.write_text("done")


if __name__ == "__main__":  # a parent that is to be killed
    with WorkPool(2, toy) as pool, StopRequest(lambda: None) as stop:
        pool.run([("long", name) for name in sys.argv[1:]], lambda _: None, stop)

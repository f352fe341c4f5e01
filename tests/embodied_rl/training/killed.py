"""A toy run that is killed where a test says: in a process that waits at a call until it is.

python -m tests.embodied_rl.training.killed TEST FOLDER OWNER NAME COUNT: `run` of a test's module, held at call COUNT
of OWNER's NAME; OWNER is a module, or MODULE:CLASS.
"""

from __future__ import annotations

import importlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def killed(test: str, folder: Path, owner: str, name: str, count: int) -> None:
    """Run a test's `run` in a folder, and kill it at a call."""
    words = [sys.executable, "-m", __name__, test, str(folder), owner, name, str(count)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGKILL)


def main(test: str, folder: str, owner: str, name: str, count: str) -> None:
    """Begin the run, and wait at the call."""
    module, _, inside = owner.partition(":")
    holder: Any = importlib.import_module(module)
    holder = getattr(holder, inside) if inside else holder
    known, calls = getattr(holder, name), 0

    def held(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(count):
            print("held", flush=True)
            signal.pause()
        return known(*arguments)

    setattr(holder, name, held)
    importlib.import_module(test).run(Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

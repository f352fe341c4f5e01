"""Runs pip in the isolated environment, and says in one line why it failed."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path

from embodied_rl.errors import UserError

_UNREACHABLE = ("Failed to establish a new connection", "Name or service not known", "name resolution", "timed out")
_POLL_SECONDS = 0.3


def variables() -> dict[str, str]:
    """This process's environment variables without those that lead Python to other packages."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def pip(
    python: Path,
    *words: str,
    what: str,
    settings: Mapping[str, str] | None = None,
    watch: Callable[[], None] = lambda: None,
) -> None:
    """Run `python -m pip WORDS`; `watch` is called several times a second while it runs.

    Raises:
        UserError: pip failed; the line begins with what it could not do (`what`) and ends with the reason.
    """
    # "-I" and the cleared variables keep the user's own packages out
    command = [str(python), "-I", "-m", "pip", *words]
    process = subprocess.Popen(
        command,
        env={**variables(), **(settings or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=os.name != "nt",  # Ctrl-C reaches us, and we end it
    )
    try:
        while True:
            try:
                _, errors = process.communicate(timeout=_POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                watch()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode:
        raise UserError(f"pip could not {what}: {reason(errors)}")


def python_with_pip(place: Path) -> Path:
    """This Python, or that of a new virtual environment in `place` where this one has no pip."""
    if importlib.util.find_spec("pip") is not None:
        return Path(sys.executable)
    venv.EnvBuilder(with_pip=True).create(place / "python")
    return place / "python" / "bin" / "python"


def reason(errors: str) -> str:
    """The part of pip's complaint that helps."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("No space left on device" in line for line in lines):
        return "the disk is full; make room and run the command again"
    if any(word in line for line in lines for word in _UNREACHABLE):
        return "the package index cannot be reached; check the network and run the command again"
    if any("DO NOT MATCH THE HASHES" in line for line in lines):
        return "what arrived has not the pinned SHA-256, so it was thrown away; run the command again"
    problems = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (problems or lines or ["it gave no reason"])[-1]

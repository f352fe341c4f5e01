"""Fetches the old library behind LIBERO's published eras: one file of MuJoCo 3.3.2's official wheel."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.assets.environment import variables
from embodied_rl.sim.libero.bundle import write_atomically
from embodied_rl.sim.mujoco.era import INSTALL, LIBRARY, LIBRARY_SHA256, wrong_platform

WHEEL = "mujoco==3.3.2"
# The library is the same in the wheels of every Python version; this one exists whatever Python runs.
_TAGS = ("--platform", "manylinux2014_x86_64", "--python-version", "3.12", "--implementation", "cp")


def install_era_library(cache: Path) -> bool:
    """Put the old library into `cache`/era; False where it is there already or its platform is another.

    The wheel (7 MB) is downloaded by pip, of which nothing but the shared library is kept.

    Raises:
        UserError: pip can't download it, or what came is not the official file.
    """
    target = cache / "era" / LIBRARY
    if wrong_platform() or (target.is_file() and _digest(target.read_bytes()) == LIBRARY_SHA256):
        return False
    with tempfile.TemporaryDirectory() as folder:
        words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", *_TAGS, "--dest", folder, WHEEL]
        command = [sys.executable, "-m", "pip", *words]
        done = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise UserError(f"pip could not download {WHEEL}: {_reason(done.stderr)}")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                data = wheel.read(f"mujoco/{LIBRARY}")
        except (zipfile.BadZipFile, KeyError) as error:
            raise UserError(f"the downloaded {wheels[0].name} is damaged ({error}); run again: {INSTALL}") from None
    if _digest(data) != LIBRARY_SHA256:
        raise UserError(f"{WHEEL} as pip downloaded it is not the official wheel (its library has another checksum)")
    write_atomically(target, data)
    return True


def _reason(errors: str) -> str:
    """The line of pip's complaint that helps."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    if any("Failed to establish a new connection" in line or "name resolution" in line for line in lines):
        return "the package index cannot be reached; check the network and run the command again"
    problems = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (problems or lines or ["it gave no reason"])[-1]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

"""Fetches the old library behind LIBERO's published eras: one file of MuJoCo 3.3.2's official wheel."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import zipfile
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import write_atomically
from embodied_rl.sim.libero.install.pip import pip
from embodied_rl.sim.mujoco.era import INSTALL, LIBRARY, LIBRARY_SHA256, wrong_platform

WHEEL = "mujoco==3.3.2"
# The library is the same in the wheels of every Python version; this one exists whatever Python runs.
_TAGS = ("--platform", "manylinux2014_x86_64", "--python-version", "3.12", "--implementation", "cp")


def install_era_library(cache: Path, python: Path = Path(sys.executable)) -> bool:
    """Put the old library into `cache`/era; False where it is there already or its platform is another.

    The wheel (7 MB) is downloaded by the pip of `python`; nothing but the shared library is kept of it.

    Raises:
        UserError: pip can't download it, or what came is not the official file.
    """
    target = cache / "era" / LIBRARY
    if wrong_platform() or (target.is_file() and _digest(target.read_bytes()) == LIBRARY_SHA256):
        return False
    with tempfile.TemporaryDirectory() as folder:
        words = ("download", "--quiet", "--no-deps", "--only-binary", ":all:", *_TAGS, "--dest", folder, WHEEL)
        pip(python, *words, what=f"download {WHEEL}")
        (wheel_file,) = Path(folder).glob("*.whl")
        try:
            with zipfile.ZipFile(wheel_file) as wheel:
                data = wheel.read(f"mujoco/{LIBRARY}")
        except (zipfile.BadZipFile, KeyError) as error:
            raise UserError(f"the downloaded {wheel_file.name} is damaged ({error}); run again: {INSTALL}") from None
    if _digest(data) != LIBRARY_SHA256:
        raise UserError(f"{WHEEL} as pip downloaded it is not the official wheel (its library has another checksum)")
    write_atomically(target, data)
    return True


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

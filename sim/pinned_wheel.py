"""A benchmark's package with its scenes: fetched from the package index, checked and unpacked beside other assets.

For packages that can't be installed beside this project's MuJoCo, as they ask for an older one.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install.pip import pip, python_with_pip
from embodied_rl.utils.cache_dir import cache_dir
from embodied_rl.utils.lock import locked


@dataclass(frozen=True, slots=True)
class PinnedWheel:
    """One version of a package, which is unpacked as it is.

    Args:
        name: what `embodied-rl assets` calls it.
        title: what people call it.
        package, version: in the package index.
        sha256: of its wheel: a file of another digest is refused.
        licence: in words.

    Example:
        >>> METAWORLD.command
        'embodied-rl assets install metaworld'
    """

    name: str
    title: str
    package: str
    version: str
    sha256: str
    licence: str

    @property
    def command(self) -> str:
        """What installs it."""
        return f"embodied-rl assets install {self.name}"

    @property
    def wheel(self) -> str:
        """The file's name."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    def root(self) -> Path:
        """Where its files lie."""
        return cache_dir() / self.name

    def installed(self) -> Path | None:
        """The folder that holds the package, or None where it is not installed."""
        folder = self.root() / self.version
        return folder if folder.is_dir() else None

    def require(self) -> Path:
        """The folder that holds the package; UserError where it is not installed."""
        folder = self.installed()
        if folder is None:
            raise UserError(f"{self.title} is not installed; run: {self.command}")
        return folder

    def install(self, source: Path | None = None) -> Path:
        """The folder with the package, fetched where it is not there.

        Args:
            source: a folder with the wheel; None: the package index.

        Raises:
            UserError: The wheel can't be had, or it is another than the pinned one.
        """
        root = self.root()
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / "install.lock", f"installing {self.title}"):
            if (there := self.installed()) is not None:
                return there
            with tempfile.TemporaryDirectory(dir=root, prefix="part-") as name:
                place = Path(name)
                wheel = self._download(place) if source is None else source / self.wheel
                if not wheel.is_file():
                    raise UserError(f"{source} holds no {self.wheel}: give the folder that does, or leave --from out.")
                with wheel.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != self.sha256:
                        raise UserError(f"{wheel} is not the pinned {self.wheel}: its SHA-256 is another.")
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(place / self.version)
                os.replace(place / self.version, root / self.version)  # whole, or not there
        return root / self.version

    def problems(self) -> list[str]:
        """Files that are missing or changed, by what the package's own record says."""
        folder = self.require()
        record = folder / f"{self.package.replace('-', '_')}-{self.version}.dist-info" / "RECORD"
        if not record.is_file():
            return [str(record.relative_to(folder))]
        with record.open(newline="") as lines:
            rows = [(path, digest.partition("=")[2]) for path, digest, _ in csv.reader(lines) if digest]
        return [path for path, digest in rows if _digest(folder / path) != digest]

    def remove(self) -> None:
        """Delete its files."""
        shutil.rmtree(self.root(), ignore_errors=True)

    def _download(self, place: Path) -> Path:
        pins = place / "pins.txt"
        pins.write_text(f"{self.package}=={self.version} --hash=sha256:{self.sha256}\n")
        options = ["--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--require-hashes"]
        pip(
            python_with_pip(place),
            "download",
            *options,
            *("--dest", str(place), "--requirement", str(pins)),
            what=f"download {self.title} {self.version}",
            settings={"TMPDIR": str(place), "TEMP": str(place)},
        )
        return place / self.wheel


METAWORLD = PinnedWheel(
    name="metaworld",
    title="MetaWorld",
    package="metaworld",
    version="3.1.1",
    sha256="99e25d9baf97f2f1a19ca89c0d2ca9c6a2b396d9a9be81729de64eedc683f0d3",  # its code is run
    licence="MIT licence, (c) 2019 Meta-World Team",
)
ALOHA = PinnedWheel(
    name="aloha",
    title="gym-aloha",
    package="gym-aloha",
    version="0.1.5",
    sha256="1794dd9a1146268a9b56f4a4931bcba69ca27714c2ac9ac146e471801bf0c7b3",  # its scenes are read
    licence="Apache-2.0 licence, (c) 2024 The Hugging Face team",
)
PINNED_WHEELS = {wheel.name: wheel for wheel in (METAWORLD, ALOHA)}


def _digest(path: Path) -> str:
    """As wheels record it; '' where there is no such file."""
    if not path.is_file():
        return ""
    return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()

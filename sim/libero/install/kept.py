"""The official packages and assets that `bench libero` and `compare` run, made once and kept beside the tasks."""

from __future__ import annotations

from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install import hub, wheels
from embodied_rl.sim.libero.install.benchmarks import LIBERO
from embodied_rl.sim.libero.install.environment import READY, Environment
from embodied_rl.sim.libero.install.export import Official
from embodied_rl.sim.libero.install.folder import alone
from embodied_rl.sim.libero.install.install import OFFICIAL
from embodied_rl.sim.libero.install.manifest import read_manifest
from embodied_rl.sim.libero.install.report import Reporter
from embodied_rl.sim.libero.install.sources import Source, check_source, fetch_assets


def find_official(root: Path, source: Source | Path | None, folder: Path | None, report: Reporter) -> Official:
    """The official packages and assets, made where they are missing; what is made under `root` stays there.

    Args:
        root: the installation of LIBERO.
        source: of the assets; None: what the exported tasks were made from.
        folder: of the isolated environment; None: a folder under `root`.
        report: is told what happens.

    Raises:
        UserError: something can't be had.
    """
    if folder is not None and folder.exists() and not (folder / READY).is_file() and any(folder.iterdir()):
        raise UserError(
            f"--environment {folder} is not empty and holds no official packages; name a new folder, or leave "
            f"the option out for {root / OFFICIAL / 'environment'}"
        )
    source = source or source_of(root)
    check_source(source, LIBERO)
    environment = Environment(folder or root / OFFICIAL / "environment")
    with alone(root):
        report.step(f"the official packages in {environment.folder}")
        environment.build()
        assets, _ = fetch_assets(source, LIBERO, environment, root / OFFICIAL, report)
        scratch = root / OFFICIAL / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
    return Official(environment, assets, True, scratch)


def source_of(root: Path) -> Source | Path:
    """What the exported tasks were made from: a folder of this machine, or what is downloaded again."""
    manifest = read_manifest(root, LIBERO)
    origin = manifest["assets"] if manifest is not None else ""
    if origin == wheels.ORIGIN:
        return "pypi"
    if hub.LIBERO_ASSETS in origin:
        return "hub"
    if not Path(origin).is_dir():
        raise UserError(
            f"the assets that LIBERO was installed from are no longer in '{origin}'; give a checkout of LIBERO's "
            "repository or its assets folder: --assets DIR"
        )
    return Path(origin)

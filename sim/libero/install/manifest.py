"""What an installation says that it made: the official tasks, the versions, and what each exported task says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import FORMAT, fingerprint, is_whole, read_exported, write_atomically
from embodied_rl.sim.libero.install.benchmarks import Benchmark
from embodied_rl.sim.libero.install.environment import Environment, packages
from embodied_rl.sim.libero.install.export import ExportOutcome

LICENCES = {
    "LIBERO's code, BDDL files and initial states": "MIT; see licenses/. LIBERO's data sets are CC BY 4.0.",
    "robot models (robosuite)": "MIT; see licenses/.",
    "meshes and textures": "LIBERO states no licence for them, and several come from third parties. They are on this "
    "machine for its user; do not pass them on.",
}


def read_manifest(root: Path, benchmark: Benchmark) -> dict[str, Any] | None:
    """What the last installation of `benchmark` said, or None before the first. UserError when it can't be read."""
    path = root / benchmark.manifest
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if not {"format", "assets", "suites", "missing"} <= set(manifest):
            raise ValueError("it is no manifest of an installation")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"can't read {path}: {error}; remove it and run: {benchmark.install}") from None
    return manifest


def known_tasks(root: Path, benchmark: Benchmark) -> dict[str, int]:
    """Full name -> index in its suite, of every official task, as the last installation found them; empty before."""
    manifest = read_manifest(root, benchmark)
    if manifest is None or manifest["format"] != FORMAT:
        return {}
    return {name: index for names in manifest["suites"].values() for index, name in enumerate(names)}


def write_manifest(
    root: Path,
    benchmark: Benchmark,
    environment: Environment,
    names: Mapping[str, int],
    origin: str,
    outcome: ExportOutcome,
) -> None:
    """Say what there is, and what the official packages' licences are.

    names: every official task. origin: of the assets. outcome: of this installation; what tasks that it did not make
    say is taken over from the last manifest, so that `verify` notices a change.
    """
    before = read_manifest(root, benchmark) or {}
    grouped: dict[str, list[str]] = {suite: [] for suite in benchmark.suites}
    for name in sorted(names, key=lambda name: names[name]):
        grouped[name.partition("/")[0]].append(name)
    known = before.get("fingerprints", {})
    manifest = {
        "format": FORMAT,
        "mujoco": mujoco.__version__,
        "packages": packages(benchmark.packages),
        "assets": origin,
        "suites": grouped,
        "missing": {path: len(tasks) for path, tasks in sorted(outcome.missing.items())},
        "fingerprints": {
            name: fingerprint(read_exported(root, name)) if name in outcome.done or name not in known else known[name]
            for name in sorted(names)
            if is_whole(root, name)
        },
        "licences": LICENCES,
    }
    for package in (name.replace("-", "_") for name in benchmark.packages):
        for text in environment.site_packages().glob(f"{package}-*.dist-info/**/LICENSE"):
            write_atomically(root / "licenses" / f"{package}.txt", text.read_bytes())
    write_atomically(root / benchmark.manifest, (json.dumps(manifest, indent=1) + "\n").encode())

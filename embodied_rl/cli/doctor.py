"""`embodied-rl doctor`: what this machine can run, with which renderer and why, and what to do about the rest."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from embodied_rl.cli import TESTED_MUJOCO, newer_mujoco
from embodied_rl.cli.doctor_optional import optional
from embodied_rl.cli.parse import parse
from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import cache_dir, libero_bundles
from embodied_rl.jobs.findings import DoctorConfig, Finding
from embodied_rl.utils.kernel_cache import SOURCES, folder_of_cache
from embodied_rl.utils.words import counted

MIN_PYTHON = (3, 11)
MIN_MEMORY_GB, MIN_DISK_GB = 3.0, 1.0


def main(argv: list[str]) -> int:
    """Run `embodied-rl doctor`, or `embodied-rl doctor libero`, with its options."""
    if argv[:1] == ["libero"]:
        from embodied_rl.cli import doctor_libero

        return doctor_libero.main(argv[1:])
    config = parse(DoctorConfig, argv, "doctor")
    if config.policy is None:
        for field in fields(config):
            if field.name != "json" and getattr(config, field.name) != field.default:
                raise UserError(f"--{field.name.replace('_', '-')} describes a policy: name it with --policy.")
        return doctor(as_json=config.json)
    from embodied_rl.jobs.check_policy import check_policy

    return _report(check_policy(config), config.json, "this policy can")


def doctor(*, as_json: bool = False) -> int:
    """Print what this machine can run; return 0 when training can run, 1 when something must be done first."""
    return _report([finding for check in CHECKS for finding in check()], as_json, "training can")


def _report(findings: Sequence[Finding], as_json: bool, subject: str) -> int:
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print_table(findings, subject)
    return 1 if any(finding.state == "problem" for finding in findings) else 0


def python() -> list[Finding]:
    """The interpreter."""
    version = platform.python_version()
    if sys.version_info[:2] < MIN_PYTHON:
        return [Finding("python", "problem", version, "install Python 3.11 or newer")]
    return [Finding("python", "ok", f"{version}, {platform.system()} {platform.machine()}")]


def libraries() -> list[Finding]:
    """The packages that training imports, by really importing them."""
    findings = []
    for name in ("torch", "mujoco", "numba"):
        try:
            __import__(name)
        except (ImportError, OSError) as error:
            advice = "install it again: pip install --force-reinstall " + name
            findings.append(Finding(name, "problem", f"does not import: {error}", advice))
        else:
            note = newer_mujoco() if name == "mujoco" else ""
            advice = f"for the tested one: pip install mujoco=={TESTED_MUJOCO}" if note else ""
            findings.append(Finding(name, "note" if note else "ok", note or metadata.version(name), advice))
    return findings


def gpu() -> list[Finding]:
    """The GPU that torch can use."""
    try:
        import torch
    except (ImportError, OSError):
        return []  # `libraries` reports it
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        memory = card.total_memory / 2**30
        return [Finding("gpu", "ok", f"{count} x {card.name}, {memory:.0f} GiB, CUDA {torch.version.cuda}")]
    if Path("/proc/driver/nvidia/version").exists():
        found = f"an NVIDIA driver, but torch {torch.__version__} cannot use it"
        return [Finding("gpu", "note", found, "install a CUDA build of torch that fits the driver (pytorch.org)")]
    return [Finding("gpu", "note", "none: small presets train on the CPU; the 7b preset needs a GPU")]


def renderers() -> list[Finding]:
    """Each renderer's state, and the choice for scenes of primitives (the tabletop suites) and of meshes (LIBERO)."""
    try:
        import mujoco

        from embodied_rl.errors import UserError
        from embodied_rl.sim.render import PACKAGES, choose, probe
    except (ImportError, OSError):
        return []  # `libraries` reports it
    findings = []
    for name in ("egl", "osmesa"):
        state = probe(name)
        advice = f"optional; Debian: apt-get install {PACKAGES[name]}" if state.state == "missing" else ""
        findings.append(
            Finding(f"renderer {name}", "note" if advice else "ok", f"{state.state}: {state.device}", advice)
        )
    findings.append(Finding("renderer raycast", "ok", "CPU, needs no library; scenes of primitive shapes only"))
    findings.append(Finding("renderer raster", "ok", "CPU, needs no library; fast frames only, of scenes with meshes"))
    scenes = ("tabletop", _PRIMITIVE, True), ("mesh scenes, exact", _MESH, False), ("mesh scenes, fast", _MESH, False)
    for title, xml, needed in scenes:
        try:
            choice = choose("auto", [mujoco.MjModel.from_xml_string(xml)], fast="exact" not in title)
            findings.append(Finding(f"renderer for {title}", "ok", f"{choice.name}: {choice.reason}"))
        except UserError as error:
            advice = f"Debian: apt-get install {PACKAGES['osmesa']}"
            findings.append(Finding(f"renderer for {title}", "problem" if needed else "note", str(error), advice))
    return findings


def machine() -> list[Finding]:
    """Cores, memory and the free disk space of the working folder, which runs are written to."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    findings = [Finding("cores", "ok", str(cores))]
    memory = _available_memory_gb()
    if memory is not None:
        low = memory < MIN_MEMORY_GB
        advice = f"close other programs: training needs about {MIN_MEMORY_GB:.0f} GB" if low else ""
        findings.append(Finding("memory", "problem" if low else "ok", f"{memory:.1f} GB available", advice))
    space = os.statvfs(".") if hasattr(os, "statvfs") else None
    if space is not None:
        free = space.f_bavail * space.f_frsize / 1e9
        low = free < MIN_DISK_GB
        advice = f"free some space: a run needs up to {MIN_DISK_GB:.0f} GB" if low else ""
        findings.append(Finding("disk", "problem" if low else "ok", f"{free:.1f} GB free in {Path.cwd()}", advice))
    return findings


def cache() -> list[Finding]:
    """Where numba keeps compiled kernels; without it every start compiles for half a minute."""
    folder, beside = folder_of_cache()
    if beside:
        return [Finding("kernel cache", "ok", str(folder))]
    advice = "none, unless starts are slow: then set NUMBA_CACHE_DIR to a folder that lasts"
    return [Finding("kernel cache", "note", f"{folder}, since {SOURCES} is not written to", advice)]


def libero() -> list[Finding]:
    """The official LIBERO files, which are not part of this project."""
    folder = libero_bundles()
    if folder:
        count = len(list(folder.glob("tasks/*/*.json")))
        return [
            Finding("LIBERO", "ok", f"{counted(count, 'task')} in {folder} (more: embodied-rl assets status libero)")
        ]
    advice = (
        "optional: embodied-rl assets install libero, or set EMBODIED_RL_CACHE where it is elsewhere; "
        "`train libero` uses the tabletop suites instead"
    )
    return [Finding("LIBERO", "note", f"not in {cache_dir() / 'libero'}", advice)]


def eras() -> list[Finding]:
    """Whether LIBERO's published eras run, by really putting the old collider in place."""
    try:
        from embodied_rl.factory.era import try_era

        return [Finding("LIBERO eras", "ok", try_era())]
    except UserError as error:
        return [Finding("LIBERO eras", "note", str(error), "needed for LIBERO's suites only")]
    except (ImportError, OSError):
        return []  # `libraries` reports it


def checkpoint() -> list[Finding]:
    """The small checkpoint that ships with the project."""
    folder = Path(str(files("embodied_rl.assets"))) / "checkpoints" / "nano"
    weights = folder / "model.safetensors"
    if weights.is_file():
        return [Finding("nano checkpoint", "ok", f"{weights.stat().st_size / 1e6:.1f} MB, {folder}")]
    advice = "install the package again, or make one: embodied-rl collect, then embodied-rl sft"
    return [Finding("nano checkpoint", "problem", f"not in {folder}", advice)]


CHECKS: Sequence[Callable[[], list[Finding]]] = (
    python,
    libraries,
    gpu,
    renderers,
    machine,
    cache,
    libero,
    eras,
    checkpoint,
    optional,
)

_PRIMITIVE = "<mujoco><worldbody><geom size='.1'/></worldbody></mujoco>"
_MESH = """<mujoco><asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset>
<worldbody><geom name="mesh" type="mesh" mesh="m"/></worldbody></mujoco>"""


def _available_memory_gb() -> float | None:
    """Memory that a new program can use, or None where the system does not say (not Linux)."""
    info = Path("/proc/meminfo")
    if not info.exists():
        return None
    fields = dict(line.split(":", 1) for line in info.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 / 1e9


def _print_table(findings: Sequence[Finding], subject: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "note": "yellow", "problem": "bold red"}
    table = Table("what", "state", "found", "what to do")
    for column in table.columns:
        column.overflow = "fold"  # paths are wrapped, not cut
    for row in findings:
        state = Text(row.state, style=colours[row.state])
        table.add_row(Text(row.name), state, Text(row.found), Text(row.advice))
    console = Console()
    console.print(table)
    problems = [row.name for row in findings if row.state == "problem"]
    console.print(Text(f"{subject}not run yet: {', '.join(problems)}" if problems else f"{subject} run"))

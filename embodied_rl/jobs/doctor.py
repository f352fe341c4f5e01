"""What this machine can run: a list of checks, each of which gives results. What they try is imported by them."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import cache_dir, libero_bundles
from embodied_rl.jobs.checks import CheckResult, judged
from embodied_rl.real_robot import ik
from embodied_rl.sim.envpool import load as envpool
from embodied_rl.sim.maniskill import load as maniskill
from embodied_rl.sim.warp import install as warp
from embodied_rl.utils.kernel_cache import SOURCES, folder_of_cache
from embodied_rl.utils.machine import cpu_count
from embodied_rl.utils.words import counted
from embodied_rl.version import TESTED_MUJOCO, newer_mujoco

MIN_PYTHON = (3, 11)
MIN_MEMORY_GB, MIN_DISK_GB = 3.0, 1.0


def check_machine() -> list[CheckResult]:
    """What every check of `CHECKS` finds."""
    return [result for check in CHECKS for result in check()]


def python() -> list[CheckResult]:
    """The interpreter."""
    version = platform.python_version()
    found = f"{version}, {platform.system()} {platform.machine()}"
    return [judged("python", sys.version_info[:2] >= MIN_PYTHON, found, "install Python 3.11 or newer")]


def libraries() -> list[CheckResult]:
    """The packages that training imports, by really importing them."""
    results = []
    for name in ("torch", "mujoco", "numba"):
        try:
            __import__(name)
        except (ImportError, OSError) as error:
            advice = "install it again: pip install --force-reinstall " + name
            results.append(CheckResult(name, "problem", f"does not import: {error}", advice))
        else:
            note = newer_mujoco() if name == "mujoco" else ""
            advice = f"for the tested one: pip install mujoco=={TESTED_MUJOCO}" if note else ""
            results.append(CheckResult(name, "note" if note else "ok", note or metadata.version(name), advice))
    return results


def gpu() -> list[CheckResult]:
    """The GPU that torch can use."""
    try:
        import torch
    except (ImportError, OSError):
        return []  # `libraries` reports it
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        count = torch.cuda.device_count()
        memory = card.total_memory / 2**30
        return [CheckResult("gpu", "ok", f"{count} x {card.name}, {memory:.0f} GiB, CUDA {torch.version.cuda}")]
    if Path("/proc/driver/nvidia/version").exists():
        found = f"an NVIDIA driver, but torch {torch.__version__} cannot use it"
        return [CheckResult("gpu", "note", found, "install a CUDA build of torch that fits the driver (pytorch.org)")]
    return [CheckResult("gpu", "note", "none: small presets train on the CPU; the 7b preset needs a GPU")]


def renderers() -> list[CheckResult]:
    """Each renderer's state, and the choice for scenes of primitives (the tabletop suites) and of meshes (LIBERO)."""
    try:
        import mujoco

        from embodied_rl.sim.render import PACKAGES, choose, probe
    except (ImportError, OSError):
        return []  # `libraries` reports it
    results = []
    for name in ("egl", "osmesa"):
        state = probe(name)
        advice = f"optional; Debian: apt-get install {PACKAGES[name]}" if state.state == "missing" else ""
        results.append(
            CheckResult(f"renderer {name}", "note" if advice else "ok", f"{state.state}: {state.device}", advice)
        )
    results.append(CheckResult("renderer raycast", "ok", "CPU, needs no library; scenes of primitive shapes only"))
    results.append(
        CheckResult("renderer raster", "ok", "CPU, needs no library; fast frames only, of scenes with meshes")
    )
    scenes = ("tabletop", _PRIMITIVE, True), ("mesh scenes, exact", _MESH, False), ("mesh scenes, fast", _MESH, False)
    for title, xml, needed in scenes:
        try:
            choice = choose("auto", [mujoco.MjModel.from_xml_string(xml)], fast="exact" not in title)
            results.append(CheckResult(f"renderer for {title}", "ok", f"{choice.name}: {choice.reason}"))
        except UserError as error:
            advice = f"Debian: apt-get install {PACKAGES['osmesa']}"
            results.append(CheckResult(f"renderer for {title}", "problem" if needed else "note", str(error), advice))
    return results


def machine() -> list[CheckResult]:
    """Cores, memory and the free disk space of the working folder, which runs are written to."""
    results = [CheckResult("cores", "ok", str(cpu_count()))]
    memory = _available_memory_gb()
    if memory is not None:
        advice = f"close other programs: training needs about {MIN_MEMORY_GB:.0f} GB"
        results.append(judged("memory", memory >= MIN_MEMORY_GB, f"{memory:.1f} GB available", advice))
    space = os.statvfs(".") if hasattr(os, "statvfs") else None
    if space is not None:
        free = space.f_bavail * space.f_frsize / 1e9
        advice = f"free some space: a run needs up to {MIN_DISK_GB:.0f} GB"
        results.append(judged("disk", free >= MIN_DISK_GB, f"{free:.1f} GB free in {Path.cwd()}", advice))
    return results


def cache() -> list[CheckResult]:
    """Where numba keeps compiled kernels; without it every start compiles for half a minute."""
    folder, beside = folder_of_cache()
    if beside:
        return [CheckResult("kernel cache", "ok", str(folder))]
    advice = "none, unless starts are slow: then set NUMBA_CACHE_DIR to a folder that lasts"
    return [CheckResult("kernel cache", "note", f"{folder}, since {SOURCES} is not written to", advice)]


def libero() -> list[CheckResult]:
    """The official LIBERO files, which are not part of this project."""
    folder = libero_bundles()
    if folder:
        count = len(list(folder.glob("tasks/*/*.json")))
        return [
            CheckResult(
                "LIBERO", "ok", f"{counted(count, 'task')} in {folder} (more: embodied-rl assets status libero)"
            )
        ]
    advice = (
        "optional: embodied-rl assets install libero, or set EMBODIED_RL_CACHE where it is elsewhere; "
        "`train libero` uses the tabletop suites instead"
    )
    return [CheckResult("LIBERO", "note", f"not in {cache_dir() / 'libero'}", advice)]


def eras() -> list[CheckResult]:
    """Whether LIBERO's published eras run, by really putting the old collider in place."""
    try:
        from embodied_rl.factory.era import try_era

        return [CheckResult("LIBERO eras", "ok", try_era())]
    except UserError as error:
        return [CheckResult("LIBERO eras", "note", str(error), "needed for LIBERO's suites only")]
    except (ImportError, OSError):
        return []  # `libraries` reports it


def checkpoint() -> list[CheckResult]:
    """The small checkpoint that ships with the project."""
    folder = Path(str(files("embodied_rl.assets"))) / "checkpoints" / "nano"
    weights = folder / "model.safetensors"
    there = weights.is_file()
    found = f"{weights.stat().st_size / 1e6:.1f} MB, {folder}" if there else f"not in {folder}"
    advice = "install the package again, or make one: embodied-rl collect, then embodied-rl sft"
    return [judged("nano checkpoint", there, found, advice)]


@dataclass(frozen=True, slots=True)
class Optional:
    """A thing that some commands need. packages: their names in the package index. serves: what for."""

    name: str
    packages: tuple[str, ...]
    serves: str
    install: str


OPTIONAL = (
    Optional("EnvPool", ("envpool",), "suites metaworld, fetch, playground, dm_control", envpool.INSTALL),
    Optional("MuJoCo Warp", ("mujoco-warp", "warp-lang"), "--env warp, --env.renderer warp", warp.INSTALL),
    Optional("ManiSkill", ("mani-skill", "sapien"), "suite maniskill", maniskill.INSTALL),
    Optional(
        "gymnasium-robotics", ("gymnasium-robotics",), "more tasks of suite gymnasium", "pip install gymnasium-robotics"
    ),
    Optional("rl_games", ("rl-games",), "make_isaacgym_env", "pip install --no-deps rl-games"),
    Optional("rsl_rl", ("rsl-rl-lib",), "make_isaacgym_env", "pip install 'embodied-rl[rsl-rl]'"),
    Optional("skrl", ("skrl",), "make_isaacgym_env", "pip install --no-deps skrl"),
    Optional("Ray", ("ray",), "--scheduler ray", "pip install 'embodied-rl[ray]'"),
    Optional("policy server", ("websockets", "msgpack"), "embodied-rl serve", "pip install 'embodied-rl[serve]'"),
    Optional("recorder", ("mcap", "zstandard"), "recordings of a robot", "pip install 'embodied-rl[record]'"),
    Optional("inverse kinematics", ("mink", "daqp"), "arms that take joints", ik.INSTALL),
    Optional("TensorBoard", ("tensorboard",), "--track tensorboard", "pip install 'embodied-rl[track]'"),
    Optional("Weights & Biases", ("wandb",), "--track wandb", "pip install 'embodied-rl[wandb]'"),
    Optional("Trackio", ("trackio",), "--track trackio", "pip install 'embodied-rl[trackio]'"),
)


def optional() -> list[CheckResult]:
    """A row for each of `OPTIONAL`."""
    return [_result(what) for what in OPTIONAL]


def _result(what: Optional) -> CheckResult:
    found = [(name, _version(name)) for name in what.packages]
    missing = [name for name, version in found if version is None]
    if missing:
        return CheckResult(
            what.name, "note", f"{', '.join(missing)} not installed", f"for {what.serves}: {what.install}"
        )
    return CheckResult(what.name, "ok", ", ".join(f"{name} {version}" for name, version in found))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


CHECKS: Sequence[Callable[[], list[CheckResult]]] = (
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

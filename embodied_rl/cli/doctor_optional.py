"""What `doctor` says about optional packages: the installed version, or how to install them. Nothing is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata

from embodied_rl.jobs.findings import Finding
from embodied_rl.real_robot import ik
from embodied_rl.sim.envpool import load as envpool
from embodied_rl.sim.maniskill import load as maniskill
from embodied_rl.sim.warp import install as warp


@dataclass(frozen=True, slots=True)
class Optional:
    """A thing that some commands need. packages: their names in the package index. serves: what for."""

    name: str
    packages: tuple[str, ...]
    serves: str
    install: str


OPTIONAL = (
    Optional("EnvPool", ("envpool",), "suites metaworld, fetch, playground, dm_control", envpool.INSTALL),
    Optional("MuJoCo Warp", ("mujoco-warp", "warp-lang"), "--env.simulator warp, --env.renderer warp", warp.INSTALL),
    Optional("ManiSkill", ("mani-skill", "sapien"), "suite maniskill", f"in a checkout: {maniskill.INSTALL}"),
    Optional(
        "gymnasium-robotics", ("gymnasium-robotics",), "more tasks of suite gymnasium", "pip install gymnasium-robotics"
    ),
    Optional("rl_games", ("rl-games",), "make_isaacgym_env", "pip install --no-deps rl-games (docs/views.md)"),
    Optional("rsl_rl", ("rsl-rl-lib",), "make_isaacgym_env", "pip install 'embodied-rl[rsl-rl]'"),
    Optional("skrl", ("skrl",), "make_isaacgym_env", "pip install --no-deps skrl (docs/views.md)"),
    Optional("Ray", ("ray",), "--scheduler ray", "pip install 'embodied-rl[ray]'"),
    Optional("policy server", ("websockets", "msgpack"), "embodied-rl serve", "pip install 'embodied-rl[serve]'"),
    Optional("recorder", ("mcap", "zstandard"), "recordings of a robot", "pip install 'embodied-rl[record]'"),
    Optional("inverse kinematics", ("mink", "daqp"), "arms that take joints", ik.INSTALL),
    Optional("TensorBoard", ("tensorboard",), "--track tensorboard", "pip install 'embodied-rl[track]'"),
    Optional("Weights & Biases", ("wandb",), "--track wandb", "pip install 'embodied-rl[wandb]'"),
)


def optional() -> list[Finding]:
    """A row for each of `OPTIONAL`."""
    return [_finding(what) for what in OPTIONAL]


def _finding(what: Optional) -> Finding:
    found = [(name, _version(name)) for name in what.packages]
    missing = [name for name, version in found if version is None]
    if missing:
        return Finding(what.name, "note", f"{_listed(missing)} not installed", f"for {what.serves}: {what.install}")
    return Finding(what.name, "ok", _listed([f"{name} {version}" for name, version in found]))


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None

"""What a score depends on beside policy and protocol: simulator, renderer, driver, numeric libraries, task files."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from embodied_rl.config.env import EnvConfig, SceneConfig, WarpConfig
from embodied_rl.config.train import kind_of
from embodied_rl.factory.envs import pick_render_quality
from embodied_rl.factory.suites import Tasks
from embodied_rl.factory.tasks import describe_stand_ins, task_digest
from embodied_rl.version import __version__


def fingerprint(
    tasks: Tasks, env: EnvConfig, renderer: str, device: str, weights: str, efficient: Mapping[str, Any]
) -> dict[str, Any]:
    """Plain values; two scores are comparable only where they agree.

    env: of the simulator. renderer: one of sim/render's by name, or 'warp'; '' where the simulator draws. efficient:
    what the policy leaves out.
    """
    import mujoco
    import numba
    import torch

    computes = {
        "torch": f"{torch.__version__} on {device_name(device)}",
        "numba": numba.__version__,
        "weights": weights,
        "efficient": dict(efficient),
    }
    if not isinstance(env, SceneConfig):
        return {"embodied-rl": __version__, "simulator": _simulator(env), **computes}
    from embodied_rl.sim.warp.install import version as warp_version

    stand_ins = describe_stand_ins(tasks.scenes)
    return {
        "embodied-rl": __version__,
        "mujoco": mujoco.__version__,
        "era": "+".join(dict.fromkeys(task.era for task in tasks.scenes)),
        **({"simulator": f"mujoco-warp {warp_version()}"} if isinstance(env, WarpConfig) else {}),
        "renderer": renderer,
        "render_quality": pick_render_quality(env.render_quality, tasks.scenes),
        "driver": driver(renderer),
        **computes,
        **({"assets": stand_ins} if stand_ins else {}),
        "bundles": {task.name: task_digest(task) for task in tasks.scenes},
    }


def _simulator(env: EnvConfig) -> str:
    """The package that steps the envs, with its version, and how its steps are paid and commanded."""
    name = kind_of("env", env)
    package = {"maniskill": "mani-skill"}.get(name, name)
    options = [f"{option} {getattr(env, option)}" for option in ("step_reward", "control") if hasattr(env, option)]
    found = "" if name == "custom" else f" {importlib.metadata.version(package)}"
    return ", ".join([package + found, *options])


def driver(renderer: str) -> str:
    """What draws: the GL device and driver version; the CPU renderers are part of this program."""
    from embodied_rl.sim.render import probe
    from embodied_rl.sim.warp.install import version as warp_version

    if renderer == "raycast":
        return "none (CPU ray caster)"
    if renderer == "warp":
        return f"mujoco-warp {warp_version()}"
    if renderer == "raster":
        return "none (CPU rasteriser)"
    found = probe("egl" if renderer == "egl" else "osmesa")
    return f"{found.device}, OpenGL {found.version}"


def device_name(device: str) -> str:
    """'cpu', or the GPU's name."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else device

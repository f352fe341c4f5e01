"""What a score depends on beside policy and protocol: simulator, renderer, driver, numeric libraries, task files."""

from __future__ import annotations

import importlib.metadata
from dataclasses import asdict
from typing import Any

from embodied_rl.config.env import AlohaConfig, EnvConfig, MetaWorldConfig, SceneConfig, WarpConfig
from embodied_rl.config.train import kind_of
from embodied_rl.factory.scenes import pick_render_quality
from embodied_rl.factory.suites import Tasks
from embodied_rl.factory.tasks import physics_version, stand_in_files, task_digest
from embodied_rl.telemetry.info import EfficientInfo
from embodied_rl.version import __version__


def fingerprint(
    tasks: Tasks, env: EnvConfig, renderer: str, device: str, digest: str, efficient: EfficientInfo | None
) -> dict[str, Any]:
    """Plain values; two scores are comparable only where they agree.

    env: of the simulator. renderer: one of sim/render's by name, or 'warp'; '' where the simulator draws. digest: of
    the policy's weights. efficient: what the policy leaves out.
    """
    import mujoco
    import numba
    import torch

    computes = {
        "torch": f"{torch.__version__} on {device_name(device)}",
        "numba": numba.__version__,
        "weights": digest,
        "efficient": _efficient(efficient),
    }
    if not isinstance(env, SceneConfig):
        return {"embodied-rl": __version__, "simulator": _simulator(tasks, env), **computes}
    from embodied_rl.sim.warp.install import version as warp_version

    stand_ins = stand_in_files(tasks.scenes)
    return {
        "embodied-rl": __version__,
        "mujoco": mujoco.__version__,
        "era": physics_version(tasks.scenes),
        **({"simulator": f"mujoco-warp {warp_version()}"} if isinstance(env, WarpConfig) else {}),
        "renderer": renderer,
        "render_quality": pick_render_quality(env.render_quality, tasks.scenes),
        "driver": driver(renderer),
        **computes,
        **({"stand_in_files": stand_ins} if stand_ins else {}),
        "bundles": {task.name: task_digest(task) for task in tasks.scenes},
    }


def _efficient(info: EfficientInfo | None) -> dict[str, Any]:
    if info is None:
        return {}
    return {
        "dropped_layers": list(info.dropped_layers),
        "visual_tokens": info.visual_tokens,
        "denoise_reuse": info.denoise_reuse,
        **({"compiled": True} if info.compiled else {}),  # scores of before the option stay comparable
    }


def _simulator(tasks: Tasks, env: EnvConfig) -> str:
    """The package that steps the envs, with its version, and how its steps are paid and commanded."""
    if tasks.info is not None:
        options = [f"{key} {value}" for key, value in asdict(env).items() if key not in ("num_envs", "processes")]
        return ", ".join([tasks.info.simulator, *options])
    name = kind_of("env", env)
    package = {"maniskill": "mani-skill"}.get(name, name)
    marks = {"step_reward": "reward_mode", "control": "control_mode"}  # as in scores of before: they stay comparable
    options = [f"{mark} {getattr(env, option)}" for mark, option in marks.items() if hasattr(env, option)]
    if isinstance(env, AlohaConfig | MetaWorldConfig):
        import mujoco

        from embodied_rl.sim.metaworld.load import load_metaworld
        from embodied_rl.sim.pinned_wheel import ALOHA

        scenes = f"gym-aloha {ALOHA.version}" if isinstance(env, AlohaConfig) else f"metaworld {load_metaworld()}"
        return ", ".join([scenes, f"mujoco {mujoco.__version__}", f"renderer {env.renderer}", *options])
    if getattr(env, "device", "cpu") != "cpu":
        options.append(f"device {env.device}")  # pyright: ignore[reportAttributeAccessIssue]
    return ", ".join([f"{package} {importlib.metadata.version(package)}", *options])


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

"""What a score depends on beside policy and protocol: simulator, renderer, driver, numeric libraries, task files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from embodied_rl.factory.tasks import describe_stand_ins, task_digest
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask


def fingerprint(
    tasks: Sequence[SuiteTask],
    simulator: str,
    renderer: str,
    render_quality: str,
    device: str,
    weights: str,
    efficient: Mapping[str, Any],
) -> dict[str, Any]:
    """Plain values; two scores are comparable only where they agree.

    simulator: 'native' or 'warp'. renderer: one of sim/render's by name, or 'warp'. render_quality: 'exact' or 'fast'.
    efficient: what the policy leaves out.
    """
    import mujoco
    import numba
    import torch

    from embodied_rl.sim.warp.install import version as warp_version

    stand_ins = describe_stand_ins(tasks)
    return {
        "embodied-rl": __version__,
        "mujoco": mujoco.__version__,
        "era": "+".join(dict.fromkeys(task.era for task in tasks)),
        **({"simulator": f"mujoco-warp {warp_version()}"} if simulator == "warp" else {}),
        "renderer": renderer,
        "render_quality": render_quality,
        "driver": driver(renderer),
        "torch": f"{torch.__version__} on {device_name(device)}",
        "numba": numba.__version__,
        "weights": weights,
        "efficient": dict(efficient),
        **({"assets": stand_ins} if stand_ins else {}),
        "bundles": {task.name: task_digest(task) for task in tasks},
    }


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

"""Whether MuJoCo Warp is there; nothing here imports it."""

from __future__ import annotations

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from embodied_rl.errors import UserError

PACKAGES = ("warp", "mujoco_warp")
INSTALL = "pip install 'embodied-rl[warp]'"


def require() -> None:
    """UserError with the command that installs it, unless MuJoCo Warp is installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(f"MuJoCo Warp is not installed ({', '.join(missing)} missing); run: {INSTALL}")


def is_compiled() -> bool:
    """Whether kernels of this program are in Warp's cache on this machine."""
    import warp as wp

    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    return any(Path(str(wp.config.kernel_cache_dir)).glob("wp_embodied_rl.sim.warp.*"))


def version() -> str:
    """Of mujoco-warp, such as '4.0.0'."""
    return metadata.version("mujoco-warp")

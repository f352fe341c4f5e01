"""Where rclpy is, and the environment in which a process can use it. Imports no ROS."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.version import REPOSITORY

INSTALL = f"source ROS 2's setup.bash (Jazzy or newer), or run `make ros2` in a checkout of {REPOSITORY}"
LOOPBACK_PROFILE = Path(__file__).parent / "fastdds_loopback.xml"
"""Fast DDS on this machine alone: shared memory with room for pictures, and UDP on 127.0.0.1."""
_AGAIN = "EMBODIED_RL_ROS2"
"""Set in a process that was started again with rclpy's folders."""


def wheels_folder() -> Path:
    """Where `make ros2` puts rclpy: beside the environment's packages, not among them."""
    return Path(sys.prefix) / "ros2"


def has_rclpy() -> bool:
    """Whether `import rclpy` finds ROS 2 in this process: a sourced setup.bash, or what `ros_environment` says."""
    return importlib.util.find_spec("rclpy") is not None


def ros_environment(*, domain: int | None = None, loopback: bool = False) -> dict[str, str]:
    """The environment of a process that imports rclpy.

    Args:
        domain: ROS_DOMAIN_ID; None leaves it.
        loopback: Keep all traffic on this machine, with the profile that is shipped.

    Returns:
        This process's environment with what is needed beyond it.

    Raises:
        UserError: There is no rclpy; says how to get it.
    """
    environment = dict(os.environ)
    if not has_rclpy():
        packages = _packages()
        libraries = [wheels_folder() / "lib", *sorted(packages.glob("ros_*.libs"))]
        _prepend(environment, "LD_LIBRARY_PATH", libraries)
        _prepend(environment, "PYTHONPATH", [packages])
        _prepend(environment, "AMENT_PREFIX_PATH", [wheels_folder()])
    if domain is not None:
        environment["ROS_DOMAIN_ID"] = str(domain)
    if loopback:
        environment["FASTDDS_DEFAULT_PROFILES_FILE"] = str(LOOPBACK_PROFILE)
        environment["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
        environment["RMW_IMPLEMENTATION"] = "rmw_fastrtps_cpp"
    return environment


def enter(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start this process again as `python -m module arguments` if it lacks rclpy's folders; else take the environment.

    The dynamic loader reads its search path once, when a process starts; ROS reads its variables when a node is made.
    """
    if has_rclpy() or _AGAIN in os.environ:
        os.environ.update(environment)
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, *arguments], {**environment, _AGAIN: "1"})


def _packages() -> Path:
    found = sorted((wheels_folder() / "lib").glob("python3*/site-packages"))
    if not found:
        raise UserError(f"no ROS 2 here: {INSTALL}")
    return found[0]


def _prepend(environment: dict[str, str], name: str, folders: Sequence[Path]) -> None:
    before = [environment[name]] if environment.get(name) else []
    environment[name] = os.pathsep.join([*map(str, folders), *before])

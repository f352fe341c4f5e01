"""Imports ManiSkill and makes its environments, without its questions on the terminal."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.sim.maniskill import vulkan
from embodied_rl.version import REPOSITORY

INSTALL = f"sh .ci/install-maniskill .venv/bin/python, in a checkout of {REPOSITORY}"
REWARD_MODES = ("normalized_dense", "dense", "sparse")
"""The best first. A task names another order; for some it begins with 'none'."""

NO_REWARD = "none"


@cache
def load_maniskill() -> str:
    """Import ManiSkill once in this process; which Vulkan driver it uses, in words. UserError where it is missing."""
    driver = vulkan.choose_cpu_driver() if "sapien" not in sys.modules else "the driver that SAPIEN was imported with"
    os.environ.setdefault("LP_NUM_THREADS", "0")  # lavapipe: many processes draw side by side
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SAPIEN brings a libvulkan where the system has none, and warns of it
            import mani_skill
            import mani_skill.envs  # registers the tasks
    except ImportError as error:
        raise UserError(f"ManiSkill is not installed ({error}): {INSTALL}") from None
    mani_skill.logger.setLevel(logging.ERROR)
    return driver


def registered() -> dict[str, Any]:
    """ManiSkill's descriptions of its tasks, by id."""
    load_maniskill()
    from mani_skill.utils.registration import REGISTERED_ENVS

    return REGISTERED_ENVS


def check_assets(env_id: str) -> None:
    """UserError where files of a task are missing: ManiSkill would ask on the terminal, or believe an empty folder."""
    from mani_skill.utils import assets

    wanted: list[str] = []
    for name in registered()[env_id].asset_download_ids or []:
        group = name in assets.DATA_GROUPS
        wanted += assets.expand_data_group_into_individual_data_source_ids(name) if group else [name]
    missing = [name for name in wanted if not _is_there(assets.DATA_SOURCES[name])]
    if missing:
        raise UserError(_missing(env_id, missing))


def _is_there(source: Any) -> bool:
    path = Path(source.output_dir) / source.target_path
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _missing(env_id: str, names: Sequence[str]) -> str:
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"{env_id} needs files that ManiSkill does not bring ({some}): "
        f"python -m mani_skill.utils.download_asset {env_id} -y (an internet connection is needed)"
    )


def reward_mode(env_id: str) -> str:
    """Which of ManiSkill's reward modes a task is made with: the first of REWARD_MODES that it has, else NO_REWARD."""
    supported = registered()[env_id].cls.SUPPORTED_REWARD_MODES
    return next((mode for mode in REWARD_MODES if mode in supported), NO_REWARD)


def make(env_id: str, **options: Any) -> Any:
    """ManiSkill's environment itself, without wrappers; UserError where it can't be made here."""
    import gymnasium

    check_assets(env_id)
    options.setdefault("reward_mode", reward_mode(env_id))
    try:
        with _nobody_asks(env_id), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return gymnasium.make(env_id, **options).unwrapped
    except (FileNotFoundError, ImportError) as error:
        raise UserError(f"ManiSkill can't make {env_id} here: {' '.join(str(error).split())}") from None
    except RuntimeError as error:
        if "vk::" not in str(error) and "render" not in str(error).lower():
            raise
        raise UserError(
            f"ManiSkill needs a Vulkan driver, also for states ({' '.join(str(error).split())}): {vulkan.INSTALL}"
        ) from None


_HAND_CAMERA = (0.0464982, -0.0200011, 0.0360011), (0.0, 0.70710678, 0.0, 0.70710678)
"""Where the robot `panda_wristcam` has it, from its hand: metres, and a quaternion (w, x, y, z)."""
_making = threading.Lock()


@contextmanager
def hand_camera() -> Iterator[None]:
    """Pandas that are made meanwhile have the camera of `panda_wristcam`, and move like any other.

    That robot itself has the camera's mass, begins turned, and few tasks know it.
    """
    load_maniskill()
    import sapien
    from mani_skill.agents.robots.panda.panda import Panda
    from mani_skill.sensors.camera import CameraConfig

    def configs(robot: Any) -> list[Any]:
        hand = robot.robot.links_map["panda_hand"]
        pose: Any = sapien.Pose(*_HAND_CAMERA)
        return [CameraConfig("hand_camera", pose, 128, 128, math.pi / 2, 0.01, 100, mount=hand)]

    kind: Any = Panda
    with _making:  # it is the class that is changed
        kind._sensor_configs = property(configs)
        try:
            yield
        finally:
            del kind._sensor_configs


@contextmanager
def _nobody_asks(env_id: str) -> Iterator[None]:
    """Robots ask for their files too, and only when they are made."""
    from mani_skill.utils import download_asset

    def refuse(message: str) -> bool:
        robot = next(iter(re.findall(r"Robot (\S+)", message)), "its robot")
        raise UserError(
            f"{env_id} needs files of a robot that ManiSkill does not bring ({robot}): "
            f"python -m mani_skill.utils.download_asset {robot} -y (an internet connection is needed)"
        )

    asked = download_asset.prompt_yes_no
    download_asset.prompt_yes_no = refuse
    try:
        yield
    finally:
        download_asset.prompt_yes_no = asked

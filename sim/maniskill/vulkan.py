"""Finds a Vulkan driver that draws on the CPU. SAPIEN needs one even where nothing is drawn."""

from __future__ import annotations

import os
from pathlib import Path

from embodied_rl.utils.cache_dir import cache_dir
from embodied_rl.version import REPOSITORY

INSTALL = f"sh .ci/install-lavapipe, in a checkout of {REPOSITORY}"
_SYSTEM = (Path("/usr/share/vulkan/icd.d"), Path("/etc/vulkan/icd.d"), Path("/usr/local/share/vulkan/icd.d"))
_CHOSEN = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")


def installed_lavapipe() -> Path:
    """Where `.ci/install-lavapipe` puts the description of the driver, whether it is there or not."""
    return cache_dir() / "lavapipe" / "lvp.json"


def choose_cpu_driver() -> str:
    """Make this process use a CPU driver, and say which; only before SAPIEN is imported.

    The user's own choice stands, then comes the lavapipe in the cache folder, then one of the system.
    """
    for name in _CHOSEN:
        if os.environ.get(name):
            return os.environ[name]
    ours = installed_lavapipe()
    if ours.is_file():
        os.environ["VK_ICD_FILENAMES"] = str(ours)
        return f"lavapipe in {ours.parent}"
    if any(path for folder in _SYSTEM for path in folder.glob("lvp_icd*.json")):
        return "lavapipe of the system"
    return "no CPU driver"

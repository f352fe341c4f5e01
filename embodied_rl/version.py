"""The package's version and address, in a module that everything may import: it imports nothing of the package."""

from __future__ import annotations

from importlib import metadata

__version__ = "0.1.0"
REPOSITORY = "https://github.com/embodied-rl/embodied-rl"
"""Where the files are that an installed package does not hold: docs/, examples/, .ci/."""
TESTED_MUJOCO = "4.0.0"
"""What results were measured with."""


def newer_mujoco() -> str:
    """A note if another MuJoCo is installed than the one that results were measured with."""
    try:
        found = metadata.version("mujoco")
    except metadata.PackageNotFoundError:
        return ""
    if found == TESTED_MUJOCO:
        return ""
    return f"mujoco {found} is installed; results were tested with {TESTED_MUJOCO}, and others may differ from them"

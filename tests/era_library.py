"""The old library of LIBERO's published eras for tests: downloaded once for a machine, into a folder of their own."""

from __future__ import annotations

import os
import tempfile
from functools import cache
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install.era import install_era_library
from embodied_rl.sim.mujoco.era import wrong_platform

CACHE = Path(tempfile.gettempdir()) / f"embodied-rl-tests-{os.getuid()}"


@cache
def missing() -> str:
    """Fetch the library; why that is impossible here, or ''."""
    if reason := wrong_platform():
        return reason
    try:
        install_era_library(CACHE)
    except UserError as error:
        if os.environ.get("CI") == "true" or "the package index cannot be reached" not in str(error):
            raise
        return f"no old library without the package index: {error}"
    return ""

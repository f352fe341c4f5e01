"""The old library behind LIBERO's published eras, on this machine."""

from __future__ import annotations

from embodied_rl.errors import UserError
from embodied_rl.utils.cache_dir import cache_dir


def try_era() -> str:
    """Put the old library to use in this process, and say in a line what runs; UserError where it can't."""
    from embodied_rl.sim.mujoco.era import install, library_path

    install()
    return f"mujoco-3.3 (published) and mujoco-2.3.7 run: {library_path()} finds the contacts that it should"


def install_era() -> str:
    """Fetch the library unless it is there, try it, and say so in a line.

    Raises:
        UserError: It can't run here, can't be fetched, or does not find the contacts that it should.
    """
    from embodied_rl.sim.libero.install.era import install_era_library
    from embodied_rl.sim.mujoco.era import install, library_path, wrong_platform

    if reason := wrong_platform():
        raise UserError(reason)
    fetched = install_era_library(cache_dir())
    install()
    return f"{library_path()} {'is installed' if fetched else 'was there'}, and finds the contacts that it should"

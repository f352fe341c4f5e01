"""Imports EnvPool, with the library that its pictures need."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType

from embodied_rl.errors import UserError

INSTALL = "pip install 'embodied-rl[envpool]'"
_GL = "libGL.so.1"
_gl_is_there: bool | None = None


def load_envpool() -> ModuleType:
    """The module `envpool`; UserError where it is not installed."""
    global _gl_is_there
    if _gl_is_there is None:
        # EnvPool looks for OpenGL in the process when it is imported: later is too late.
        _gl_is_there = "envpool" not in sys.modules and _preload()
    try:
        import envpool
    except ImportError as error:
        raise UserError(f"EnvPool is not installed ({error}): {INSTALL}") from None
    return envpool


def why_no_images() -> str | None:
    """Why EnvPool can't draw in this process, None if it can. It would end the process if it tried."""
    load_envpool()
    if _gl_is_there:
        return None
    return f"EnvPool draws with {_GL}, which must be there before envpool is imported: apt-get install libgl1"


def _preload() -> bool:
    try:
        ctypes.CDLL(_GL, ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True

"""MuJoCo's warnings go to the terminal only: by itself it also appends them to MUJOCO_LOG.TXT in the user's folder."""

from __future__ import annotations

import ctypes
import sys

import mujoco
from mujoco import _functions


class _LogConfig(ctypes.Structure):
    """mjLogConfig of MuJoCo 4.0 (mjtype.h)."""

    _fields_ = (
        ("to_console", ctypes.c_bool),
        ("to_file", ctypes.c_bool),
        ("file", ctypes.c_char * 1024),
        ("topics", ctypes.c_int),
    )


def write_no_log_file() -> None:
    """Switch MuJoCo's log file off for this process, unless the program has named one of its own."""
    library = ctypes.CDLL(_functions.__file__)  # finds the symbols of the libmujoco that the bindings are linked with
    library.mju_getLogConfig.restype = _LogConfig
    library.mju_setLogConfig.argtypes = [_LogConfig]
    library.mju_setLogConfig.restype = None
    config = library.mju_getLogConfig()
    if config.file == b"MUJOCO_LOG.TXT":
        config.to_file = False
        library.mju_setLogConfig(config)


def leave_divergence_to_results() -> None:
    """Silence MuJoCo's warning of diverged physics, for an engine that marks such episodes as failed instead."""
    mujoco.set_mju_user_warning(_warn)


def _warn(text: str) -> None:
    if "simulation is unstable" not in text:
        print(f"MuJoCo: {text}", file=sys.stderr)

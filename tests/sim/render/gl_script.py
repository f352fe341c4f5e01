"""Runs a script that draws with OpenGL in its own process: a driver may crash, and one process has one platform."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from embodied_rl.sim.render import probe

Backend = Literal["egl", "osmesa"]
BACKENDS: tuple[Backend, ...] = ("egl", "osmesa")


def run_script(script: str, backend: Backend, *words: str | Path) -> str:
    """What `script backend words...` prints; skips without the library, which in CI is a failure."""
    found = probe(backend)
    if found.state == "missing":
        reason = f"no {backend} on this machine: {found.device}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-c", script, backend, *words],
        # Not what this process drew with: a renderer leaves its platform in the environment, for good.
        env={**os.environ, "PYOPENGL_PLATFORM": backend},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception" not in done.stderr, done.stderr  # contexts are freed quietly
    return done.stdout

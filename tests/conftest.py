"""What holds for every test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Imported before any test puts a stand-in in the place of `factory.envs.open_env`: it would keep the stand-in for good.
import embodied_rl.factory.suite_env  # noqa: F401

# No test depends on how long something takes: hypothesis' deadline would fail one on a loaded machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _no_gl_in_this_process() -> Iterator[None]:
    """A process has one OpenGL platform for good: a test that takes one here would break another, by their order."""
    before = os.environ.get("PYOPENGL_PLATFORM")
    yield
    assert os.environ.get("PYOPENGL_PLATFORM") == before, "draw with OpenGL in a process of its own: tests' run_script"

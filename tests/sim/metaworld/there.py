"""Tests of MetaWorld run where its package is, and always in CI."""

from __future__ import annotations

import importlib.util
import os

import pytest

from embodied_rl.sim.pinned_wheel import METAWORLD


def needs_metaworld() -> pytest.MarkDecorator:
    """Skips a test where MetaWorld is not installed; never in CI."""
    there = METAWORLD.installed() is not None or importlib.util.find_spec("metaworld") is not None
    missing = not there and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"MetaWorld is not installed: {METAWORLD.command}")

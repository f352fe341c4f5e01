"""Tests of ALOHA run where gym-aloha's scenes are, and always in CI."""

from __future__ import annotations

import os

import pytest

from embodied_rl.sim.pinned_wheel import ALOHA


def needs_aloha() -> pytest.MarkDecorator:
    """Skips a test where gym-aloha is not installed; never in CI."""
    missing = ALOHA.installed() is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"gym-aloha is not installed: {ALOHA.command}")

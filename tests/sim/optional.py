"""Tests of optional simulators run where they are installed, and always in CI."""

from __future__ import annotations

import importlib.util
import os

import pytest


def needs(module: str) -> pytest.MarkDecorator:
    """Skips a test where `module` is not installed; never in CI."""
    missing = importlib.util.find_spec(module) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"{module} is not installed")

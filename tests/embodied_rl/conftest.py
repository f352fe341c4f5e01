"""Lets tests import `tests.toy` however pytest is started, and keeps torch to one thread."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # last: a bare `sim` or `policies` must not shadow anything


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tensors here are tiny: threads would only wait for each other, and other tests run beside."""
    import torch

    torch.set_num_threads(1)

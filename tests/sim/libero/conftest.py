"""Lets tests import `tests.sim.libero.bundles` however pytest is started."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # last: a bare `sim` or `policies` must not shadow anything

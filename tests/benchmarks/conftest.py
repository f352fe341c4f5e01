"""Lets these tests import those of other folders however pytest is started."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # last: a bare `sim` or `policies` must not shadow anything

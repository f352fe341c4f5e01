"""Where downloaded assets live."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """$EMBODIED_RL_CACHE, else ~/.cache/embodied-rl."""
    return Path(os.environ.get("EMBODIED_RL_CACHE") or Path.home() / ".cache" / "embodied-rl")

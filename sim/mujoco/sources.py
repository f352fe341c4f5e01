"""A digest of the engine's sources, which keys the disk cache of its kernels.

Numba's cache looks only at the file of the function that it compiles: after a change in a function that this one calls,
it would load old machine code. So the inner functions are not cached, and the entry points hold this digest in their
closure, which is part of numba's key.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def source_digest() -> str:
    """SHA-256 over the Python files of this folder and those below."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()

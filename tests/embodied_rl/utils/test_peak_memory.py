"""The most memory that a process had is known after it was given back, and is not that of who started it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from embodied_rl.utils.processes import peak_memory

_CHILD = """
from embodied_rl.utils.processes import peak_memory
before = peak_memory()
block = bytearray(300 << 20)
block[::4096] = b"x" * len(block[::4096])
del block
print(before, peak_memory())
"""


@pytest.mark.process
def test_the_peak_stays_and_is_ones_own() -> None:
    block = bytearray(600 << 20)
    block[::4096] = b"x" * len(block[::4096])
    done = subprocess.run([sys.executable, "-c", _CHILD], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before < 300 << 20
    assert 300 << 20 <= after - before + (1 << 20) <= 340 << 20
    assert peak_memory() >= 600 << 20

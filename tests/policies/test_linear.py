"""What oneDNN keeps of the products it has done."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

MANY_ROWS = """
import torch
from pathlib import Path
from embodied_rl.policies.linear import linear

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1])

torch.set_num_threads(1)
rows, weight = torch.ones(1100, 64), torch.ones(64, 64)
with torch.inference_mode():
    linear(rows, weight)
    before = resident()
    for count in range(16, 1100):
        linear(rows[:count], weight)
print(resident() - before)
"""


def pages_kept(**settings: str) -> int:
    """Pages that a process has more after 1084 numbers of rows than after one."""
    others = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    ran = subprocess.run(
        [sys.executable, "-c", MANY_ROWS], env=others | settings, capture_output=True, text=True, check=True,
        timeout=120,
    )  # fmt: skip
    return int(ran.stdout)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN, so nothing is kept")
def test_few_of_many_numbers_of_rows_are_kept() -> None:
    torchs_own = pages_kept(LRU_CACHE_CAPACITY="1024", ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024")
    assert pages_kept() < torchs_own / 2

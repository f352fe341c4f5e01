"""Products through oneDNN: their gradients, and what it keeps of those it has done."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from embodied_rl.policies.nn.linear import linear

MANY_ROWS = """
import torch
from pathlib import Path
from embodied_rl.policies.nn.linear import linear

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
        [sys.executable, "-c", MANY_ROWS],
        env=others | settings,
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    return int(ran.stdout)


@pytest.mark.process
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN, so nothing is kept")
def test_few_of_many_numbers_of_rows_are_kept() -> None:
    torchs_own = pages_kept(LRU_CACHE_CAPACITY="1024", ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024")
    assert pages_kept() < torchs_own / 2


@pytest.mark.parametrize(
    ("width", "out"),
    [(64, 192), (192, 64), (128, 128), (8, 128), (128, 1)],
    ids=["narrower input", "narrower output", "square", "small input", "one output"],
)
@pytest.mark.parametrize("gaps", [False, True], ids=["rows in a row", "rows with gaps"])
def test_gradients_are_those_of_the_product_in_float64(width: int, out: int, gaps: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    every = torch.randn(57, 3, width, generator=draw)
    x, grad = (every[:, 0] if gaps else every.flatten(0, 1)), torch.randn(57 if gaps else 171, out, generator=draw)
    weight, bias = torch.randn(out, width, generator=draw), torch.randn(out, generator=draw)
    leaves = [x.requires_grad_(), weight.requires_grad_(), bias.requires_grad_()]
    found = torch.autograd.grad(linear(*leaves), leaves, grad)
    expected = [grad.double() @ weight.double(), grad.double().t() @ x.double(), grad.double().sum(dim=0)]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)

"""Lets tests import `tests...` however pytest is started; one torch thread.

These models are small, and two threads on two busy cores wait for each other.
"""

import sys
from pathlib import Path

import torch

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # last: a bare `sim` or `policies` must not shadow anything

torch.set_num_threads(1)

"""Idle OpenMP threads sleep, unless the user has said otherwise: it must be set before torch is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys
from embodied_rl.cli import main
main(["--version"])
assert "torch" not in sys.modules
print(os.environ["OMP_WAIT_POLICY"])
"""


@pytest.mark.process
@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_command_line_sets_passive_waiting(given: str | None, found: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if given is not None:
        env["OMP_WAIT_POLICY"] = given
    out = subprocess.run([sys.executable, "-c", CODE], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.split()[-1] == found

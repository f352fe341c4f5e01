"""The core runs on an arm's computer: numpy and the standard library are all that it loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "real_robot" / "core"
LOAD = """
import importlib, sys
before = set(sys.modules)
for name in {names}:
    importlib.import_module("embodied_rl.real_robot.core." + name)
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(sorted(loaded - set(sys.stdlib_module_names) - {{"embodied_rl", "numpy"}}))
"""


@pytest.mark.process
def test_the_core_loads_numpy_alone() -> None:
    names = [path.stem for path in CORE.glob("*.py") if path.stem != "__init__"]
    code = LOAD.format(names=names)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=900)
    assert done.stdout.strip() == "[]"

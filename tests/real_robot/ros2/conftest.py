"""What the tests of live sessions share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.environment import ros_environment

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def live(alone: Callable[[], AbstractContextManager[None]]) -> Callable[..., dict[str, Any]]:
    """Runs a module of this folder as a process that has rclpy: what its last line says."""

    def run(module: str, *words: str) -> dict[str, Any]:
        try:
            environment = ros_environment(domain=10 + os.getpid() % 80, loopback=True)
        except UserError as missing:
            if os.environ.get("CI"):
                raise
            pytest.skip(str(missing))  # .ci/run installs it
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", f"tests.real_robot.ros2.{module}", *words]
        with alone():
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=3600, check=False
            )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run

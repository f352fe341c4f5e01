"""The isolated environment: the official packages at fixed versions, in a virtual environment that is used once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import mujoco

from embodied_rl.errors import UserError

OFFICIAL = {"hf-libero": "0.1.4", "robosuite": "1.4.0", "bddl": "1.0.1"}
"""Installed without their dependencies, which are 10 GB that the export does not import."""
SUPPORT = {
    "numpy": "2.4.6",
    "scipy": "1.17.1",
    "numba": "0.68.1",
    "pillow": "13.0.0",
    "opencv-python-headless": "5.0.0.93",
    "termcolor": "3.3.0",
    "future": "1.0.0",
    "easydict": "1.14",
    "cloudpickle": "3.1.2",
    "gymnasium": "1.4.0",
    "matplotlib": "3.11.2",
    "pyyaml": "6.0.3",
}
"""What they import, in the versions that the golden data was recorded with."""
READY = "ready.json"
"""A whole environment has this file: the versions that are in it."""


def packages(mujoco_version: str = mujoco.__version__) -> dict[str, str]:
    """Every pinned package; MuJoCo is this process's, for its binary models load in no other version."""
    return {**OFFICIAL, **SUPPORT, "mujoco": mujoco_version}


class Environment:
    """A virtual environment in `folder`. mujoco_version: another than this process's only where no model comes back.

    environment = Environment(folder)
    environment.build()
    """

    def __init__(self, folder: Path, mujoco_version: str = mujoco.__version__) -> None:
        self.folder, self.mujoco_version = folder, mujoco_version
        self.python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def build(self) -> None:
        """Make the environment, unless an earlier build of the same versions was completed.

        UserError with pip's reason when a package cannot be installed.
        """
        ready = self.folder / READY
        if ready.is_file() and json.loads(ready.read_text()) == packages(self.mujoco_version):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            venv.EnvBuilder(with_pip=True).create(self.folder)
        except subprocess.CalledProcessError:
            raise UserError(
                f"{sys.executable} can't make virtual environments with pip; install that (Debian: python3-venv)"
            ) from None
        self._pip("--no-deps", *_pins(OFFICIAL))
        self._pip(*_pins({**SUPPORT, "mujoco": self.mujoco_version}))
        ready.write_text(json.dumps(packages(self.mujoco_version)))

    def _pip(self, *words: str) -> None:
        # "-I" and the cleared variable keep the user's own packages out
        command = [str(self.python), "-I", "-m", "pip", "install", "--quiet", "--no-compile", *words]
        done = subprocess.run(command, env=variables(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(f"pip could not install the official packages: {_reason(done.stderr)}")

    def site_packages(self) -> Path:
        """Where the packages lie."""
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        done = subprocess.run([str(self.python), "-I", "-c", code], capture_output=True, text=True, check=True)
        return Path(done.stdout.strip())

    def remove(self) -> None:
        """Delete the environment."""
        shutil.rmtree(self.folder, ignore_errors=True)


def variables() -> dict[str, str]:
    """This process's environment variables without those that lead Python to other packages."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def _pins(versions: dict[str, str]) -> list[str]:
    return [f"{name}=={version}" for name, version in versions.items()]


def _reason(errors: str) -> str:
    """The part of pip's complaint that helps."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    unreachable = ("Failed to establish a new connection", "Name or service not known", "name resolution", "timed out")
    if any(word in line for line in lines for word in unreachable):
        return "the package index cannot be reached; check the network and run the command again"
    problems = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (problems or lines or ["it gave no reason"])[-1]

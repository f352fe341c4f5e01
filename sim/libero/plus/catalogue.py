"""What LIBERO-plus' package says, read once and kept beside LIBERO's tasks; none of its code runs here.

The official task map, the robot's start poses, the cameras' poses and the rewritten instructions are literals in its
files.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.sim.bddl import parse_bddl
from embodied_rl.sim.libero.exported import write_atomically
from embodied_rl.sim.libero.plus.camera import Pose
from embodied_rl.sim.libero.plus.names import PlusName, parse_name
from embodied_rl.utils.suites import PLUS_SUITES

FORMAT = 1
FILE = "libero-plus.json"
INSTALL = "embodied-rl assets install libero-plus"
_PACKAGE = "liberoplus/liberoplus/"
_TASK_MAP = f"{_PACKAGE}benchmark/libero_suite_task_map.py"
_ROBOTS = {
    "Mounted": f"{_PACKAGE}envs/robots/mounted_panda.py",
    "OnTheGround": f"{_PACKAGE}envs/robots/on_the_ground_panda.py",
}
_PROBLEMS = f"{_PACKAGE}envs/problems/"
_BDDL = f"{_PACKAGE}bddl_files/"
_POSE = ("pos_av", "quat_av")
"""What the official code calls a camera's position and quaternion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """LIBERO-plus' tasks.

    Args:
        version: of the package.
        names: by suite, in the official order.
        starts: by the robot's mount and the pose's number from 1 on, angles of the seven joints, rad.
        robots: the robot's mount by problem, as task files name it, in lower case.
        cameras: where `agentview` stands, by problem.
        instructions: by suite and by 'TASK_language_NUMBER'.
    """

    version: str
    names: Mapping[str, list[str]]
    starts: Mapping[str, list[list[float]]]
    robots: Mapping[str, str]
    cameras: Mapping[str, Pose]
    instructions: Mapping[str, Mapping[str, str]]

    def tasks(self, suite: str) -> list[PlusName]:
        """What the names of a suite of LIBERO say, in the official order."""
        return [parse_name(name) for name in self.names[suite]]

    def instruction(self, suite: str, name: PlusName, own: str, *, official: bool) -> str:
        """What policies are told.

        Args:
            suite: of LIBERO.
            name: a task of LIBERO-plus.
            own: the instruction of the task that it changes.
            official: as the official code has it, which reads the instruction of every task whose dimension is
                another than language off its name, with all that the name says of the perturbation.
        """
        if name.language:
            return self.instructions[suite][f"{name.base}_language_{name.language}"]
        suffix = name.name.removeprefix(name.base).replace("_", " ")
        return own + suffix if official else own


def write_catalogue(wheel: Path, version: str, root: Path) -> Catalogue:
    """Read the package's wheel and keep what it says under `root`; UserError where it is not that package."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            catalogue = _read(archive, version)
    except (zipfile.BadZipFile, KeyError, ValueError, SyntaxError, AttributeError, IndexError) as error:
        raise UserError(f"{wheel} is not LIBERO-plus' package ({error}); run: {INSTALL}") from None
    text = json.dumps({"format": FORMAT, **asdict(catalogue)}, indent=0)
    write_atomically(root / FILE, text.encode())
    return catalogue


def read_catalogue(root: Path) -> Catalogue:
    """What `write_catalogue` kept; UserError where that was never done, or the file is damaged."""
    path = root / FILE
    try:
        return _parse(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"LIBERO-plus is not installed in {root}; run: {INSTALL}") from None
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"can't read {path}: {error}; run: {INSTALL}") from None


def catalogue_digest(root: Path) -> str:
    """SHA-256 of what is installed: a score depends on it."""
    return hashlib.sha256((root / FILE).read_bytes()).hexdigest()


@cache
def _parse(data: bytes) -> Catalogue:
    values = json.loads(data)
    if values.pop("format", None) != FORMAT:
        raise ValueError("another version of embodied-rl wrote it")
    return Catalogue(**values)


def _read(archive: zipfile.ZipFile, version: str) -> Catalogue:
    table = _literal(_tree(archive, _TASK_MAP).body[0].value)  # type: ignore[attr-defined]
    names = {suite: list(table[suite]) for suite in PLUS_SUITES}
    robots, cameras = {}, {}
    for entry in archive.namelist():
        if entry.startswith(_PROBLEMS) and entry.endswith("_manipulation.py"):
            problem, robots_of, pose = _problem(archive, entry)
            robots[problem], cameras[problem] = robots_of, pose
    return Catalogue(
        version=version,
        names=names,
        starts={mount: _starts(archive, path) for mount, path in _ROBOTS.items()},
        robots=robots,
        cameras=cameras,
        instructions={suite: _instructions(archive, suite, rows) for suite, rows in names.items()},
    )


def _text(archive: zipfile.ZipFile, path: str) -> str:
    return archive.read(path).decode()


def _tree(archive: zipfile.ZipFile, path: str) -> ast.Module:
    return ast.parse(_text(archive, path))


def _literal(node: ast.expr) -> Any:
    return ast.literal_eval(node)


def _starts(archive: zipfile.ZipFile, path: str) -> list[list[float]]:
    """The start poses of the classes whose names end with a number, in the order of these."""
    found = {}
    for cls in _tree(archive, path).body:
        number = re.search(r"\d+$", cls.name) if isinstance(cls, ast.ClassDef) else None
        if number is not None:
            call = next(part for part in ast.walk(cls) if isinstance(part, ast.Call))
            found[int(number[0])] = [float(value) for value in _literal(call.args[0])]
    return [found[number] for number in range(1, len(found) + 1)]


def _problem(archive: zipfile.ZipFile, path: str) -> tuple[str, str, Pose]:
    """Name, mount and camera of the first class of a file of problems; the others are the same in other looks."""
    cls = next(part for part in _tree(archive, path).body if isinstance(part, ast.ClassDef))
    mount = next(text for text in _texts(cls) if text in _ROBOTS)
    values = {
        part.targets[0].id: _literal(part.value)
        for part in ast.walk(cls)
        if isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name) and part.targets[0].id in _POSE
    }
    return cls.name.lower(), mount, (values[_POSE[0]], values[_POSE[1]])


def _texts(node: ast.AST) -> Iterator[str]:
    return (part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str))


def _instructions(archive: zipfile.ZipFile, suite: str, names: list[str]) -> dict[str, str]:
    """Of the task map's rewritten instructions."""
    wanted = dict.fromkeys(name.partition("_view_")[0] for name in names if "_language_" in name)
    found = {}
    for name in wanted:
        text = parse_bddl(_text(archive, f"{_BDDL}{suite}/{name}.bddl"), name).language
        found[name] = text.lower()  # as the official reader does with the whole file
    return found

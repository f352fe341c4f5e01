"""What the package declares is what it needs; built archives hold real files, wherever links were."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.embodied_rl.test_imports import LINKED, ROOT, imported, modules

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Import names that are not the package's own.
# mujoco brings PyOpenGL, numba llvmlite and jinja2 markupsafe, each in the version that it needs.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "yaml": "pyyaml",
    "OpenGL": "mujoco",
    "llvmlite": "numba",
    "markupsafe": "jinja2",
    "huggingface_hub": "huggingface-hub",
    "catkin_pkg": "catkin-pkg",
    "mani_skill": "mani-skill",
    "sapien": "mani-skill",  # which brings it
    "mujoco_warp": "mujoco-warp",
    "warp": "warp-lang",
    "rl_games": "rl-games",
    "rsl_rl": "rsl-rl-lib",
    "stable_baselines3": "stable-baselines3",
    "vla_eval": "vla-eval",
    "rclpy": "ros-rclpy",
    "std_msgs": "ros-std-msgs",
    "sensor_msgs": "ros-sensor-msgs",
    "geometry_msgs": "ros-geometry-msgs",
    "trajectory_msgs": "ros-trajectory-msgs",
    "diagnostic_msgs": "ros-diagnostic-msgs",
    "std_srvs": "ros-std-srvs",
    "rcl_interfaces": "ros-rcl-interfaces",
    "lifecycle_msgs": "ros-lifecycle-msgs",
}
# Runs in the environment that `assets install libero` makes for the official code.
ELSEWHERE = ("sim.libero.install.official.", "benchmarks.lab.official.")
OPTIONAL = {
    "matplotlib": "dev",
    "tensorboard": "track",
    "wandb": "wandb",
    "trackio": "trackio",
    "transformers": "vlm",
    "pillow": "vlm",
    "viser": "view",
    "trimesh": "view",
    "ray": "ray",
    "websockets": "serve",
    "msgpack": "serve",
    "mink": "ik",
    "mcap": "record",
    "zstandard": "record",
    "envpool": "envpool",
    "mani-skill": "maniskill",
    "mujoco-warp": "warp",
    "warp-lang": "warp",
    "rl-games": "rl-games",
    "rsl-rl-lib": "rsl-rl",
    "tensordict": "rsl-rl",
    "skrl": "skrl",
    "stable-baselines3": "sb3",
    "torchrl": "torchrl",
    "vla-eval": "vla-eval",
    "ros-rclpy": "ros-test",
    "ros-std-msgs": "ros-test",
    "ros-sensor-msgs": "ros-test",
    "ros-geometry-msgs": "ros-test",
    "ros-trajectory-msgs": "ros-test",
    "ros-diagnostic-msgs": "ros-test",
    "ros-std-srvs": "ros-test",
    "ros-rcl-interfaces": "ros-test",
    "ros-lifecycle-msgs": "ros-test",
    "cyclonedds": "ros-test",
}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~ ;]", requirement)[0].lower() for requirement in requirements}


def third_party(sources: Iterable[tuple[str, Path]]) -> dict[str, set[str]]:
    """Outside packages that these files import, and the files that do."""
    found: dict[str, set[str]] = {}
    for name, path in sources:
        for target in imported(ast.parse(path.read_text())):
            top = target.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in ("embodied_rl", "tests", "__future__"):
                found.setdefault(DISTRIBUTIONS.get(top, top), set()).add(name)
    return found


def test_every_import_is_declared() -> None:
    declared = names(PROJECT["dependencies"])
    found = third_party((name, path) for name, path in modules() if not name.startswith(ELSEWHERE))
    assert {name: users for name, users in found.items() if name not in declared | set(OPTIONAL)} == {}
    for name, extra in OPTIONAL.items():
        assert name in names(PROJECT["optional-dependencies"][extra])


def test_every_import_of_the_tests_is_declared() -> None:
    declared = names(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]) | set(OPTIONAL)
    # make_*.py made golden files, in environments of their own that they describe
    paths = sorted(path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("make_"))
    own = {"fake_line_simulator", "point_robot"}  # made by tests
    own |= {"ppo_single_file", "wrapped_policy", "vla_eval_benchmark", "vla_eval_server"}  # examples
    apart = {"lerobot"}  # .ci/install-lerobot, which constraints do not go with
    found = third_party((str(path), path) for path in paths)
    assert {name: users for name, users in found.items() if name not in declared | own | apart} == {}


def test_every_dependency_is_used() -> None:
    by_command = {"accelerate"}  # its launcher starts ranks
    assert names(PROJECT["dependencies"]) - set(third_party(modules())) == by_command


def test_constraints_pin_every_dependency_and_no_build_of_torch() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    extras = PROJECT["optional-dependencies"]
    wanted = names(PROJECT["dependencies"] + extras["dev"] + extras["track"])
    assert wanted <= set(pins)
    assert re.fullmatch(r"[\d.]+", pins["torch"])
    assert not [name for name in pins if name.startswith(("nvidia-", "cuda-", "triton"))]


def test_links_are_relative_and_every_source_folder_is_a_package() -> None:
    for name in LINKED:
        link = ROOT / "embodied_rl" / name
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{name}"
    without = {path.parent for _, path in modules() if not (path.parent / "__init__.py").is_file()}
    assert without == set()


@pytest.mark.process
@pytest.mark.parametrize(
    ("installed", "gpu", "status"),
    [
        ("numpy==2.4.6\ntorch==2.13.0+cpu", False, 0),
        ("numpy==2.4.6\nnvidia-cublas-cu12==12.9", False, 1),
        ("triton==3.6", False, 1),
        ("triton==3.6", True, 0),
    ],
)
def test_cuda_packages_without_a_gpu_fail_loudly(installed: str, gpu: bool, status: int, tmp_path: Path) -> None:
    script(tmp_path / "python", f"printf '{installed}\\n'")
    script(tmp_path / "nvidia-smi", f"exit {0 if gpu else 1}")
    done = subprocess.run(
        ["sh", str(ROOT / ".ci" / "check-no-cuda"), str(tmp_path / "python")],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert ("CUDA packages on a machine without" in done.stderr) == bool(status)


@pytest.mark.process
@pytest.mark.parametrize(
    ("gpu", "own_index_has_it", "asked_for"),
    [
        (False, True, ["torch==X+cpu"]),
        (False, False, ["torch==X+cpu", "torch==X+cpu --extra-index-url https://download.pytorch.org/whl/cpu"]),
        (True, True, ["torch==X"]),
    ],
)
def test_torch_build_follows_the_machine(
    gpu: bool, own_index_has_it: bool, asked_for: list[str], tmp_path: Path
) -> None:
    """A stand-in for python records what pip is asked to install, and has no torch."""
    log = tmp_path / "log"
    refuse = "" if own_index_has_it else 'case "$*" in *extra-index*) ;; *) exit 1;; esac'
    script(tmp_path / "python", f'[ "$1" = -c ] && exit 1\necho "$*" >> {log}\n{refuse}')
    script(tmp_path / "nvidia-smi", f"exit {0 if gpu else 1}")
    subprocess.run(
        ["sh", ".ci/install-torch", str(tmp_path / "python")],
        cwd=ROOT,
        check=True,
        capture_output=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
    )
    version = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    said = [line.partition("constraints.txt ")[2] for line in log.read_text().splitlines()]
    assert said == [wanted.replace("torch==X", version) for wanted in asked_for]


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_links_in_documents_lead_somewhere() -> None:
    broken = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{path.name}: {target}")
    assert broken == []


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and a source archive of the tracked tree, built without a network."""
    work = tmp_path_factory.mktemp("build")
    listed = (
        subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        .stdout.decode()
        .split("\0")
    )
    for name in filter(None, listed):
        source, goal = ROOT / name, work / "tree" / name
        if source.is_symlink() or source.is_file():
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, goal, follow_symlinks=False)
    for kind in ("sdist", "wheel"):
        build = f"import sys; from setuptools import build_meta as b; b.build_{kind}(sys.argv[1])"
        subprocess.run([sys.executable, "-c", build, str(work)], cwd=work / "tree", check=True, capture_output=True)
    return work


LAB = "embodied_rl/benchmarks/lab/"
"""Makes the pages of docs/, which only a checkout has."""


def expected_files() -> set[str]:
    """Every file of the tracked package but `LAB`, with the links followed."""
    kept = set()
    for name in ("", *LINKED):
        folder = ROOT / name if name else ROOT / "embodied_rl"
        for path in folder.rglob("*"):
            inner = path.relative_to(folder).as_posix()
            linked = not name and inner.split("/")[0] in LINKED
            if path.is_file() and "__pycache__" not in inner and not linked:
                kept.add("/".join(filter(None, ["embodied_rl", name, inner])))
    return {name for name in kept if not name.startswith(LAB)}


def ignored(files: set[str]) -> set[str]:
    """Of these, what git ignores (stray outputs in a working tree)."""
    real = {file: "/".join(file.split("/")[1:]) if file.split("/")[1] in LINKED else file for file in files}
    said = subprocess.run(
        ["git", "check-ignore", "--stdin"],
        input="\n".join(real.values()),
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
    ).stdout.split("\n")
    return {file for file, path in real.items() if path in said}


@pytest.mark.process
def test_wheel_holds_every_file_as_a_real_file(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        inside = {info.filename for info in content.infolist() if info.filename.startswith("embodied_rl/")}
        links = [info.filename for info in content.infolist() if (info.external_attr >> 16) & 0o170000 == 0o120000]
    files = expected_files()
    assert files - ignored(files) - inside == set()
    assert links == []
    assert not [name for name in inside if name.endswith(".pyc") or name.startswith(LAB)]


def test_nothing_that_is_packaged_imports_what_is_not() -> None:
    found = []
    for name, path in modules():
        if not name.startswith("benchmarks.lab"):
            wanted = imported(ast.parse(path.read_text()))
            found += [f"{name}: {target}" for target in wanted if target.startswith("embodied_rl.benchmarks.lab")]
    assert found == []


@pytest.mark.process
def test_wheel_has_nothing_outside_the_package(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        tops = {name.split("/")[0] for name in content.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"embodied_rl"}


@pytest.mark.process
def test_source_archive_holds_real_files(archives: Path) -> None:
    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as content:
        members = {member.name.partition("/")[2]: member for member in content.getmembers()}
    assert not [member for member in members.values() if member.issym() or member.islnk()]
    assert "embodied_rl/sim/task.py" in members
    assert "LICENSE" in members


@pytest.mark.process
@pytest.mark.parametrize(("reachable", "tried"), [("own", 1), ("extra", 2), ("default", 3), ("nothing", 3)])
def test_torch_is_installed_from_whatever_index_can_be_reached(tmp_path: Path, reachable: str, tried: int) -> None:
    """The CPU build first, from two indexes, and in the end the default one, with a word of what that costs."""
    found = {"own": "1", "extra": "2", "default": "3", "nothing": "4"}[reachable]
    pip = f'[ "$1" = -c ] && exit 1\necho "$*" >> {tmp_path}/calls\ntest $(wc -l < {tmp_path}/calls) = {found}'
    for name, text in {"nvidia-smi": "exit 1", "python": pip}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    words = ["sh", ".ci/install-torch", str(tmp_path / "python")]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ["+cpu" in call for call in calls] == [True, True, False][:tried]
    assert ["--extra-index-url" in call for call in calls] == [False, True, False][:tried]
    assert (done.returncode == 0) == (reachable != "nothing")
    assert ("about 3 GB more to download" in done.stderr) == (tried == 3)
    assert (tmp_path / "torch-brings-cuda").exists() == (reachable == "default")

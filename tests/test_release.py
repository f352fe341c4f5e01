"""What a release says of itself agrees with itself; README's program and the notebook run."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import embodied_rl as erl
from embodied_rl.version import REPOSITORY, __version__
from tests.embodied_rl.test_imports import LINKED
from tests.test_docs_snippets import snippets
from tests.test_vocabulary import sources

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CELLS = json.loads((ROOT / "examples" / "tabletop.ipynb").read_text(encoding="utf-8"))["cells"]
TASKS = [
    f"pick_up_the_black_bowl_{where}_and_place_it_on_the_plate" for where in ("next_to_the_plate", "on_the_red_box")
]
TINY: dict[str, Any] = {
    "tasks": TASKS,
    "num_threads": 1,
    "videos": 1,
    "env": {"num_envs": 2},
    "algorithm": {"critic_warmup_iterations": 0},
    "rollout": {"episodes_per_iteration": 2},
    "evaluation": {"states_per_task": 1, "every": 0},
}


def test_address_version_and_name_are_the_same_everywhere() -> None:
    urls, citation = PROJECT["urls"], yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert urls["Homepage"] == citation["repository-code"] == citation["url"] == REPOSITORY
    assert [url for url in urls.values() if not url.startswith(REPOSITORY)] == []
    assert citation["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    assert [author["name"] for author in citation["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_one_line_tries_the_package() -> None:
    """`uvx NAME` and `pipx run NAME` start the program that has the package's name."""
    assert set(PROJECT["scripts"]) == {PROJECT["name"]}


def test_the_badge_of_the_tests_is_of_a_workflow_that_runs_on_main() -> None:
    badges = re.findall(rf'src="{REPOSITORY}/actions/workflows/([\w.]+)/badge\.svg\?branch=(\w+)"', _readme())
    assert badges == [("ci.yml", "main")]
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "branches: [main]" in workflow
    assert ".ci/run" in workflow


def test_the_readme_uses_no_word_of_the_house() -> None:
    """Each of these would need a word of explanation."""
    words = re.compile(r"Flow-SDE|Flow-Noise|FSDP2|fast frames|by `plan`|unnorm key|published era", re.IGNORECASE)
    assert words.findall(_readme()) == []


def test_the_image_copies_what_the_build_reads() -> None:
    copied = re.findall(r"^COPY (.+) \S+$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert names == {
        "pyproject.toml",
        PROJECT["readme"],
        *PROJECT["license-files"],
        "constraints.txt",
        "embodied_rl",
        *LINKED,
    }


def test_cores_are_counted_where_the_system_has_no_affinity() -> None:
    """As on macOS: `cpu_count` asks first, and so does LIBERO's installer."""
    asking = {str(path.relative_to(ROOT)) for path in sources() if "sched_getaffinity(" in path.read_text()}
    assert asking == {"embodied_rl/utils/machine.py", "sim/libero/install/export.py"}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Trainings are tiny, whatever a program asks for, and write into an empty folder."""
    real = erl.train
    monkeypatch.setattr(erl, "train", lambda recipe, **given: real(recipe, **{**given, **TINY, "iterations": 1}))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("quick")
def test_the_readmes_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = snippets(ROOT / "README.md")
    names = dict[str, Any]()
    exec(compile(program, "README.md", "exec"), names)
    names["env"].close()
    assert float(capsys.readouterr().out.split()[0]) == names["report"].overall.rate
    assert names["report"].overall.episodes == 10
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()


@pytest.mark.process
@pytest.mark.usefixtures("quick")
def test_the_notebook_runs_from_top_to_bottom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its cells one after the other, but for the one that installs the package."""
    films = list[str]()
    module: Any = ModuleType("IPython.display")
    module.Video, module.display = (lambda path, embed: films.append(path)), lambda film: None
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    install, *programs = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    assert install == f"%pip install -q {PROJECT['name']}"
    names = dict[str, Any]()
    for program in programs:
        exec(compile(program, "tabletop.ipynb", "exec"), names)
    assert [Path(film).stem for film in films] == [f"{TASKS[0]}-{when}" for when in ("after", "before")]
    assert all(Path(film).stat().st_size for film in films)
    assert re.search(r"^before +\d+% \(.*\) of 2 episodes\nafter +\d+% ", capsys.readouterr().out, re.MULTILINE)
    shutil.rmtree("runs")


def test_the_notebook_is_kept_without_outputs() -> None:
    assert [cell["id"] for cell in CELLS if cell.get("outputs") or cell.get("execution_count")] == []


def _readme() -> str:
    return (ROOT / "README.md").read_text(encoding="utf-8")

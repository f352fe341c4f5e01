"""What doctor says, and its exit code, for machines that lack something."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from embodied_rl.cli.doctor import main
from embodied_rl.errors import UserError
from embodied_rl.jobs import doctor
from embodied_rl.jobs.checks import CheckResult
from embodied_rl.sim.render import Probe
from tests import era_library
from tests.sim.libero.exported_tasks import install_fake


def test_exit_code_follows_problems_only(monkeypatch, capsys) -> None:
    monkeypatch.setattr(
        doctor, "CHECKS", [lambda: [CheckResult("a", "ok", "x"), CheckResult("b", "note", "y", "optional")]]
    )
    assert main([]) == 0
    assert "training can run" in capsys.readouterr().out
    monkeypatch.setattr(
        doctor, "CHECKS", [lambda: [CheckResult("a", "ok", "x"), CheckResult("bad", "problem", "y", "do z")]]
    )
    assert main([]) == 1
    out = capsys.readouterr().out
    assert "cannot run yet: bad" in out
    assert "do z" in out


@pytest.mark.process
def test_json_lists_every_check(capsys) -> None:
    code = main(["--json"])
    rows = json.loads(capsys.readouterr().out)
    names = {row["name"] for row in rows}
    assert {"python", "torch", "mujoco", "numba", "gpu", "renderer egl", "renderer osmesa", "renderer raycast"} <= names
    assert {"cores", "kernel cache", "LIBERO", "nano checkpoint", "renderer for tabletop"} <= names
    assert code == (1 if any(row["state"] == "problem" for row in rows) else 0)
    for row in rows:
        assert row["state"] == "ok" or row["advice"] or row["name"] == "gpu"


def test_each_optional_package_has_its_version_or_the_way_to_install_it(monkeypatch) -> None:
    versions = {"envpool": "1.2.5", "mujoco-warp": "4.0.0"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    rows = {row.name: row for row in doctor.optional()}
    assert (rows["EnvPool"].state, rows["EnvPool"].found) == ("ok", "envpool 1.2.5")
    half = rows["MuJoCo Warp"]
    assert (half.state, half.found) == ("note", "warp-lang not installed")
    assert half.advice.endswith("pip install 'embodied-rl[warp]'")
    assert {"ManiSkill", "gymnasium-robotics", "rl_games", "rsl_rl", "Ray"} <= rows.keys()
    declared = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    for row in rows.values():
        for extra in re.findall(r"embodied-rl\[(.*)\]", row.advice):
            assert extra in declared["optional-dependencies"]


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(UserError, match="--json"):
        main(["--jason"])


def test_no_gl_library_is_no_problem_for_the_tabletop(monkeypatch) -> None:
    missing = Probe("missing", "no library")
    monkeypatch.setattr("embodied_rl.sim.render.probe", lambda name: missing)
    from embodied_rl.sim.render import choose

    monkeypatch.setitem(choose.__globals__, "probe", lambda name: missing)
    rows = {row.name: row for row in doctor.renderers()}
    assert rows["renderer osmesa"].advice.endswith("apt-get install libosmesa6")
    assert rows["renderer for tabletop"].state == "ok"
    assert rows["renderer for tabletop"].found.startswith("raycast")
    assert rows["renderer for mesh scenes, exact"].state == "note"
    assert "libosmesa6" in rows["renderer for mesh scenes, exact"].advice


def test_libero_assets_are_found_where_the_variable_says(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    assert doctor.libero()[0].state == "note"
    install_fake(tmp_path / "libero")
    assert doctor.libero()[0].state == "ok"
    assert doctor.libero()[0].found.startswith("2 tasks")


def test_the_published_eras_are_tried_and_their_lack_is_a_note(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    monkeypatch.setattr("embodied_rl.sim.mujoco.era._in_use", [])
    (row,) = doctor.eras()
    assert row.state == "note"
    assert "embodied-rl assets install era" in row.found or "--env.physics-version current" in row.found
    if not era_library.missing():
        monkeypatch.undo()
        monkeypatch.setenv("EMBODIED_RL_CACHE", str(era_library.CACHE))
        (row,) = doctor.eras()
        assert row.state == "ok"


def test_little_memory_is_a_problem(monkeypatch) -> None:
    monkeypatch.setattr(doctor, "_available_memory_gb", lambda: 0.5)
    memory = next(row for row in doctor.machine() if row.name == "memory")
    assert memory.state == "problem"
    assert "close other programs" in memory.advice

"""`eval --perturb libero_plus` from the command to its report: really simulated, in the tabletop's scenes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.cli import main
from embodied_rl.factory.libero_plus import PlusPlan
from embodied_rl.sim.libero.install.plus import WHEEL
from embodied_rl.sim.libero.plus.catalogue import write_catalogue
from embodied_rl.sim.libero.protocol import PROTOCOLS
from embodied_rl.types import Array, EpisodeSpec
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake
from tests.sim.libero.plus_package import BASES, write_package


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    install_fake(tmp_path / "libero")
    return tmp_path / "libero"


@pytest.fixture
def plus(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With LIBERO-plus' package, and a short horizon."""
    write_catalogue(write_package(tmp_path / "wheel"), WHEEL.version, installed)
    short = replace(PROTOCOLS["libero_plus"], horizons=dict.fromkeys(PROTOCOLS["libero_plus"].horizons, 8))
    monkeypatch.setitem(PROTOCOLS, "libero_plus", short)
    return installed


def words(checkpoint: Path, folder: Path, *more: str) -> list[str]:
    return [
        *("eval", "libero", "--suite", "goal", "--checkpoint", str(checkpoint), "--output", str(folder)),
        *("--videos", "0", "--env.num-envs", "2", "--env.num-threads", "1", "--env.renderer", "raycast"),
        *("--no-at-end", "--env.physics-version", "current", *more),
    ]


def test_a_report_by_dimension(
    plus: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    degraded: list[tuple[EpisodeSpec, int, bool, bool]] = []
    own = PlusPlan.degrade

    def watch(plan: PlusPlan, spec: EpisodeSpec, step: int, frames: Array) -> None:
        frames[:, 100:150] = 200  # the stand-in's scenes are drawn black
        before = frames.copy()
        own(plan, spec, step, frames)
        degraded.append((spec, step, bool((frames[0] != before[0]).any()), bool((frames[1:] != before[1:]).any())))

    monkeypatch.setattr(PlusPlan, "degrade", watch)
    folder = tmp_path / "e"
    assert main(words(checkpoint, folder, "--protocol", "libero_plus", "--plus-tasks", "1")) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "as LIBERO-plus' tasks say" in said
    assert "not run: layout: 2 tasks lack confounding objects, 1 tasks lack an export" in said
    figures = json.loads((folder / "report.json").read_text())
    found = figures["libero_plus"]
    assert set(found["dimensions"]) == {"all", "camera", "robot", "language", "noise"}
    for name, row in found["dimensions"].items():
        assert row["pairs"] == row["perturbed"]["episodes"] == (4 if name == "all" else 1)
        assert row["low"] <= row["difference"] <= row["high"]
    assert found["left_out"]["background"] == {"table and wall textures": 4}
    assert [row["result"]["spec"]["task"] for row in found["unperturbed_episodes"]] == [NAME, OTHER]
    assert figures["overall"]["once"]["episodes"] == 4, "unperturbed episodes are no part of the score"
    assert figures["perturb"] == ["libero_plus"]
    assert len(figures["fingerprint"]["libero_plus"]) == 64
    changes = [row["perturbation"]["libero_plus"] for row in figures["episodes"]]
    assert {change["dimension"] for change in changes} == {"camera", "robot", "language", "noise"}
    noisy = {
        row["result"]["spec"]["episode_id"]
        for row, change in zip(figures["episodes"], changes, strict=True)
        if "noise" in change
    }
    assert len(noisy) == 1
    assert {spec.episode_id for spec, _, changed, _ in degraded if changed} == noisy, (
        "only these, and before the policy"
    )
    assert not any(others for *_, others in degraded), "the hand's camera stays clear"
    assert {step for _, step, *_ in degraded} >= {0}
    page = (folder / "report.html").read_text()
    assert "LIBERO-plus, by what is perturbed" in page
    assert "<td>noise</td>" in page


def test_the_same_again_and_other_words(plus: Path, checkpoint: Path, tmp_path: Path) -> None:
    """Fewer envs change nothing; clean instructions do."""
    rows = []
    for name, more in (("a", ()), ("b", ("--env.num-envs", "1")), ("c", ("--plus-instruction", "clean"))):
        folder = tmp_path / name
        chosen = ("--perturb", "libero_plus", "--plus-tasks", "1", "--tasks", BASES[0])
        assert main(words(checkpoint, folder, *chosen, *more)) == 0
        rows.append(json.loads((folder / "report.json").read_text()))
    assert rows[0]["protocol"]["name"] == "libero_plus", "what goes with it"
    first, second, clean = ([(row["result"], row["perturbation"]) for row in report["episodes"]] for report in rows)
    assert first == second
    said = [[change["libero_plus"]["instruction"] for _, change in report] for report in (first, clean)]
    assert any("initstate" in text for text in said[0])
    assert not any("initstate" in text for text in said[1])
    assert said[0][-2:] != said[1][-2:]


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            ("--protocol", "libero", "--perturb", "libero_plus"),
            "needs frames of 256 pixels, which protocol 'libero' has not",
        ),
        (("--perturb", "libero_plus", "camera"), "leave --perturb of other kinds out"),
        (("--perturb", "libero_plus", "--states-per-task", "3"), "leave --states-per-task out"),
        (("--plus-tasks", "3"), "--plus-tasks and --plus-instruction go with --perturb libero_plus"),
        (("--perturb", "libero_plus", "--plus-tasks", "0"), "--plus-tasks must be at least 1"),
    ],
)
def test_what_it_can_not_do_is_one_line(
    plus: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], line: str
) -> None:
    assert main(words(checkpoint, tmp_path / "e", *more)) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1


def test_without_the_package_a_line_says_how_to_get_it(
    installed: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(checkpoint, tmp_path / "e", "--perturb", "libero_plus")) == 2
    assert "LIBERO-plus is not installed in" in (said := capsys.readouterr().err)
    assert "run: embodied-rl assets install libero-plus" in said
    built_in = [*words(checkpoint, tmp_path / "e", "--perturb", "libero_plus")]
    built_in[1] = "tabletop"
    built_in.remove("--env.physics-version")
    built_in.remove("current")
    assert main(built_in) == 2
    assert "LIBERO-plus changes the suites libero_spatial" in capsys.readouterr().err

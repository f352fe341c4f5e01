"""`train libero` where LIBERO's bundles are installed: here the tabletop's scenes in that format, really simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.cli import main
from embodied_rl.cli.select import select
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.sim.libero.protocol import PROTOCOLS
from embodied_rl.sim.libero.tasks import load_task
from tests.sim.libero.bundles import NAME, install_fake


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    install_fake(tmp_path / "libero")
    return tmp_path / "libero"


def words(checkpoint: Path, run: Path, *more: str) -> list[str]:
    return [
        "train",
        "libero",
        "--suite",
        "libero_goal",
        "--tasks",
        NAME.partition("/")[2],
        "--policy.checkpoint",
        str(checkpoint),
        "--output",
        str(run),
        "--iterations",
        "1",
        "--env.num-envs",
        "2",
        "--rollout.episodes-per-iteration",
        "2",
        "--evaluation.states-per-task",
        "2",
        "--videos",
        "0",
        "--num-threads",
        "1",
        "--env.renderer",
        "raycast",
        "--env.era",
        "current",
        *more,
    ]


def test_the_official_suites_are_the_default_once_they_are_installed(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = select(["libero"]).config
    assert chosen is not None
    assert (chosen.suite, chosen.protocol) == ("libero_spatial", "libero")
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(installed / "nothing"))
    chosen = select(["libero"]).config
    assert chosen is not None
    assert (chosen.suite, chosen.protocol) == ("tabletop_spatial", "native")


def test_training_runs_the_protocol_and_never_the_evaluated_states(
    installed: Path,
    checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = replace(PROTOCOLS["libero"], horizons=dict.fromkeys(PROTOCOLS["libero"].horizons, 16))
    monkeypatch.setitem(PROTOCOLS, "libero", short)
    run = tmp_path / "run"
    assert main(words(checkpoint, run, "--env.render-quality", "exact")) == 0
    assert "instead" not in capsys.readouterr().out
    (stamp,) = json.loads((run / "run.json").read_text())
    assert stamp["protocol"] == "libero"
    assert "exact frames" in stamp["renderer"]
    assert stamp["overlap"].startswith("unknown"), "the start's provenance says nothing"
    evaluated = json.loads((run / "evaluations" / "iter-000000.json").read_text())
    assert {each["num_steps"] for each in evaluated["results"]} == {16}, "settle steps are not counted"


def test_training_on_the_evaluated_states_is_said_everywhere(installed: Path, checkpoint: Path, tmp_path: Path) -> None:
    known = tmp_path / "known"
    known.mkdir()
    for file in checkpoint.iterdir():
        (known / file.name).write_bytes(file.read_bytes())
    (known / "provenance.json").write_text(json.dumps({"train_states": {}}))
    (known / "checksums.json").unlink()
    task = load_task(installed, NAME)
    for split, sentence in (("train", "none: no evaluated episode (2)"), ("heldout", "2 of 2 episodes")):
        run = tmp_path / split
        assert main(words(known, run, "--train-states", split, "--protocol", "native")) == 0
        (stamp,) = json.loads((run / "run.json").read_text())
        assert stamp["overlap"].startswith(sentence)
        (policy,) = (run / "checkpoints").glob("*/policy")
        rows = list(task.heldout_states if split == "heldout" else task.train_states)
        assert read_provenance(policy)["train_states"] == {NAME: rows}


def test_libero_is_drawn_as_officially_and_the_tabletop_plainly(installed: Path) -> None:
    from embodied_rl.factory.envs import pick_render_quality
    from embodied_rl.sim.tabletop import load_suite

    official, ours = [load_task(installed, NAME)], load_suite("tabletop_goal")[:1]
    assert (pick_render_quality("auto", official), pick_render_quality("auto", ours)) == ("exact", "fast")
    assert (pick_render_quality("fast", official), pick_render_quality("exact", ours)) == ("fast", "exact")

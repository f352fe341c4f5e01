"""Which suite and tasks `train` takes: the user's, else those that the checkpoint was made for, else the recipe's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from embodied_rl.cli.select import select
from embodied_rl.config.train import TrainConfig


def _select(*words: str) -> TrainConfig:
    config = select(["tabletop", "--policy", "pi0", *words]).config
    assert config is not None
    return config


@pytest.fixture
def start(tmp_path: Path) -> Path:
    folder = tmp_path / "start"
    folder.mkdir()
    (folder / "provenance.json").write_text(json.dumps({"suite": "tabletop_spatial"}))
    return folder


def test_the_suite_of_a_checkpoint_is_trained_where_none_is_named(start: Path) -> None:
    for words in (["--policy.checkpoint", str(start)], [f"--policy.checkpoint={start}"]):
        config = _select(*words)
        assert (config.suite, config.tasks) == ("tabletop_spatial", ())
    config = _select("--policy.checkpoint", str(start), "--suite", "tabletop_object")
    assert (config.suite, config.tasks) == ("tabletop_object", ())
    config = _select("--policy.checkpoint", str(start), "--tasks", "a")
    assert (config.suite, config.tasks) == ("tabletop_spatial", ("a",))


def test_a_recipe_keeps_its_tasks_with_its_own_suite_only(start: Path, tmp_path: Path) -> None:
    recipe = _select()
    assert recipe.suite == "tabletop_goal"
    assert recipe.tasks
    assert _select("--suite", "tabletop_spatial").tasks == ()
    assert _select("--suite", "tabletop_goal").tasks == ()  # a suite that is named is meant as a whole
    for made_for in ("libero_spatial", "tabletop", None, 3):
        (start / "provenance.json").write_text(json.dumps({"suite": made_for}))
        config = _select("--policy.checkpoint", str(start))
        assert (config.suite, config.tasks) == (recipe.suite, recipe.tasks)


def test_a_file_names_the_suite_too(start: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    words = ["--config", str(file), "--policy.checkpoint", str(start)]
    file.write_text("suite: tabletop_object\n")
    config = _select(*words)
    assert (config.suite, config.tasks) == ("tabletop_object", ())
    file.write_text("suite: tabletop_object\ntasks: [x]\n")
    config = _select(*words)
    assert (config.suite, config.tasks) == ("tabletop_object", ("x",))

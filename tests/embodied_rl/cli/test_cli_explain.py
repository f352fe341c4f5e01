"""`embodied-rl explain`: which options are factors, what is written, and that bad input is one line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import pytest
import torch
import yaml

from embodied_rl.cli import main
from embodied_rl.config.env import MujocoConfig, scenes
from embodied_rl.factory.scenes import scene_envs
from embodied_rl.factory.view import View
from embodied_rl.sim.libero.protocol import protocol
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.studies.explain_config import factors, read_side, with_factor
from embodied_rl.types import ChunkResult, EpisodeSpec
from tests.embodied_rl.stand_in import StandIn


def open_world(tasks: Any, config: Any, view: View) -> StandIn:
    assert view.cameras is not None
    return StandIn(config.num_envs, view.image_size, view.cameras)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", open_world)


def side(path: Path, **options: Any) -> Path:
    path.write_text(yaml.safe_dump({"suite": "tabletop_object"} | options))
    return path


def test_every_difference_is_one_factor_and_changes_that_alone(tmp_path: Path) -> None:
    first = read_side(side(tmp_path / "a.yaml", mode="greedy", env={"num_envs": 2}))
    second = read_side(
        side(
            tmp_path / "b.yaml",
            protocol="openvla",
            settle_steps=3,
            max_steps=7,
            flip_gripper=True,
            mode="sample",
            perturb=["light"],
            env={"renderer": "raycast"},
        )
    )
    found = factors(first, second)
    names = [factor.name for factor in found]
    assert names == ["mode", "env.renderer", "pictures", "settling", "horizon", "perturbed", "gripper sign"]
    command, protocol = first.command, first.protocol()
    for factor in found:
        changed, chosen = with_factor(first, second, factor.name)
        assert all(factor.words())
        moved = [
            changed.command.mode != command.mode,
            scenes(changed.command.env).renderer != scenes(command.env).renderer,
            (chosen.images, chosen.render_size) != (protocol.images, protocol.render_size),
            chosen.settle_steps != protocol.settle_steps,
            chosen.horizons != protocol.horizons,
            changed.command.perturb != command.perturb,
            changed.changes.flip_gripper,
        ]
        assert moved == [name == factor.name for name in names]
    assert with_factor(first, second, "settling")[1].settle_steps == 3
    assert with_factor(first, second, "horizon")[1].horizons == {"object": 7}


def test_a_picture_pipeline_brings_the_frames_that_it_needs(tmp_path: Path) -> None:
    plain = read_side(side(tmp_path / "a.yaml", protocol="openvla", images="as_rendered")).protocol()
    resized = read_side(side(tmp_path / "b.yaml", images="openpi")).protocol()
    assert (plain.render_size, resized.render_size) == (None, 256)


@pytest.mark.usefixtures("world")
def test_pictures_are_mirrored_where_a_protocol_mirrors_them_at_the_policys_size() -> None:
    """As LeRobot does; a policy that was trained so sees another world otherwise."""
    spec = EpisodeSpec(0, "tabletop_object/x", 60, 1)
    seen = []
    for name in ("native", "lerobot"):
        chosen = replace(protocol(name), settle_steps=0)
        config = MujocoConfig(num_envs=1, num_threads=1, renderer="raycast")
        with scene_envs([], config, View(image_size=32, protocol=chosen, judged=True)) as env:
            env.reset([0], [spec])
            obs = env.new_observation(1)
            env.observe([0], obs)
            seen.append(obs.images.clone())
    assert torch.equal(seen[0].flip(3), seen[1])
    assert not torch.equal(seen[0], seen[1])


@pytest.mark.usefixtures("world")
def test_two_files_are_explained_with_pictures(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"checkpoint": str(checkpoint), "env": {"num_envs": 2}}
    first = side(tmp_path / "mine.yaml", **common)
    second = side(tmp_path / "theirs.yaml", **common, images="lerobot", seed=4)
    out = tmp_path / "out"
    assert main(["explain", str(first), str(second), "--episodes", "16", "--output", str(out)]) == 0
    found = json.loads((out / "explain.json").read_text())
    assert {row["factor"] for row in found["factors"]} == {"pictures", "seed"}
    assert found["episodes"] == 4
    assert found["everything"]["episodes"] == 4
    for row in found["factors"]:
        if row["picture"]:
            picture = cv2.imread(str(out / row["picture"]))
            assert picture is not None
            assert picture.shape[0] == 2 * 264
    page = (out / "explain.html").read_text()
    assert page.count("data:image/png") == sum(row["picture"] is not None for row in found["factors"])
    assert "<td>everything</td>" in page
    said = capsys.readouterr().out
    assert "the same 4 episodes each time" in said
    assert max(map(len, said.splitlines()[:-1])) <= 80  # the last names a folder
    assert " as_rendered, " in said


@pytest.mark.usefixtures("world")
def test_perturbations_are_changed_one_by_one_on_the_same_states(checkpoint: Path, tmp_path: Path) -> None:
    first = side(tmp_path / "mine.yaml", checkpoint=str(checkpoint), env={"num_envs": 2})
    out = tmp_path / "out"
    words = ["explain", str(first), "--perturb", "instruction", "light", "--episodes", "6", "--output", str(out)]
    assert main(words) == 0
    found = json.loads((out / "explain.json").read_text())
    assert [row["factor"] for row in found["factors"]] in (["instruction", "light"], ["light", "instruction"])
    assert found["everything"] is None
    assert {row["episodes"] for row in found["factors"]} == {2}
    assert {row["verdict"] for row in found["factors"]} == {"not decided"}
    assert '<p class="headline">Not decided</p>' in (out / "explain.html").read_text()


class Dark(StandIn):
    """Whatever is done succeeds, but nothing where perturbations do harm."""

    harmful = False

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        return super().step(env_ids, torch.full_like(actions, -1.0 if self.harmful else 1.0))


def test_a_perturbation_that_is_decided_early_runs_no_further_episodes(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Light always fails, 8 of 8 pairs at the first of two looks: 2 of 256 sign vectors. Words change nothing."""

    def open_dark(tasks: Any, config: Any, view: View) -> Dark:
        assert view.cameras is not None
        env = Dark(config.num_envs, view.image_size, view.cameras)
        env.harmful = "#" in tasks[0].name and tasks[0].instruction == plain
        return env

    plain = load_suite("tabletop_object")[0].instruction
    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", open_dark)
    first = side(tmp_path / "mine.yaml", checkpoint=str(checkpoint), env={"num_envs": 2})
    out = tmp_path / "out"
    words = ["explain", str(first), "--perturb", "instruction", "light", "--episodes", "48", "--looks", "2"]
    assert main([*words, "--output", str(out)]) == 0
    found = {row["factor"]: row for row in json.loads((out / "explain.json").read_text())["factors"]}
    assert (found["light"]["verdict"], found["light"]["episodes"]) == ("worse", 8)
    assert (found["instruction"]["verdict"], found["instruction"]["episodes"]) == ("not decided", 16)
    assert "at level 0.05 for all together: light worse (8 episodes)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("first", "second", "more", "message"),
    [
        ({}, {}, "", "the same options"),
        ({}, {"suite": "tabletop_goal"}, "", "but suite is"),
        ({}, {"checkpoint": "x"}, "", "but checkpoint is"),
        ({}, {"suite": "object"}, "", "write its whole name"),
        ({}, {"images": "jpeg"}, "", "unknown image pipeline"),
        ({}, {"max_steps": 0}, "", "max_steps must be at least 1"),
        ({}, {"protocl": "openvla"}, "", "Did you mean 'protocol'"),
        ({}, None, "", "takes two evaluations"),
        ({}, None, "--perturb lite", "unknown kind 'lite'"),
        ({"perturb": ["light"]}, None, "--perturb light", "is perturbed already"),
        ({}, {"seed": 1}, "--episodes 0", "--episodes must be at least 1"),
        ({}, {"seed": 1}, "--looks 3", "--looks goes with --perturb"),
        ({}, None, "--perturb light --looks 0", "--looks must be at least 1"),
    ],
)
def test_bad_input_is_one_line(
    first: dict[str, Any],
    second: dict[str, Any] | None,
    more: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [side(tmp_path / "a.yaml", **first)]
    if second is not None:
        paths.append(side(tmp_path / "b.yaml", **second))
    assert main(["explain", *map(str, paths), "--output", str(tmp_path / "out"), *more.split()]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert not (tmp_path / "out").exists()

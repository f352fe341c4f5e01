"""`embodied-rl leaderboard`: the same bytes however often it is killed, who is ranked, bad input in one line."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch
import yaml

from embodied_rl.cli import main
from embodied_rl.factory.view import View
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.studies.leaderboard import evaluations_of
from embodied_rl.studies.leaderboard_config import read_leaderboard
from embodied_rl.telemetry.metrics import MetricsLog
from embodied_rl.types import ChunkResult, EpisodeSpec
from tests.embodied_rl.stand_in import StandIn

TASKS = load_suite("tabletop_object")[:2]
SHORT = [task.name.partition("/")[2] for task in TASKS]


class Killed(BaseException):
    """As abrupt as a kill: nobody catches it."""


class World(StandIn):
    """A stand-in whose policies differ for good: success where their first action is above a bound."""

    started: list[EpisodeSpec] = []  # noqa: RUF012
    kill = -1
    broken: tuple[str, int] | None = None
    """Task and initial state that break the simulator."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._doomed: dict[int, bool] = {}

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        World.started += episodes
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._doomed[env_id] = (spec.task, spec.init_state) == World.broken

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        World.kill -= 1
        if World.kill == 0:
            raise Killed
        result = super().step(env_ids, actions)
        result.failed |= torch.tensor([self._doomed.get(env_id, False) for env_id in env_ids])
        return result


def open_world(tasks: Any, config: Any, view: View) -> World:
    assert view.cameras is not None
    return World(config.num_envs, view.image_size, view.cameras)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> type[World]:
    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", open_world)
    World.started, World.kill, World.broken = [], -1, None
    return World


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two policies that move to either side and say what they trained on, and one that trained on evaluated states."""
    from embodied_rl.policies.openvla.checkpoint import save_policy
    from embodied_rl.policies.openvla.config import nano
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy

    found = {}
    for name, seen in (("left", {}), ("right", {}), ("cheat", {TASKS[0].name: [int(TASKS[0].heldout_states[0])]})):
        policy = OpenVLAPolicy.fresh(nano(), ["pick up the mug"], seed=len(found))
        found[name] = str(tmp_path_factory.mktemp("weights") / name)
        save_policy(policy, Path(found[name]), {"train_states": seen})
    return found


def config(folder: Path, checkpoints: dict[str, Any], **more: Any) -> Path:
    path = folder / "board.yaml"
    options = {
        "suites": ["tabletop_object"],
        "states_per_task": 4,
        "looks": 2,
        "videos": 0,
        "env": {"num_envs": 3},
    } | more
    path.write_text(yaml.safe_dump({"title": "A <board>", "checkpoints": checkpoints, **options}))
    return path


def untimed(folder: Path) -> str:
    """The page without its speed, which no repetition repeats."""
    page, count = re.subn(r'<section id="speed">.*?</section>', "", (folder / "index.html").read_text(), flags=re.S)
    assert count == 1
    return page


def figures(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "leaderboard.json").read_text())


def test_the_same_bytes_twice_and_after_kills(
    world: type[World], rows: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, rows, states_per_task=2)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert main(["leaderboard", str(path), "--output", str(whole)]) == 0
    count = len(world.started)
    assert main(["leaderboard", str(path), "--output", str(whole)]) == 0
    assert len(world.started) == count
    for kill in (3, 9):
        world.kill = kill
        with contextlib.suppress(Killed):
            main(["leaderboard", str(path), "--output", str(killed)])
    torn = next(killed.glob("cells/*/*/episodes.jsonl"))
    with torn.open("ab") as file:
        file.write(b'{"result": {"spec"')
    world.kill = -1
    assert main(["leaderboard", str(path), "--output", str(killed)]) == 0
    assert (whole / "leaderboard.json").read_bytes() == (killed / "leaderboard.json").read_bytes()
    assert untimed(whole) == untimed(killed)
    assert "page: " in capsys.readouterr().out


def test_a_state_that_breaks_the_simulator_is_not_measured_in_any_row_nor_tried_again(
    world: type[World], rows: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world.broken = (TASKS[1].name, int(TASKS[1].heldout_states[0]))
    path, out = config(tmp_path, {name: rows[name] for name in ("left", "right")}), tmp_path / "out"
    assert main(["leaderboard", str(path), "--output", str(out)]) == 0
    said, count = capsys.readouterr().out, len(world.started)
    assert said.count("not measured: 1 of ") == 2
    found = figures(out)
    assert {row["success"]["not_measured"] for row in found["rows"]} == {1}
    assert {row["tasks"][TASKS[1].name]["not_measured"] for row in found["rows"]} == {1}
    episodes = {row["success"]["episodes"] for row in found["rows"]}
    assert {pair["pairs"] for pair in found["comparisons"]} == episodes
    assert "not measured: 1 of" in (out / "index.html").read_text()
    assert main(["leaderboard", str(path), "--output", str(out)]) == 0
    assert len(world.started) == count
    assert figures(out) == found


def test_a_row_that_trained_on_evaluated_states_is_shown_and_not_ranked(
    world: type[World], rows: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["leaderboard", str(config(tmp_path, rows)), "--output", str(out)]) == 0
    found = figures(out)
    cheat = next(row for row in found["rows"] if row["name"] == "cheat")
    states = sum(len(task.heldout_states[:4]) for task in load_suite("tabletop_object"))
    assert (cheat["rank"], cheat["not_ranked"]) == (None, f"trained on 1 of its {states} evaluated states: not ranked")
    assert {(row["first"], row["second"]) for row in found["comparisons"]} == {("left", "right")}
    assert found["rows"][-1] is cheat
    # one policy always succeeds and one never: the first look decides, and only the row that is not ranked goes on
    assert found["comparisons"][0]["verdict"] != "not decided"
    assert {row["name"]: row["success"]["episodes"] for row in found["rows"]} == {
        "left": states // 2,
        "right": states // 2,
        "cheat": states,
    }
    assert sorted(row["rank"] for row in found["rows"][:2]) == [1, 2]
    for row in found["rows"]:
        total = row["success"]
        assert total["episodes"] == sum(score["episodes"] for score in row["tasks"].values())
        assert -1e-9 <= total["low"] - 1e-9 <= total["rate"] <= total["high"] <= 1
        assert row["motion"]["path_length"] > 0
        for cell in row["cells"]:
            assert (out / cell["folder"] / "episodes.jsonl").is_file()


def test_several_checkpoints_of_a_row_and_several_seeds_are_pooled(
    world: type[World], rows: dict[str, str], tmp_path: Path
) -> None:
    board = {"one": rows["left"], "two": [rows["left"], rows["right"]]}
    out = tmp_path / "out"
    path = config(tmp_path, board, seeds=[0, 1], states_per_task=1, looks=1, mode="sample")
    assert main(["leaderboard", str(path), "--output", str(out)]) == 0
    counts = {row["name"]: row["success"]["episodes"] for row in figures(out)["rows"]}
    assert counts["two"] == 2 * counts["one"]
    assert figures(out)["comparisons"][0]["pairs"] == counts["one"] // 2


def test_the_page_opens_offline_and_says_all_without_its_script(
    world: type[World], rows: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert main(["leaderboard", str(config(tmp_path, rows, states_per_task=1, videos=1)), "--output", str(out)]) == 0
    page = (out / "index.html").read_text()
    assert not re.search(r"href=|https?://|url\(", page)
    videos = re.findall(r'src="([^"]*)"', page)
    assert videos
    for video in videos:
        assert (out / unquote(video)).is_file()
    timed = json.loads((out / "speed.json").read_text())["rows"]
    for row in figures(out)["rows"]:
        assert timed[row["name"]]["decisions_per_s"] > 0
        assert timed[row["name"]]["decisions"] == sum(
            json.loads(line)["result"]["num_decisions"]
            for cell in row["cells"]
            for line in (out / cell["folder"] / "episodes.jsonl").read_text().splitlines()
        )
    assert "A &lt;board&gt;" in page
    assert "<board>" not in page
    for row in figures(out)["rows"]:
        assert f"{row['success']['rate']:.1%} ({row['success']['successes']}/" in page
    assert "@media(max-width" in page
    assert ":focus-visible" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("suites: [tabletop_object]", "'checkpoints' must name at least one"),
        ("checkpoints: {a: nowhere/at/all}", "no checkpoint at nowhere/at/all"),
        ("checkpoints: {a: shipped}\nsuits: [x]", "unknown key 'leaderboard.suits'. Did you mean 'suites'"),
        ("checkpoints: {a: shipped}\nsuites: [tabletop_spatail]", "unknown suite"),
        ("checkpoints: {a: shipped}\nsuites: [gym]", "unknown suite 'gym'"),
        ("checkpoints: {'../a': shipped}", "cannot name a row"),
        ("checkpoints: {a: shipped}\nlooks: 0", "looks must be at least 1"),
        ("checkpoints: {a: shipped}\nvideos: -1", "videos must be at least 0"),
        ("checkpoints: {a: shipped}\ncompare: speed", "leaderboard.compare"),
        ("checkpoints: {a: shipped, b: shipped}\ncompare: seeds", "none has several"),
        ("checkpoints: {a: [shipped, shipped], b: [shipped, shipped, shipped]}\ncompare: seeds", "a 2, b 3"),
        ("checkpoints: {a: [shipped, shipped], b: [shipped, shipped]}\ncompare: seeds", "take more seeds"),
        ("checkpoints: {a: shipped}\nprotocol: opnvla", "unknown protocol"),
        ("checkpoints: {a: shipped}\nenv: {num_env: 3}", "unknown key 'env.num_env'"),
        ("- 1", "must hold keys and values"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(text)
    assert main(["leaderboard", str(path), "--output", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "\n" not in said
    assert not (tmp_path / "out").exists()


def test_a_board_does_not_mix_two_questions(world: type[World], rows: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    left = {"left": rows["left"]}
    assert main(["leaderboard", str(config(tmp_path, left, states_per_task=1)), "--output", str(out)]) == 0
    assert figures(out)["rows"][0]["rank"] == 1
    assert main(["leaderboard", str(config(tmp_path, left, states_per_task=2)), "--output", str(out)]) == 2


def test_recipes_are_ranked_over_training_seeds_and_decided_ones_run_no_further_seeds(
    world: type[World], rows: dict[str, str], tmp_path: Path
) -> None:
    """One policy always succeeds and one never: the first look, after 3 of 5 seeds, finds it in 2 of 20 ways."""
    recipes = {"left": [rows["left"]] * 5, "right": [rows["right"]] * 5, "one": rows["left"]}
    path = config(tmp_path, recipes, compare="seeds", states_per_task=1, level=0.25)
    out = tmp_path / "out"
    assert main(["leaderboard", str(path), "--output", str(out)]) == 0
    found = figures(out)
    (comparison,) = found["comparisons"]
    by_name = {row["name"]: row for row in found["rows"]}
    winner = max(("left", "right"), key=lambda name: by_name[name]["success"]["rate"])
    assert comparison["verdict"] == ("better" if comparison["first"] == winner else "worse")
    assert comparison["pairs"] == 3
    assert {name: len(row["cells"]) for name, row in by_name.items()} == {"left": 3, "right": 3, "one": 1}
    assert by_name["one"]["not_ranked"] == "a single training seed: not ranked"
    assert by_name[winner]["seeds"]["rates"] == [1.0, 1.0, 1.0]
    assert found["test"]["unit"] == "training seeds"
    assert "over training seeds" in found["test"]["speaks_of"]
    assert "3 training seeds: 100.0% to 100.0%" in (out / "index.html").read_text()


@pytest.mark.process
def test_processes_side_by_side_write_the_same_bytes(tmp_path: Path) -> None:
    """The real simulator and the policy in the package: neither can be replaced in another process."""
    board = {"one": "shipped", "two": "shipped"}
    path = config(tmp_path, board, suites=["tabletop_spatial"], states_per_task=1, looks=1)
    for jobs in ("1", "2"):
        assert main(["leaderboard", str(path), "--output", str(tmp_path / jobs), "--jobs", jobs]) == 0
    assert (tmp_path / "1" / "leaderboard.json").read_bytes() == (tmp_path / "2" / "leaderboard.json").read_bytes()
    assert untimed(tmp_path / "1") == untimed(tmp_path / "2")
    assert json.loads((tmp_path / "2" / "speed.json").read_text())["rows"]["one"]["jobs"] == 2
    assert main(["leaderboard", str(path), "--jobs", "0"]) == 2


def test_a_training_run_brings_its_curve(world: type[World], rows: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(rows["left"], run / "policy")
    with MetricsLog(run / "metrics.jsonl") as log:
        log.write(0, {"eval/success": 0.25, "eval/success_ci_low": 0.1, "eval/success_ci_high": 0.4})
        log.write(1, {"rollout/episodes": 8, "rollout/success": 0.5})
        log.write(1, {"eval/success": 0.75, "eval/success_ci_low": 0.6, "eval/success_ci_high": 0.9})
    path = config(tmp_path, {"run": str(run), "bare": rows["right"]}, states_per_task=1)
    assert main(["leaderboard", str(path), "--output", str(tmp_path / "out")]) == 0
    training = {row["name"]: row["training"] for row in figures(tmp_path / "out")["rows"]}
    assert training["bare"] == []
    assert training["run"][0]["held_out"] == [[0.0, 0.25, 0.1, 0.4], [8.0, 0.75, 0.6, 0.9]]
    assert "8 episodes: 75.0% (60.0% to 90.0%)" in (tmp_path / "out" / "index.html").read_text()


def test_the_example_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ppo", "grpo"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    board = read_leaderboard(Path(__file__).parents[3] / "examples" / "leaderboard.yaml")
    assert list(board.checkpoints) == ["start", "ppo", "grpo"]
    assert len(evaluations_of(board, tmp_path)) == 3

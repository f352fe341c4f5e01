"""`embodied-rl eval --keep`: the same results to the last bit, the same store after a kill, and its data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.cli import main
from embodied_rl.data.episodes import EpisodeStore, open_store
from embodied_rl.data.lerobot import load
from embodied_rl.jobs.eval_request import BenchmarkCommand, request_of
from embodied_rl.training.filtered_bc import STORE
from tests.embodied_rl.cli.test_cli_eval import World, open_world


@pytest.fixture(autouse=True)
def world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", open_world)
    World.started, World.sizes, World.interrupt = [], [], -1


def words(folder: Path, *more: str) -> list[str]:
    start = ["eval", "tabletop", "--suite", "object", "--states-per-task", "2", "--videos", "0", "--env.num-envs", "3"]
    return [*start, "--output", str(folder), *more]


def results(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "episodes.jsonl").read_text().splitlines()]
    return sorted(rows, key=lambda row: row["result"]["spec"]["episode_id"])


def assert_same_stores(one: Path, two: Path) -> None:
    first, second = (open_store(folder / STORE) for folder in (one, two))
    assert first.keys() == second.keys()
    assert [first.info(key) for key in first.keys()] == [second.info(key) for key in second.keys()]  # noqa: SIM118
    count = len(first.keys())
    a, b = first.at(count), second.at(count)
    np.testing.assert_array_equal(a.images[:], b.images[:])
    np.testing.assert_array_equal(a.state, b.state)
    np.testing.assert_array_equal(a.action, b.action)
    np.testing.assert_array_equal(a.columns.decision, b.columns.decision)


def test_results_are_equal_with_and_without_and_a_kill_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, kept, cut = (tmp_path / name for name in ("plain", "kept", "cut"))
    assert main(words(plain)) == 0
    assert not (plain / STORE).exists()
    assert main(words(kept, "--keep")) == 0
    assert results(kept) == results(plain)
    reports = [json.loads((folder / "report.json").read_text()) for folder in (plain, kept)]
    assert reports[0]["overall"] == reports[1]["overall"]
    store = open_store(kept / STORE)
    infos = [store.info(key) for key in store.keys()]  # noqa: SIM118
    assert [info.success for info in infos] == [int(row["result"]["success"]) for row in results(plain)]
    assert len({info.policy for info in infos}) == 1
    assert store.at(len(infos)).columns.decision.max() > 0

    add, kills = EpisodeStore.add, iter([False] * 4 + [True] + [False] * 99)

    def dies_after_storing(self: EpisodeStore, *stored: Any) -> bool:
        added = add(self, *stored)
        if next(kills):
            raise KeyboardInterrupt  # before the episode counts as finished
        return added

    monkeypatch.setattr(EpisodeStore, "add", dies_after_storing)
    assert main(words(cut, "--keep")) == 130
    assert len(results(cut)) == 4
    assert len(open_store(cut / STORE).keys()) == 5
    assert main(["eval", "--resume", str(cut)]) == 0
    assert results(cut) == results(plain)
    assert_same_stores(kept, cut)

    capsys.readouterr()
    out = tmp_path / "day1"
    assert main(["export", str(kept), "--to", "lerobot", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"wrote {out}: {len(infos)} episodes\n"
    data = load(out)
    assert data.source["suite"] == "tabletop_object"
    assert data.source["split"] == "heldout"
    assert int(data.success.sum()) == sum(info.ends_in_success for info in infos)
    assert {tuple(rows) for rows in data.source["train_states"].values()} == {(50, 51)}


def test_what_was_evaluated_before_goes_on(tmp_path: Path) -> None:
    """Its request, which a resume compares, says nothing of episodes that are not kept."""
    assert "keep" not in request_of("tabletop", BenchmarkCommand())["options"]
    assert request_of("tabletop", BenchmarkCommand(keep=True))["options"]["keep"] is True


def test_a_quick_look_keeps_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--keep"]) == 2
    assert "--keep: a quick look keeps nothing; name a folder with --output" in capsys.readouterr().err


def test_a_folder_without_kept_episodes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plain").mkdir()
    assert main(["export", str(tmp_path / "plain"), "--to", "lerobot", "--out", str(tmp_path / "day1")]) == 2
    assert "and evaluations with --keep" in capsys.readouterr().err

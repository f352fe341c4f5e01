"""`embodied-rl watch` from episodes to a file and a table, again from kept ones; what it refuses, in a line each."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.data import writer
from embodied_rl.data.layout import DatasetSpec, Episode
from embodied_rl.evaluation.detector import load_detector
from embodied_rl.factory.policies import open_policy
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.training.filtered_bc import weights_digest
from tests.embodied_rl import stand_in
from tests.embodied_rl.stand_in import StandIn

TASKS = [task.name for task in load_suite("tabletop_spatial")][:2]
WORDS = [name.partition("/")[2].replace("_", " ") for name in TASKS]
CAMERAS = ("agentview", "robot0_eye_in_hand")
LENGTH = 24


def open_world(tasks: object, config: object, view: object) -> StandIn:
    return StandIn(config.num_envs, view.image_size, view.cameras)  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def world() -> Iterator[None]:
    """Twelve decisions an episode."""
    torch.set_num_threads(1)  # as in every test: another number rounds otherwise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embodied_rl.factory.scenes._simulated", open_world)
        patch.setattr(stand_in, "HORIZON", 48)
        yield


def collected(out: Path, words: list[str], about: dict[str, object]) -> Path:
    """Demonstrations of noise, as `collect` writes them."""
    draw = np.random.default_rng(0)
    state_names, action_names = (tuple(f"{kind}{k}" for k in range(count)) for kind, count in (("s", 8), ("a", 7)))
    spec = DatasetSpec(CAMERAS, 64, state_names, action_names)
    partial = writer.begin(out, {})
    for key, instruction in enumerate(words):
        images = draw.integers(0, 256, (LENGTH, 2, 64, 64, 3), dtype=np.uint8)
        state, action = (draw.normal(0, 0.3, (LENGTH, count)).astype(np.float32) for count in (8, 7))
        writer.add_episode(partial, spec, Episode(key, instruction, images, state, action, action))
    writer.finalize(out, spec, {"suite": "tabletop_spatial", "split": "train", "expert": "scripted", **about})
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with demonstrations, a detector, its figures and its episodes."""
    folder = tmp_path_factory.mktemp("watch")
    collected(folder / "demos", WORDS, {"tasks": TASKS, "train_states": {}})
    assert main(command(folder, "--json", str(folder / "d.json"))) == 0
    return folder


def command(folder: Path, *more: str) -> list[str]:
    start = ["watch", "shipped", "--demos", str(folder / "demos"), "--episodes", "24", "--device", "cpu"]
    return [*start, "--out", str(folder / "d.safetensors"), *more]


def test_a_detector_is_made_from_episodes_and_again_from_the_same(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = load_detector(made / "d.safetensors")
    assert detector.kind == "steps_to_go"
    assert detector.policy == weights_digest(open_policy("shipped", "cpu"))
    assert set(detector.limits) == set(WORDS)
    assert detector.states is not None
    assert len(detector.states.to_go) == 2 * LENGTH / detector.chunk_len
    assert detector.states.to_go.max() == LENGTH / detector.chunk_len
    said = json.loads((made / "d.json").read_text())
    assert [row["kind"] for row in said["figures"]] == ["clock", "nearest", "steps_to_go"]
    assert said["limits"]["steps_to_go"] == detector.limits
    assert (said["calibration"], said["test"]) == (12, 12)
    assert detector.facts["figures"] == said["figures"][2]
    before = (made / "d.safetensors").read_bytes()

    def never(*_: object) -> None:
        raise AssertionError("no episode runs again")

    monkeypatch.setattr(StandIn, "step", never)
    capsys.readouterr()
    assert main(command(made)) == 0
    out = capsys.readouterr().out
    assert "nearest" in out
    assert "12 episodes that did not calibrate" in out
    assert (made / "d.safetensors").read_bytes() == before
    kept = ["--kept", str(made / "d.safetensors-episodes"), "--demos", str(made / "demos")]
    clock = tmp_path / "clock.safetensors"
    assert main(["watch", *kept, "--detector", "clock", "--out", str(clock)]) == 0
    assert load_detector(clock).states is None
    assert set(load_detector(clock).limits.values()) == {12.0}, "as many decisions as its longest success"


def test_episodes_of_another_policy_are_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = load_detector(made / "d.safetensors").policy
    monkeypatch.setattr("embodied_rl.jobs.watch.weights_digest", lambda policy: "f" * 64)
    kept = ["--kept", str(made / "d.safetensors-episodes"), "--demos", str(made / "demos")]
    assert main(["watch", *kept, "--out", str(tmp_path / "d")]) == 2
    error = capsys.readouterr().err
    assert "shipped is not the policy whose episodes" in error
    assert f"{digest[:12]} (here ffffffffffff)" in error
    assert not (tmp_path / "d").exists()


def test_what_was_evaluated_otherwise_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["eval", "tabletop", "--suite", "spatial", "--task", TASKS[0].partition("/")[2], "--states-per-task", "1"]
    rest = ["--videos", "0", "--env.num-envs", "1"]
    held_out = "embodied_rl.jobs.evaluation_setup.trained_states"
    for more, said in (
        (["--keep"], "--keep --no-at-end"),
        ([], "kept no episodes: evaluate with --keep"),
        (["--keep", "--no-at-end"], "1 of the episodes in"),
    ):
        monkeypatch.setattr(held_out, lambda provenance: {TASKS[0]: [50]})
        folder = tmp_path / f"e{len(more)}"
        assert main([*words, *rest, *more, "--output", str(folder)]) == 0
        capsys.readouterr()
        kept = ["watch", "--kept", str(folder), "--demos", str(made / "demos"), "--out", str(tmp_path / "d")]
        assert main(kept) == 2
        assert said in capsys.readouterr().err
    episodes = folder / "episodes.jsonl"
    episodes.write_text("")
    assert main(kept) == 2
    assert "has 0 of its 1 episode: finish it with embodied-rl eval --resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shipped"], "name them with --demos DATA"),
        (["--demos", "demos"], "a checkpoint, or --kept with an evaluation's folder: one of them"),
        (["shipped", "--kept", "k", "--demos", "demos"], "a checkpoint, or --kept"),
        (["--kept", "k", "--demos", "demos", "--seed", "3"], "--seed is of episodes that are run"),
        (["--kept", "k", "--demos", "demos"], "k is not the folder of an evaluation"),
        (["shipped", "--demos", "demos", "--episodes", "9"], "2 tasks share them, with 4 or more each: give 8"),
        (["shipped", "--demos", "demos", "--episodes", "2"], "give 8"),
        (["shipped", "--demos", "foreign"], "does not say which tasks it shows"),
        (["shipped", "--demos", "nothing"], "nothing"),
    ],
)
def test_wrong_words_are_one_line(
    words: list[str],
    said: str,
    made: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demos").symlink_to(made / "demos")
    if "foreign" in words:
        collected(tmp_path / "foreign", WORDS[:1], {})
    assert main(["watch", *words, "--out", "d"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "d").exists()

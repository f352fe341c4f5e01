"""`train --data`: from data sets to a run folder without a simulator; what is imitated, exact resume, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import embodied_rl as erl
from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.cli import main
from embodied_rl.cli.select import select
from embodied_rl.config.train import TrainConfig, as_offline, load_yaml
from embodied_rl.data import layout, lerobot
from embodied_rl.data.episodes import EpisodeInfo, EpisodeStore
from embodied_rl.data.layout import ACTION_NAMES, PROPRIO_NAMES, DatasetSpec, Episode
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import load_policy, policy_folder, save_policy
from embodied_rl.jobs import ranks, train_setup
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.training.filtered_bc import own_successes
from embodied_rl.training.offline import NoSimulator
from tests.embodied_rl.jobs.test_train_demos import CAMERAS, INFO, collected, policy

LENGTH = 6
SUCCESS, FAILURE, HELPED, UNKNOWN = (1, False), (0, False), (0, True), (-1, False)
DAY = (SUCCESS, FAILURE, HELPED, UNKNOWN, SUCCESS)


def day(
    out: Path, episodes: tuple[tuple[int, bool], ...] = DAY, *, first: int = 0, noise: int = 0, **changes: Any
) -> Path:
    """What `export` writes of a run: successes, failures, one with help in its second half, one that nobody judged.

    first: key of the first episode, which fixes what it holds. noise: other actions where nothing is to be imitated.
    """
    fps = changes.pop("fps", 20)
    actions = ACTION_NAMES[: changes.pop("actions", 7)]
    cameras = changes.pop("cameras", CAMERAS)
    spec = DatasetSpec(cameras, 64, PROPRIO_NAMES, actions, fps)
    store = EpisodeStore(out.with_name(out.name + "-store"), spec)
    for key, (success, helped) in enumerate(episodes, first):
        rng, other = np.random.default_rng(100 + key), np.random.default_rng(1000 + noise)
        action = rng.uniform(-1, 1, (LENGTH, len(actions))).astype(np.float32)
        human = np.arange(LENGTH) >= (LENGTH // 2 if helped else LENGTH)
        ends_well = success == 1 or helped
        spoilt = ~human if helped else np.full(LENGTH, not ends_well)
        if noise:
            action[spoilt] = other.uniform(-1, 1, action.shape).astype(np.float32)[spoilt]
        last = np.arange(LENGTH) == LENGTH - 1
        columns = {
            layout.REWARD: (last & ends_well).astype(np.float32),
            layout.DONE: last,
            layout.SUCCESS: last & ends_well,
            layout.INTERVENTION: human,
            layout.DECISION: (np.arange(LENGTH) // 2).astype(np.int32),
        }
        images = rng.integers(0, 256, (LENGTH, len(cameras), 64, 64, 3), dtype=np.uint8)
        state = rng.normal(size=(LENGTH, 8)).astype(np.float32)
        episode = Episode(key, "turn on the stove", images, state, action, action, columns=columns)
        info = EpisodeInfo("tabletop_goal/turn_on_the_stove", 100 + key, key, success=success)
        store.add(episode, replace(info, ends_in_success=int(ends_well)))
    stamp = {"suite": "tabletop_goal", "keep": "all", "split": "fresh", "train_states": {}} | changes
    store.export(out, stamp)
    return out


def start(out: Path, **provenance: Any) -> Path:
    torch.manual_seed(0)
    save_policy(policy(), out, {"suite": "tabletop_goal", "train_states": {}} | provenance)
    return out


def words(place: Path, *data: Path | str, name: str = "run", **options: Any) -> list[str]:
    """The command of a short run, with the start in `place`."""
    given = {"algorithm.steps": 3, "learner.minibatch-size": 4, "num-threads": 1} | options
    flat = [str(word) for key, value in given.items() for word in (f"--{key}", value)]
    sets = map(str, data or (place / "demos", place / "day1"))
    begin = ["--policy.checkpoint", str(place / "start"), "--algorithm", "imitate", "--output", str(place / name)]
    return ["train", "--data", *sets, "--episodes", "0", *begin, *flat]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a start, demonstrations and a robot's day."""
    folder = tmp_path_factory.mktemp("offline")
    start(folder / "start")
    collected(folder / "demos", expert="scripted")
    day(folder / "day1")
    return folder


@pytest.fixture(autouse=True)
def no_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening one, or finding its tasks, breaks every test here."""

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a simulator was asked for")

    for module, name in (
        (train_setup, "load"),
        (train_setup, "open_tasks"),
        (train_setup, "open_run"),
        (ranks, "open_run"),
    ):
        monkeypatch.setattr(module, name, refuse)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(policy_folder(str(run)) / "model.safetensors")


def same(one: Path, two: Path) -> bool:
    first, second = weights(one), weights(two)
    return all(torch.equal(first[name], second[name]) for name in first)


def test_it_leaves_an_ordinary_run_folder(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "run"
    assert main(words(place)) == 0
    said = capsys.readouterr().out
    assert "day1: 5 episodes, 3 end in success, 1 with a person's help, 30 frames" in said
    assert "demos: 3 episodes, 18 frames" in said
    assert "success is not known" in said
    assert f"embodied-rl eval --checkpoint {run}" in said
    (row,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (row["train/episodes_seen"], row["train/own_successes"]) == (5.0, 3.0)
    assert row["train/own_share"] == pytest.approx(15 / (15 + 18))  # frames worth imitating, of all
    assert not [name for name in row if name.startswith(("eval/", "rollout/"))]
    page = (run / "report.html").read_text()
    assert "Success is not known" in page
    assert "Each task" not in page
    assert not same(run, place / "start")
    found = read_provenance(policy_folder(str(run)))
    assert found["suite"] == "tabletop_goal"  # of the start: eval goes there
    sets = found["offline"]["data"]
    assert [each["sha256"] for each in sets] == [lerobot.fingerprint(place / name) for name in ("demos", "day1")]
    assert found["train_states"] == {"tabletop_goal/turn_on_the_stove": [3, 5]}
    assert load_policy(policy_folder(str(run))).chunk_len == 4
    assert main(["runs", "show", str(run)]) == 0
    again = select(["--config", str(run / "config.yaml")]).config
    assert again == load_yaml(run / "config.yaml")
    assert main(["train", "--resume", str(run)]) == 0
    assert "is finished" in capsys.readouterr().out


def test_only_what_is_worth_it_is_imitated(place: Path) -> None:
    """Failures, episodes that nobody judged and what the policy did before help leave no trace in the weights."""
    assert main(words(place, name="plain")) == 0
    day(place / "other-failures", noise=1)
    assert main(words(place, place / "demos", place / "other-failures", name="other")) == 0
    assert same(place / "plain", place / "other")
    day(place / "other-successes", first=50)
    assert main(words(place, place / "demos", place / "other-successes", name="changed")) == 0
    assert not same(place / "plain", place / "changed")


def test_several_days_are_as_one(place: Path) -> None:
    assert main(words(place, name="whole")) == 0
    parts = day(place / "morning", DAY[:2]), day(place / "evening", DAY[2:], first=2)
    assert main(words(place, place / "demos", *parts, name="parts")) == 0
    assert same(place / "whole", place / "parts")
    joined, whole = lerobot.join([lerobot.load(part) for part in parts]), lerobot.load(place / "day1")
    rows = np.array([0, 11, 12, 29, 5])
    np.testing.assert_array_equal(joined.images[rows], whole.images[rows])
    np.testing.assert_array_equal(joined.starts, whole.starts)
    np.testing.assert_array_equal(joined.columns.human, whole.columns.human)
    assert own_successes(joined, 4).rows.tolist() == own_successes(whole, 4).rows.tolist()


def test_without_own_successes_it_is_as_many_more_steps_on_the_demonstrations(place: Path) -> None:
    assert main(words(place, name="control", **{"algorithm.demo-share": 1})) == 0
    (row,) = [json.loads(line) for line in (place / "control/metrics.jsonl").read_text().splitlines()]
    assert row["train/own_share"] == 0.0
    assert main(words(place, place / "demos", day(place / "x", first=50), name="y", **{"algorithm.demo-share": 1})) == 0
    assert same(place / "control", place / "y")


def test_it_goes_on_for_longer_as_if_asked_for_at_first(place: Path) -> None:
    assert main(words(place, name="long", iterations=2)) == 0
    assert main(words(place, name="short")) == 0
    assert main(["train", "--resume", str(place / "short"), "--iterations", "2"]) == 0
    assert same(place / "long", place / "short")
    rows = [(place / name / "metrics.jsonl").read_text().splitlines() for name in ("long", "short")]
    untimed = [
        [{k: v for k, v in json.loads(line).items() if not k.startswith(("time/", "cpu/", "busy/"))} for line in lines]
        for lines in rows
    ]
    assert untimed[0] == untimed[1]


HELD = """
import signal, sys
from embodied_rl.cli import main
from embodied_rl.training.filtered_bc import FilteredBC
known, left = FilteredBC._step, [int(sys.argv[1])]
def held(*arguments):
    left[0] -= 1
    if left[0] < 0:
        print("held", flush=True)
        signal.pause()
    return known(*arguments)
FilteredBC._step = held
main(sys.argv[2:])
"""


@pytest.mark.process
def test_killed_in_its_second_round_and_resumed_equals_run_to_the_end(place: Path) -> None:
    assert main(words(place, name="undisturbed", iterations=2)) == 0
    line = [sys.executable, "-c", HELD, "4", *words(place, name="killed", iterations=2)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(said.rstrip() == "held" for said in process.stdout)
        process.send_signal(signal.SIGKILL)
    assert main(["train", "--resume", str(place / "killed")]) == 0
    assert same(place / "undisturbed", place / "killed")


def test_data_that_changed_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = day(place / "changes")
    assert main(words(place, place / "demos", data, name="held")) == 0
    (data / "meta/more.txt").write_text("more")
    assert main(["train", "--resume", str(place / "held"), "--iterations", "2"]) == 2
    assert "--data is no longer that of the run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fps": 10}, "acts 10 times a second, and the policy in .*start takes 20 actions"),
        ({"cameras": ("agentview",)}, "the data sets have other cameras"),
        ({"actions": 6}, "has numbers in an action: 6, and the policy in .*start 7"),
        ({"own_units": True}, "has actions in the robot's own units, and the policy in .*start decides in -1 to 1"),
        ({"split": "heldout"}, "starts from held-out states"),
        ({"episodes": (FAILURE, UNKNOWN)}, "no episode in .* is said to end in success"),
        ({"expert": "scripted"}, "has demonstrations alone"),
    ],
)
def test_a_day_that_does_not_fit_is_refused_in_a_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    assert main(words(place, place / "demos", day(tmp_path / "day", **changes), name="refused")) == 2
    _expect(capsys, said)
    assert not (place / "refused").exists()


def _expect(capsys: pytest.CaptureFixture[str], said: str) -> None:
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    with pytest.raises(UserError, match=said):
        raise UserError(errors[0])


def test_a_rate_that_the_start_learned_is_kept(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(tmp_path / "start", control_hz=10.0)
    data = place / "demos", place / "day1"
    assert main(words(tmp_path, *data)) == 2
    _expect(capsys, "demos acts 20 times a second, and the policy in .*start takes 10 actions")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--episodes", "20"), "--episodes 20: --data learns from what lies on disk"),
        (("--algorithm", "ppo"), "--data is learned from by --algorithm imitate or steer, not ppo"),
        (("--scheduler", "pipelined"), "leave --scheduler out"),
        (("--env", "warp"), "leave --env out"),
        (("--policy", "mlp"), "for policies that see images"),
        (("--people", "expert"), "--people does not apply to --data"),
        (("--demos", "demos"), "--demos does not apply to --data"),
        (("--evaluation.every", "1"), "--evaluation.every does not apply to --data"),
        (("--env.num-envs", "3"), "--env.num-envs does not apply to --data"),
        (("--videos", "1"), "--videos does not apply to --data"),
        (("--learner.num-processes", "2"), "--learner.num-processes does not apply to --algorithm imitate"),
        (("--policy.checkpoint", "nowhere"), "nowhere"),
    ],
)
def test_what_does_nothing_without_a_simulator_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], said: str
) -> None:
    assert main([*words(place, name="refused"), *change]) == 2
    _expect(capsys, said)
    assert not (place / "refused").exists()


def test_failed_attempts_of_a_collection_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tried = collected(place / "tried", expert="scripted", keep="all")
    assert main(words(place, tried, place / "day1", name="refused")) == 2
    assert "tried holds failed attempts" in capsys.readouterr().err


def test_a_suite_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command, *rest = words(place, name="refused")
    assert main([command, "tabletop", *rest]) == 2
    _expect(capsys, "leave tabletop out; embodied-rl eval measures the policy")


def test_demonstrations_and_weights_are_needed_where_they_belong(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(place, place / "day1", name="refused")) == 2
    _expect(capsys, "--data has no demonstrations")
    assert main(words(place, place / "demos", f"{place / 'day1'}:2", name="refused")) == 2
    _expect(capsys, "a weight is for demonstrations")


def test_from_python_it_is_the_same_run(place: Path) -> None:
    assert main(words(place, name="typed")) == 0
    typed = load_yaml(place / "typed/config.yaml")
    outcome = erl.train(
        "tabletop_openvla_imitate",
        data=[str(place / "demos"), str(place / "day1")],
        output=place / "called",
        policy={"checkpoint": str(place / "start")},
        algorithm={"steps": 3},
        learner={"minibatch_size": 4},
        num_threads=1,
    )
    assert outcome.after.overall.episodes == 0
    assert same(place / "typed", place / "called")
    assert replace(load_yaml(place / "called/config.yaml"), output=typed.output) == typed
    with pytest.raises(UserError, match="leave env= and policy= out"):
        erl.train(replace(typed, output=str(place / "object")), policy=policy())


def test_what_a_config_asks_for_is_checked() -> None:
    base = as_offline(TrainConfig())
    with pytest.raises(UserError, match="learned from by --algorithm imitate or steer"):
        replace(base, data=("demos",), algorithm=PPOConfig()).check()
    with pytest.raises(UserError, match="data must be a list of names"):
        replace(base, data="demos")


def test_a_simulator_that_is_none_runs_nothing() -> None:
    env = NoSimulator(INFO)
    for method in (env.reset, env.step, env.observe, env.frame, env.new_observation):
        with pytest.raises(RuntimeError, match="has no simulator"):
            method(1)
    env.close()

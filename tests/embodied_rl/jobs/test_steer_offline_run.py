"""`train --data --algorithm steer`: a critic from a robot's day, without a simulator; the run folder, and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.algorithms.config import SteerConfig
from embodied_rl.cli import main
from embodied_rl.config.train import load_yaml
from embodied_rl.factory.policies import load_policy, policy_folder
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from tests.embodied_rl.jobs.test_train_demos import collected
from tests.embodied_rl.jobs.test_train_offline import (
    DAY,
    FAILURE,
    LENGTH,
    UNKNOWN,
    _expect,
    day,
    no_simulator,
    same,
    start,
    weights,
)
from tests.embodied_rl.jobs.test_train_offline import words as imitating

__all__ = ["no_simulator"]  # here too a simulator breaks every test
CHUNK = 4


def words(place: Path, *data: Path | str, name: str = "run", **options: Any) -> list[str]:
    """The command of a short run, with the start in `place`."""
    asked = {"algorithm": "steer", "algorithm.candidates": 3, "algorithm.critic-steps": 5} | options
    command = imitating(place, *data, name=name, **asked)
    at = command.index("imitate")
    return command[: at - 1] + command[at + 1 :]


def frozen(place: Path, *data: Path | str, name: str = "run", **options: Any) -> list[str]:
    """The same with a policy that stays as it is, which says nothing of how it imitates."""
    command = words(place, *data, name=name, **options)
    at = command.index("--algorithm.steps")
    return [*command[:at], *command[at + 2 :], "--algorithm.no-imitate"]


def critic(run: Path) -> dict[str, torch.Tensor]:
    return load_file(policy_folder(str(run)) / "steering.safetensors")


def equal(one: Path, two: Path) -> bool:
    first, second = critic(one), critic(two)
    return same(one, two) and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a start, demonstrations and a robot's day."""
    folder = tmp_path_factory.mktemp("offline")
    start(folder / "start")
    collected(folder / "demos", expert="scripted")
    day(folder / "day1")
    return folder


def test_it_leaves_an_ordinary_policy_that_is_steered(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "run"
    assert main(words(place)) == 0
    said = capsys.readouterr().out
    assert "day1: 5 episodes, 3 end in success, 1 with a person's help, 30 frames, 1 of unknown end" in said
    assert "steer, 1 round of 3 steps and 5 critic steps" in said
    assert "success is not known" in said
    (row,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert (row["train/episodes_seen"], row["train/own_successes"]) == (5.0, 3.0)
    judged = [each for each in DAY if each != UNKNOWN]
    assert row["train/critic_chunks"] == 18 + len(judged) * -(-LENGTH // CHUNK)
    assert not [name for name in row if name.startswith(("eval/", "rollout/"))]
    assert json.loads((run / "run.json").read_text())[-1]["policy"]["best_of"] == 3
    policy = load_policy(policy_folder(str(run)))
    assert policy.steering is not None
    assert policy.steering.candidates == 3
    assert not same(run, place / "start")
    assert load_yaml(run / "config.yaml").algorithm == SteerConfig(steps=3, candidates=3, critic_steps=5)
    assert main(["train", "--resume", str(run)]) == 0
    assert "is finished" in capsys.readouterr().out


def test_a_frozen_policy_gets_a_critic_and_keeps_its_weights(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(frozen(place, name="frozen")) == 0
    said = capsys.readouterr().out
    assert "steer, 1 round of 5 critic steps" in said
    assert f"{place / 'demos'}, {place / 'day1'}; the critic's alone" in said
    assert same(place / "frozen", place / "start")
    assert critic(place / "frozen")


def test_the_same_seed_and_data_give_the_same_bits_and_failures_count(place: Path) -> None:
    for name in ("one", "two"):
        assert main(words(place, name=name)) == 0
    assert equal(place / "one", place / "two")
    parts = day(place / "morning", DAY[:2]), day(place / "evening", DAY[2:], first=2)
    assert main(words(place, place / "demos", *parts, name="parts")) == 0
    assert equal(place / "one", place / "parts")  # several days are as one
    day(place / "other-failures", noise=1)
    assert main(words(place, place / "demos", place / "other-failures", name="other")) == 0
    assert same(place / "one", place / "other")  # they are not imitated
    assert not equal(place / "one", place / "other")


def test_resumed_it_draws_nothing_again_and_ends_alike(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn, propose = [], OpenVLAPolicy.propose

    def counted(policy: OpenVLAPolicy, *arguments: Any) -> Any:
        drawn.append(len(arguments[0].instruction))
        return propose(policy, *arguments)

    monkeypatch.setattr(OpenVLAPolicy, "propose", counted)
    assert main(words(place, name="long", iterations=2)) == 0
    assert sum(drawn) == 18 + 4 * 2
    assert main(words(place, name="short")) == 0
    drawn.clear()
    assert main(["train", "--resume", str(place / "short"), "--iterations", "2"]) == 0
    assert drawn == []
    assert equal(place / "long", place / "short")
    shutil.rmtree(place / "short/candidates")
    capsys.readouterr()
    assert main(["train", "--resume", str(place / "short"), "--iterations", "3"]) == 2
    _expect(capsys, "is missing or not of this run")


def test_a_day_without_a_success_teaches_a_critic(place: Path) -> None:
    data = day(place / "bad", (FAILURE, UNKNOWN, FAILURE))
    assert main(frozen(place, place / "demos", data, name="of-failures")) == 0
    assert same(place / "of-failures", place / "start")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (("demos:2", "day1"), "the critic of --algorithm steer takes no weights: write .*demos without"),
        (("demos", "unknown"), "it is not said of any episode in .* how it ended"),
        (("demos",), "has demonstrations alone"),
        (("day1",), "has no demonstrations"),
    ],
)
def test_what_teaches_nothing_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], data: tuple[str, ...], said: str
) -> None:
    if not (place / "unknown").exists():
        day(place / "unknown", (UNKNOWN, UNKNOWN))
    assert main(words(place, *(f"{place / name}" for name in data), name="refused")) == 2
    _expect(capsys, said)
    assert not (place / "refused").exists()


def test_a_steered_policy_begins_no_further_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(place, name="begun")) == 0
    capsys.readouterr()
    assert main([*words(place, name="refused"), "--policy.checkpoint", str(place / "begun")]) == 2
    _expect(capsys, "begins a run, and the policy is steered")
    assert weights(place / "begun")

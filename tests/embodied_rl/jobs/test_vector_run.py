"""Training through a vector env that an id of gymnasium brings itself: the same run as with single envs, and resume."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest

from embodied_rl.cli import main
from embodied_rl.config.env import GymnasiumConfig
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import View
from tests.embodied_rl.jobs.test_state_run import same, train, weights
from tests.sim.gymnasium.batched_envs import HORIZON, NAMESPACE, One, batched

OWN = f"{NAMESPACE}/Next-v0"
SHORT = (
    "--env.num-envs 4 --rollout.episodes-per-iteration 8 --checkpoint.every 1 --evaluation.states-per-task 4 "
    "--evaluation.every 0 --checkpoint.keep 9 --num-threads 1"
)


def test_it_learns_what_single_envs_learn_and_resumes_to_the_same_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = f"{NAMESPACE}/Plain-v0"
    gymnasium.register(plain, One, max_episode_steps=HORIZON)
    single = train(f"train gymnasium --task {plain} {SHORT} --iterations 2", tmp_path / "single")
    begun = train(f"train gymnasium --task {OWN} {SHORT} --iterations 1", tmp_path / "begun")
    assert "gymnasium 1.4.0, Many" in capsys.readouterr().out
    assert main(["train", "--resume", str(begun), "--iterations", "2"]) == 0
    assert same(weights(single, 2), weights(begun, 2))
    assert not same(weights(begun, 2), weights(begun, 1))
    info = json.loads((begun / "run.json").read_text())[-1]["simulator"]
    assert info["name"].endswith(", Many")
    assert info["reads"] == []


def test_why_single_envs_run_is_said_and_stamped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = batched("OneStream", fault="one stream")
    run = train(f"train gymnasium --task {name} {SHORT} --iterations 1", tmp_path / "run")
    line = (
        "single envs: its own vector env can't be used (the episode of initial state 0 is not that of the single env)"
    )
    assert line in " ".join(capsys.readouterr().out.split())
    assert json.loads((run / "run.json").read_text())[-1]["simulator"]["reads"] == [line]


@pytest.mark.process
def test_single_envs_run_where_env_groups_or_processes_are_asked_for(tmp_path: Path) -> None:
    words = f"train gymnasium --task {OWN} {SHORT} --iterations 1 --scheduler pipelined --scheduler.env-groups"
    words += " {} --learner.minibatch-size None --learner.minibatch-groups 2"
    runs = [train(words.format(groups), tmp_path / groups) for groups in ("1", "2")]
    names = [json.loads((run / "run.json").read_text())[-1]["simulator"]["name"] for run in runs]
    assert [name.endswith(", Many") for name in names] == [True, False]
    for config, view, together in (
        (GymnasiumConfig(num_envs=2), View(), True),
        (GymnasiumConfig(num_envs=2), View(apart=True), False),
        (GymnasiumConfig(num_envs=2, processes=1), View(), False),
    ):
        name = f"tests.sim.gymnasium.batched_envs:{OWN}"  # a process of its own has not imported it
        with open_tasks(load("gymnasium", name, config), config, view) as env:
            assert env.info.steps_together == together

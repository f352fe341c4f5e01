"""`train --robot`: what an arm is unless told otherwise, what it is refused, and what a run of it remembers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from embodied_rl.cli import main
from embodied_rl.cli.select import select
from embodied_rl.config.env import CustomEnvConfig, MujocoConfig
from embodied_rl.config.robot import check_robot
from embodied_rl.config.train import TrainConfig, dump_yaml, load_yaml, to_dict
from embodied_rl.errors import UserError
from embodied_rl.jobs.run_folder import check_unchanged

WORDS = "tabletop --policy pi0 --policy.checkpoint start --algorithm imitate --demos demos --episodes 20"


def chosen(words: str) -> TrainConfig:
    config = select([*WORDS.split(), *words.split()]).config
    assert config is not None
    return config


def test_the_twin_is_one_env_of_the_suites_training_states() -> None:
    config = chosen("--robot twin --people expert --robot-speed 0.3")
    assert config.env == MujocoConfig(num_envs=1)
    assert (config.suite, config.train_states, config.videos) == ("tabletop_goal", "train", 0)
    assert config.evaluation.states_per_task == 10
    assert chosen("--robot twin --evaluation.states-per-task 15").evaluation.states_per_task == 15


def test_a_real_arm_is_told_in_words_what_to_do_and_is_of_no_suite() -> None:
    words = ["--robot", "fr3", "--task", "open the drawer", "--task", "close it"]
    config = select([*WORDS.split(), *words]).config
    assert config is not None
    assert (config.suite, config.tasks) == ("arm", ("open the drawer", "close it"))
    assert config.env == CustomEnvConfig(num_envs=1)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--robot twin --env.num-envs 2", "--env.num-envs 2"),
        ("--robot twin --env.processes 1", "--env.processes"),
        ("--robot twin --perturb light", "--perturb"),
        ("--robot twin --train-states fresh", "--train-states fresh"),
        ("--robot twin --videos 1", "--videos 1"),
        ("--robot twin --protocol openpi", "--protocol openpi"),
        ("--robot twin --robot-speed 2", "0.01 to 1"),
        ("--robot-speed 0.5", "--robot-speed is for --robot twin"),
        ("--robot fr3", "say what the arm shall do: --task"),
        ("--robot fr3 --task x --robot-speed 0.5", "a real arm's time cannot be changed"),
        ("--robot fr3 --task x --people expert", "--people"),
        ("--robot fr3 --task x --suite tabletop_goal", "--suite tabletop_goal"),
        ("--robot fr33 --task x", "robot fr33: no such file"),
        ("--robot twin --env warp", "--env warp"),
        ("--robot twin --scheduler pipelined", "leave --scheduler out"),
    ],
)
def test_what_an_arm_cannot_do_is_refused_by_name(words: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *WORDS.split(), *words.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert named in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("tabletop --robot twin", "--algorithm imitate"),
        ("tabletop --policy pi0 --algorithm imitate --demos d --robot twin", "--policy.checkpoint"),
    ],
)
def test_what_an_arm_needs_is_asked_for(words: str, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words.split()]) == 2
    assert named in capsys.readouterr().err


def test_the_twin_has_the_built_in_suites_alone() -> None:
    with pytest.raises(UserError, match="the twin's suites are"):
        check_robot(dataclasses.replace(chosen("--robot twin"), suite="libero_goal"))


def test_a_run_on_an_arm_is_read_back_and_goes_on_at_another_speed_but_on_no_other_arm(tmp_path: Path) -> None:
    for config in (chosen("--robot twin --robot-speed 0.3"), chosen("--robot fr3 --task x")):
        path = tmp_path / "config.yaml"
        path.write_text(dump_yaml(config), encoding="utf-8")
        found = load_yaml(path)
        assert found == config
        found.check()
    before = chosen("--robot twin --robot-speed 0.3")
    saved = to_dict(before)
    check_unchanged(dataclasses.replace(before, robot_speed=0.2), saved)
    with pytest.raises(UserError, match="robot was 'twin'"):
        check_unchanged(dataclasses.replace(before, robot=""), saved)

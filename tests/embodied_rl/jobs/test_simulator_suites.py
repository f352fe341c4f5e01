"""Suites of other simulators by the command line: they train, are evaluated, and refuse what does not apply."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.cli import main
from embodied_rl.config.env import EnvPoolConfig, GymnasiumConfig, ManiSkillConfig, RewardMode
from embodied_rl.config.suites import STATE_SUITES, SUITES
from embodied_rl.config.train import TrainConfig, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.factory.run_config import with_step_discount
from embodied_rl.factory.suites import load, open_tasks
from tests.sim.optional import needs


@needs("envpool")
def test_fetch_trains_and_is_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "train fetch --task FetchReach-v4 --iterations 1 --env.num-envs 2 --rollout.episodes-per-iteration 2 "
        f"--evaluation.states-per-task 2 --videos 0 --num-threads 1 --output {tmp_path / 'run'}"
    )
    assert main(words.split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "envpool 1.2.5, exact episodes, reward progress" in shown
    assert "held-out success after 1 update" in shown
    env = load_yaml(tmp_path / "run" / "config.yaml").env
    assert isinstance(env, EnvPoolConfig)
    assert env.reward_gamma == 0.95, "the recipe's discount"
    again = f"eval fetch --checkpoint {tmp_path / 'run'} --states-per-task 2 --output {tmp_path / 'e'}"
    assert main(again.split()) == 0
    told = json.loads((tmp_path / "run" / "evaluations" / "iter-000001.json").read_text())
    assert json.loads((tmp_path / "e" / "report.json").read_text())["overall"]["once"] == told["overall"]


@pytest.mark.process
@needs("mani_skill")
def test_maniskill_trains_in_a_watched_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "train maniskill --task PushCube-v1 --iterations 1 --env.num-envs 2 --env.processes 1 "
        "--rollout.episodes-per-iteration 2 --evaluation.states-per-task 2 --evaluation.every 0 --videos 0 "
        f"--num-threads 1 --output {tmp_path / 'run'}"
    )
    assert main(words.split()) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "control libero, reward native of normalized_dense" in shown
    assert "1 watched process" in shown


@needs("envpool")
def test_an_evaluation_pays_as_the_training_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "train fetch --task FetchReachDense-v4 --env.reward-mode native --iterations 1 --env.num-envs 2 "
        "--rollout.episodes-per-iteration 2 --evaluation.states-per-task 1 --evaluation.every 0 --videos 0 "
        f"--num-threads 1 --output {tmp_path / 'run'}"
    )
    assert main(words.split()) == 0
    assert "reward native" in " ".join(capsys.readouterr().out.split())
    asked = f"eval fetch --checkpoint {tmp_path / 'run'} --states-per-task 1 --videos 0"
    assert main([*asked.split(), "--output", str(tmp_path / "as-trained")]) == 0
    assert "reward native" in " ".join(capsys.readouterr().out.split())
    assert main([*asked.split(), "--env.reward-mode", "success", "--output", str(tmp_path / "other")]) == 0
    assert "reward success" in " ".join(capsys.readouterr().out.split())


@needs("mani_skill")
def test_a_controller_by_name() -> None:
    config = ManiSkillConfig(num_envs=1, control_mode="pd_ee_delta_pos")
    with closing(open_tasks(load("maniskill", "PushCube-v1", config), config)) as env:
        assert env.info.action_dim == 4
        assert env.info.has_success


@needs("envpool")
@pytest.mark.parametrize(("suite", "scored"), [("metaworld", True), ("fetch", True), ("dm_control", False)])
def test_suites_open_with_their_example(suite: str, scored: bool) -> None:
    config = EnvPoolConfig(num_envs=1)
    with closing(open_tasks(load(suite, SUITES[suite].example, config), config)) as env:
        assert env.info.suite == suite
        assert env.info.has_success == scored
        assert list(env.train_states) == [f"{suite}/{SUITES[suite].example}"]


@pytest.mark.parametrize(
    ("suite", "reward_mode", "gamma"),
    [("metaworld", "auto", 0.9), ("fetch", "progress", 0.9), ("fetch", "success", None)],
)
def test_progress_is_discounted_as_the_learner_does(suite: str, reward_mode: RewardMode, gamma: float | None) -> None:
    config = TrainConfig(
        suite=suite, output="runs/1", env=EnvPoolConfig(reward_mode=reward_mode), algorithm=PPOConfig(gamma=0.9)
    )
    found = with_step_discount(config, resumed=False)
    assert isinstance(found.env, EnvPoolConfig)
    assert found.env.reward_gamma == gamma
    assert with_step_discount(found, resumed=True) == found
    if gamma is not None:
        grpo = replace(config, algorithm=GRPOConfig())
        assert getattr(with_step_discount(grpo, resumed=False).env, "reward_gamma", None) == 1
        with pytest.raises(UserError, match="runs/1 began with an older version") as refused:
            with_step_discount(config, resumed=True)
        assert "\n" not in str(refused.value)


def test_a_discount_without_a_potential_is_refused() -> None:
    with pytest.raises(UserError, match="goes with the reward 'progress'"):
        EnvPoolConfig(reward_mode="native", reward_gamma=0.9)


def test_a_suite_is_not_opened_in_another_simulator() -> None:
    with pytest.raises(UserError, match="suite 'fetch' runs in simulator envpool, not gymnasium"):
        load("fetch", SUITES["fetch"].example, GymnasiumConfig(num_envs=1))


def test_every_suite_of_states_has_an_example_or_one_task() -> None:
    assert all(SUITES[name].example or SUITES[name].task for name in STATE_SUITES)


@pytest.mark.parametrize("words", ["train tabletop", "train gymnasium --task Pendulum-v1"])
def test_a_controller_is_refused_elsewhere(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--env.control-mode", "libero", "--output", str(tmp_path / "run")]) == 2
    assert "--env.control-mode" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["train tabletop", "train gymnasium --task Pendulum-v1"])
def test_a_step_reward_is_refused_elsewhere(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words.split(), "--env.reward-mode", "native", "--output", str(tmp_path / "run")]) == 2
    assert "--env.reward-mode" in capsys.readouterr().err


@needs("envpool")
def test_a_wrong_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no task 'reach-v2'.*reach-v3"):
        open_tasks(load("metaworld", "reach-v2", EnvPoolConfig()), EnvPoolConfig(num_envs=1))
    with pytest.raises(UserError, match="needs the name of a task: --task reach-v3"):
        load("metaworld", [], EnvPoolConfig(num_envs=1))

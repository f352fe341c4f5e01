"""Suites that have a state and images: policies of both kinds, and demonstrations by whoever can act."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from rich.console import Console

from embodied_rl.api import make_vec_env
from embodied_rl.cli import main
from embodied_rl.config.env import ManiSkillConfig, MetaWorldConfig
from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.suites import SUITES, usual_env
from embodied_rl.data.collect import Attempt, record
from embodied_rl.data.lerobot import load
from embodied_rl.errors import UserError
from embodied_rl.factory.experts import Stage, open_stage, stage_of
from embodied_rl.factory.policies import save_policy
from embodied_rl.factory.suites import load as load_tasks
from embodied_rl.factory.suites import open_tasks
from embodied_rl.factory.view import View
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.jobs.evaluation_setup import make_plan
from embodied_rl.policies.mlp.checkpoint import fresh
from tests.sim.metaworld.there import needs_metaworld
from tests.sim.optional import needs

REACH = "metaworld/reach-v3"
PUSH = ["--task", "PushCube-v1"]
SMALL = ["--env.num-envs", "2", "--rollout.episodes-per-iteration", "2", "--evaluation.states-per-task", "1"]


def stage(expert: str, *tasks: str) -> Stage:
    return Stage("metaworld", tasks or ("reach-v3",), MetaWorldConfig(num_envs=1, reward_mode="success"), 16, expert)


def state_policy(folder: Path, observation: int) -> str:
    """A state policy of random weights that reads so many numbers."""
    save_policy(fresh(MLPConfig(), observation, 4, seed=0), folder, {"suite": "metaworld"})
    return str(folder)


@pytest.mark.process
@needs_metaworld()
@needs("envpool")
def test_programs_get_images_where_they_ask_the_simulator_that_has_them() -> None:
    options: dict[str, Any] = {"tasks": "reach-v3", "image_size": 24}
    with make_vec_env("metaworld", 1, simulator="metaworld", **options) as env:
        assert (env.info.cameras, env.info.image_shape) == (("corner2", "gripperPOV"), (24, 24))
    with make_vec_env("metaworld", 1, tasks="reach-v3") as env:
        assert (env.info.backend, env.info.cameras) == ("envpool", ())
    with pytest.raises(UserError, match="image_size and cameras do not apply to 'metaworld'"):
        make_vec_env("metaworld", 1, **options)


def said(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What a command that is refused says."""
    assert main(words) == 2
    return capsys.readouterr().err


def test_a_policy_of_images_acts_in_the_simulator_that_shows_them() -> None:
    assert type(usual_env("metaworld", 2, "images")) is MetaWorldConfig
    assert type(usual_env("metaworld", 2, "state")).__name__ == "EnvPoolConfig"
    assert type(usual_env("maniskill", 2, "images")) is type(usual_env("maniskill", 2)) is ManiSkillConfig
    with pytest.raises(UserError, match="a GPU holds all worlds in one simulation"):
        ManiSkillConfig(device="cuda", processes=2)


@needs("mani_skill")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_maniskill_on_a_gpu_is_refused_where_there_is_none() -> None:
    env = ManiSkillConfig(num_envs=2, device="cuda")
    with pytest.raises(UserError, match="GPU backend needs an NVIDIA GPU"):
        open_tasks(load_tasks("maniskill", "PushCube-v1", env), env, View(fit="pad"))
    with pytest.raises(UserError, match="on a GPU runs one task"):
        open_tasks(load_tasks("maniskill", ["PushCube-v1", "PullCube-v1"], env), env, View(fit="pad"))


@needs("mani_skill")
def test_maniskill_shows_a_policy_of_images_two_cameras_and_one_of_states_none() -> None:
    env = ManiSkillConfig(num_envs=1)
    tasks = load_tasks("maniskill", "PushCube-v1", env)
    with open_tasks(tasks, env, View(image_size=24, cameras=None, fit="pad")) as opened:
        assert opened.info.cameras == ("base_camera", "hand_camera")
        assert opened.info.image_shape == (24, 24)
    with open_tasks(tasks, env) as opened:
        assert (opened.info.cameras, opened.info.proprio_dim) == ((), 8)


@pytest.mark.process
@needs_metaworld()
def test_the_scripted_expert_of_metaworld_is_recorded_as_it_acts() -> None:
    with open_stage(stage("scripted")) as bench:
        episode, failure = record(bench, Attempt(0, 0, REACH, 3, 7), 0.0)
        assert failure == ""
        assert episode.instruction == "move the hand to the goal"
        assert episode.images.shape[1:] == (2, 16, 16, 3)
        assert episode.state.shape[1] == episode.action.shape[1] == 4
        assert np.array_equal(episode.action, episode.executed)
        assert 0 < np.abs(episode.action).max() <= 1
        pushed, _ = record(bench, Attempt(0, 0, REACH, 3, 7), 0.5)
        assert not np.array_equal(pushed.action, pushed.executed)


@pytest.mark.process
@needs_metaworld()
def test_a_state_policy_acts_on_the_state_beside_the_images(tmp_path: Path) -> None:
    """Trained with proprio before the state, or where there is none."""
    for number, size in enumerate((39, 43)):
        with open_stage(stage(state_policy(tmp_path / f"p{number}", size))) as bench:
            twice = [record(bench, Attempt(0, 0, REACH, 3, 7), 0.0) for _ in range(2)]
            assert twice[0][1] == "no success in 500 steps"
            assert np.array_equal(twice[0][0].action, twice[1][0].action)
            assert twice[0][0].action.std() > 0
    with (
        pytest.raises(UserError, match="reads 38 numbers and decides 4, the task has 43 and 4"),
        open_stage(stage(state_policy(tmp_path / "other", 38))),
    ):
        pass


def test_a_teachers_controller_is_its_trainings(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    trained = {"suite": "maniskill", "config": {"env": {"name": "maniskill", "control_mode": "pd_ee_delta_pos"}}}
    save_policy(fresh(MLPConfig(), 35, 4, seed=0), folder, trained)
    env = stage_of(SUITES["maniskill"], ("PushCube-v1",), None, str(folder)).env
    assert env == ManiSkillConfig(num_envs=1, reward_mode="success", control_mode="pd_ee_delta_pos")


@needs("mani_skill")
@pytest.mark.process
def test_imitation_in_maniskill_keeps_the_controller_of_the_demonstrations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """train and eval take it from the checkpoint, and refuse another."""
    teacher, out, start = tmp_path / "teacher", tmp_path / "demos", tmp_path / "start"
    trained = {"env": {"name": "maniskill", "control_mode": "pd_ee_delta_pos"}}
    save_policy(fresh(MLPConfig(), 35, 4, seed=0), teacher, {"suite": "maniskill", "config": trained})
    words = ["collect", "maniskill", *PUSH, "--expert", str(teacher), "--keep", "all", "--workers", "1"]
    assert main([*words, "--episodes-per-task", "1", "--out", str(out)]) == 0
    info = json.loads((out / "meta/info.json").read_text())
    assert info["embodied_rl"]["env"]["control_mode"] == "pd_ee_delta_pos"
    del info["embodied_rl"]["keep"]  # as if it had succeeded
    (out / "meta/info.json").write_text(json.dumps(info))
    sft = ["sft", str(out), "--policy", "openvla", "--steps", "1", "--batch-size", "2", "--val-samples", "1"]
    assert main([*sft, "--threads", "1", "--out", str(start)]) == 0
    run = tmp_path / "run"
    train = ["train", "maniskill", *PUSH, "--policy", "openvla", "--policy.checkpoint", str(start), "--videos", "0"]
    evaluate = ["eval", "maniskill", "--checkpoint", str(start)]
    other = ["--env.control-mode", "libero", "--output", str(tmp_path / "other")]
    for command in (train, evaluate):
        told = said(capsys, [*command, *other])
        assert "learned actions of the controller pd_ee_delta_pos, and --env.control-mode is libero" in told
    assert main([*train, *SMALL, "--iterations", "1", "--output", str(run)]) == 0
    assert yaml.safe_load((run / "config.yaml").read_text())["env"]["control_mode"] == "pd_ee_delta_pos"
    env = ManiSkillConfig(num_envs=1)
    asked = BenchmarkCommand(checkpoint=str(start), suite="maniskill", protocol="native", at_end=False, env=env)
    plan = make_plan("maniskill", asked, Console(quiet=True)).command
    assert plan.env == ManiSkillConfig(num_envs=1, control_mode="pd_ee_delta_pos")
    assert plan.tasks == ("PushCube-v1",)


def test_who_has_no_expert_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    push = ["collect", "maniskill", "--task", "PushCube-v1", "--out", "x"]
    assert "'maniskill' has no scripted expert, which collect records: name a policy" in said(capsys, push)
    gymnasium = ["collect", "gymnasium", "--task", "Pendulum-v1", "--out", "x"]
    assert "'gymnasium' has no scripted expert, which collect records: name a policy" in said(capsys, gymnasium)
    for option in ("--cameras", "--instruction"):
        assert f"{option} is for gymnasium's envs" in said(
            capsys, ["collect", "metaworld", *gymnasium[2:], option, "a"]
        )
    assert "maniskill has no fresh initial states" in said(capsys, [*push, "--split", "fresh"])
    tabletop = ["collect", "tabletop_goal", "--out", "x", "--expert", "runs/a"]
    assert "--expert: the scripted expert acts in tabletop_goal" in said(capsys, tabletop)


@needs_metaworld()
@pytest.mark.process
def test_failures_are_kept_where_they_are_wanted_and_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, teacher = tmp_path / "demos", state_policy(tmp_path / "teacher", 39)
    words = ["collect", "metaworld", "--task", "reach-v3", "--out", str(out), "--image-size", "16", "--workers", "1"]
    assert main([*words, "--episodes-per-task", "2", "--expert", teacher, "--keep", "all"]) == 0
    info = json.loads((out / "meta/info.json").read_text())
    assert (info["total_episodes"], info["fps"]) == (2, 80)
    assert info["embodied_rl"]["expert"] == teacher
    assert info["embodied_rl"]["keep"] == "all"
    assert [row["successes"] for row in info["embodied_rl"]["results"]] == [0]
    rows = pq.read_table(next((out / "meta/episodes").rglob("*.parquet"))).to_pydict()
    assert rows["embodied_rl/ends_in_success"] == [0, 0]
    assert not load(out).success.any()
    sft = ["sft", str(out), "--policy", "openvla", "--preset", "nano", "--cameras", "corner2", "gripperPOV"]
    assert "holds failed attempts" in said(capsys, [*sft, "--out", str(tmp_path / "start")])


@needs_metaworld()
@pytest.mark.process
def test_a_vla_trains_resumes_and_is_evaluated_on_several_tasks(tmp_path: Path) -> None:
    run, tasks = tmp_path / "run", ["--tasks", "reach-v3", "push-v3"]
    words = ["train", "metaworld", *tasks, "--policy", "pi0", "--policy.chunk-len", "25", *SMALL]
    assert main([*words, "--iterations", "1", "--videos", "0", "--output", str(run)]) == 0
    assert main(["train", "--resume", str(run), "--iterations", "2"]) == 0
    stamp = json.loads((run / "run.json").read_text())
    assert "metaworld 3" in json.dumps(stamp)
    out = tmp_path / "eval"
    assert main(["eval", "metaworld", "--checkpoint", str(run), "--states-per-task", "1", "--videos", "1",
                 "--output", str(out)]) == 0  # fmt: skip
    report = json.loads((out / "report.json").read_text())
    assert sorted(report["tasks"]) == ["metaworld/push-v3", REACH]

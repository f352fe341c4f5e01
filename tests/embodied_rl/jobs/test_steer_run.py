"""`train --algorithm steer` with a pi0: its critic is in run, checkpoint and what loads that; what it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embodied_rl as erl
from embodied_rl.algorithms.config import SteerConfig
from embodied_rl.cli import main
from embodied_rl.cli.select import select
from embodied_rl.config.train import TrainConfig, from_dict
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import save_policy
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.config import gemma, siglip
from embodied_rl.policies.pi0.normalise import Pi0Statistics, unit
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.steering import CHOSEN
from embodied_rl.rng import DecisionRng
from tests.embodied_rl.jobs.test_imitate_run import collected
from tests.embodied_rl.toy_task_env import ToyTaskEnv
from tests.policies.pi0_models import randomise, tiny_config
from tests.toy import ACTION_DIM, CHUNK, INSTRUCTIONS, SIZE, ToyPolicy


def start_of(folder: Path) -> Path:
    """A pi0 that fits the toy."""
    config = tiny_config(
        vision=siglip(SIZE, 2, 16, 1, 2, 24),
        decoder=gemma(320, 24, 1, 4, 8, 40),
        expert=gemma(0, 16, 1, 4, 8, 20),
        horizon=CHUNK + 1,
        chunk_len=CHUNK,
        action_dim=ACTION_DIM,
        num_cameras=1,
    )
    statistics = Pi0Statistics(unit(2), unit(ACTION_DIM))
    flow = FlowSettings(num_inference_steps=2)
    policy = Pi0Policy.fresh(config, list(INSTRUCTIONS.values()), statistics, flow)
    randomise(policy, 0)
    save_policy(policy, folder, {})
    return folder


def begin(tmp_path: Path, name: str = "run", **algorithm: Any) -> Path:
    torch.set_num_threads(1)
    start = tmp_path / "start"
    demos = tmp_path / "demos"
    run = tmp_path / name
    erl.train(
        "tabletop_pi0_steer",
        iterations=2,
        output=run,
        env=ToyTaskEnv(4),
        policy={"checkpoint": str(start if start.exists() else start_of(start)), "num_inference_steps": 2},
        demos=[str(demos if demos.exists() else collected(demos))],
        train_states="train",
        rollout={"episodes_per_iteration": 6},
        algorithm={"candidates": 3, "critic_steps": 10} | (algorithm or {"steps": 3}),
        learner={"lr": 1e-3},
        evaluation={"states_per_task": 2},
        videos=0,
        num_threads=1,
    )
    return run


def test_a_run_acts_saves_and_loads_the_best_of_n(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = begin(tmp_path)
    whole = begin(tmp_path, "frozen", imitate=False)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/episodes_seen"] for row in rows if "train/critic_loss" in row] == [6, 12]
    assert json.loads((run / "run.json").read_text())[-1]["policy"]["best_of"] == 3
    assert "the best of 3 by a critic" in capsys.readouterr().out
    assert "Critic loss" in (run / "report.html").read_text()
    policy, start = erl.load_policy(run), erl.load_policy(tmp_path / "start")
    frozen = erl.load_policy(whole).model.state_dict()
    assert all(torch.equal(value, frozen[name]) for name, value in start.model.state_dict().items())
    assert not torch.equal(policy.model.action_out_proj.weight, frozen["action_out_proj.weight"])
    assert policy.steering.candidates == 3
    env = ToyTaskEnv(2)
    assert erl.evaluate(env, policy, episodes=4, mode="greedy").overall.episodes == 4
    obs = env.new_observation(2)
    obs.images.zero_()
    obs.proprio.zero_()
    obs.instruction[:] = INSTRUCTIONS.values()
    assert CHOSEN in policy.act(obs, DecisionRng(np.arange(2), np.zeros(2, np.int64)), "greedy").replay
    erl.train(resume=run, iterations=3, env=ToyTaskEnv(4))
    assert erl.load_policy(run).steering.candidates == 3
    for words, said in (
        (["export", "--checkpoint", str(run), "--out", str(tmp_path / "out")], "--layout native keeps both"),
        (["serve", "--checkpoint", str(run), "--port", "0", "--compile"], "leave --compile out"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(UserError, match=r"begins a run, and the policy is steered .*: begin with the checkpoint that"):
        erl.train(
            "tabletop_pi0_imitate",
            output=tmp_path / "again",
            env=ToyTaskEnv(4),
            policy={"checkpoint": str(run)},
            demos=[str(tmp_path / "demos")],
            train_states="train",
        )


def test_a_policy_of_ones_own_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="ToyPolicy offers none: train openvla"):
        erl.train(
            "tabletop_openvla_steer",
            output=tmp_path / "run",
            env=ToyTaskEnv(4),
            policy=ToyPolicy(with_value=False),
            demos=[str(collected(tmp_path / "demos"))],
            train_states="train",
        )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scheduler": {"name": "pipelined"}}, "--algorithm steer runs a round, stores it and learns"),
        ({"learner": {"value_lr": 1e-5}}, "--learner.value-lr does not apply to --algorithm steer"),
        ({"learner": {"average_updates": 3}}, "--learner.average-updates does not apply to --algorithm steer"),
        ({"policy": {"name": "pi0", "compile": True}}, "--policy.compile does not apply to --algorithm steer"),
        ({"algorithm": {"candidates": 1}}, r"algorithm.candidates must lie in 2..256, got 1"),
        ({"algorithm": {"critic_steps": 0}}, "algorithm.critic_steps must be at least 1"),
        ({"algorithm": {"gamma": 0.0}}, r"algorithm.gamma must lie in \(0, 1\]"),
        ({"algorithm": {"imitate": False, "steps": 9}}, "algorithm.steps and algorithm.demo_share say how it imitates"),
        ({"algorithm": {"steps": 0}}, "algorithm.steps must be at least 1"),
        ({"demos": ["demos:2"]}, "--demos: the critic of --algorithm steer takes no weights: write demos without"),
    ],
)
def test_what_does_nothing_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        from_dict(change, TrainConfig(algorithm=SteerConfig(), demos=("demos",))).check()
    assert "\n" not in str(refused.value)


def test_it_is_asked_for_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    words = "tabletop --policy pi0 --policy.checkpoint start --algorithm steer --demos demos --episodes 60"
    chosen = select([*words.split(), "--algorithm.no-imitate", "--people", "expert"]).config
    assert chosen is not None
    assert chosen.algorithm == SteerConfig(imitate=False)
    assert (chosen.iterations, chosen.train_states) == (3, "fresh")
    assert main(["train", "tabletop", "--algorithm", "steer"]) == 2
    assert "--algorithm steer learns from demonstrations too: name them with --demos DATA" in capsys.readouterr().err

"""`import embodied_rl`: its names, its laziness, and each function at a tiny size."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch

import embodied_rl as erl
from embodied_rl.config.train import TrainConfig, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from tests.embodied_rl.toy_task_env import ToyTaskEnv
from tests.toy import ToyPolicy

TINY: dict[str, Any] = {
    "algorithm": {"critic_warmup_iterations": 0},
    "rollout": {"episodes_per_iteration": 16},
    "evaluation": {"states_per_task": 4, "every": 0},
    "learner": {"lr": 1e-2, "lr_warmup_updates": 0, "minibatch_size": 64, "average_updates": 0},
    "checkpoint": {"every": 1},
    "num_threads": 1,
    "videos": 1,
}


def test_the_names_are_these() -> None:
    assert sorted(erl.__all__) == [
        "ActionTokens",
        "AutoregressiveTokens",
        "CustomEnvConfig",
        "CustomPolicyConfig",
        "GaussianActions",
        "VelocityField",
        "__version__",
        "evaluate",
        "load_policy",
        "make_isaacgym_env",
        "make_vec_env",
        "recipes",
        "register_env",
        "register_policy",
        "train",
        "wrap_policy",
    ]
    assert all(hasattr(erl, name) for name in erl.__all__)
    assert all(getattr(erl, name).__doc__ for name in erl.__all__ if name != "__version__")
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = erl.trian  # type: ignore[attr-defined]


@pytest.mark.process
def test_the_import_loads_nothing_heavy_and_recipes_no_torch() -> None:
    code = (
        "import sys, json, embodied_rl as erl; first = set(sys.modules); erl.recipes.names();"
        "print(json.dumps([sorted(first), sorted(sys.modules)]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    at_import, with_recipes = (set(names) for names in json.loads(out))
    assert not at_import & {"torch", "numpy", "mujoco", "numba", "yaml", "tyro", "rich", "embodied_rl.api"}
    assert "embodied_rl.configs" in with_recipes
    assert not with_recipes & {"torch", "mujoco", "numba", "rich"}


def test_a_suite_is_opened_and_the_shipped_policy_evaluated_in_it() -> None:
    policy = erl.load_policy(device="cpu")
    with erl.make_vec_env("tabletop_goal", num_envs=2, tasks=["turn_on_the_stove"], num_threads=1) as env:
        assert list(env.train_states) == list(env.heldout_states) == ["tabletop_goal/turn_on_the_stove"]
        report = erl.evaluate(env, policy, episodes=2)
        with pytest.raises(UserError, match=r"episodes must lie in 1\.\.50"):
            erl.evaluate(env, policy, episodes=51)
    assert report.overall.episodes == 2
    assert {result.spec.init_state for result in report.results} <= set(env.heldout_states[report.results[0].spec.task])


def test_a_text_is_one_name_and_not_its_letters(tmp_path: Path) -> None:
    """Wherever a program may name tasks or parts of an observation."""
    task = "turn_on_the_stove"
    options: dict[str, Any] = {"tasks": task, "num_threads": 1}
    with erl.make_vec_env("tabletop_goal", 1, cameras=0, state=True, **options) as env:
        assert list(env.train_states) == [f"tabletop_goal/{task}"]
    with closing(erl.make_isaacgym_env("tabletop_goal", 1, obs="proprio", states="state", **options)) as view:
        assert (view.num_obs, view.num_states) == (env.info.proprio_dim, env.info.state_dim)
    with closing(gymnasium.make("embodied_rl/tabletop_goal-v0", cameras=0, state=True, **options)) as single:
        assert single.reset(seed=0, options={"task": task})[1]["task"] == f"tabletop_goal/{task}"
    with erl.make_vec_env("gymnasium", 1, tasks="CartPole-v1") as env:
        assert list(env.train_states) == ["gymnasium/CartPole-v1"]
    with pytest.raises(UserError, match="has no task 'nope'"):
        erl.train("tabletop_openvla_ppo", tasks="nope", output=tmp_path / "run", num_threads=1)
    assert not (tmp_path / "run").exists()
    with pytest.raises(UserError, match=r"write tasks=\('nope',\)"):
        TrainConfig(tasks="nope")  # type: ignore[arg-type]


def test_episodes_are_spread_over_the_tasks() -> None:
    report = erl.evaluate(ToyTaskEnv(4), ToyPolicy(), episodes=5)
    assert {name: score.episodes for name, score in report.tasks.items()} == {"toy/reach": 3, "toy/touch": 2}


def test_an_own_policy_in_an_own_simulator_trains_resumes_and_is_evaluated(tmp_path: Path) -> None:
    """Resumed after one of two iterations, the weights are those of a run that was never stopped."""
    ends = {}
    for name, steps in (("whole", (2,)), ("resumed", (1, 2))):
        out = tmp_path / name
        fresh: dict[str, Any] = {"env": ToyTaskEnv(8), "policy": ToyPolicy(), "output": out}
        erl.train("tabletop_openvla_ppo", iterations=steps[0], **fresh, **TINY)
        for iterations in steps[1:]:
            erl.train(resume=out, iterations=iterations, env=ToyTaskEnv(8), policy=ToyPolicy(seed=9))
        ends[name] = erl.load_policy(out, into=ToyPolicy(seed=5))
        assert (out / "report.html").is_file()
        assert len(list((out / "videos").glob("*-after.mp4"))) == 1
        assert load_yaml(out / "config.yaml").suite == "toy"
        assert json.loads((out / "run.json").read_text())[-1]["policy"]["family"] == "tests.toy.ToyPolicy"
    first, second = (ends[name].state_dict() for name in ("whole", "resumed"))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.weight"], ToyPolicy().state_dict()["head.weight"])
    assert erl.evaluate(ToyTaskEnv(4), ends["whole"], episodes=8).overall.episodes == 8


def test_what_does_not_go_together_is_one_clear_line(tmp_path: Path) -> None:
    policy = ToyPolicy()
    for call, message in (
        (erl.train, "train needs a recipe"),
        (lambda: erl.train("tabletop_openvla_pop"), "Did you mean 'tabletop_openvla_ppo'"),
        (lambda: erl.train("tabletop_openvla_ppo", sede=1), "unknown key 'sede'. Did you mean 'seed'"),
        (lambda: erl.train("tabletop_openvla_ppo", policy=policy, scheduler={"name": "ray"}), "scheduler ray opens"),
        (lambda: erl.train(TrainConfig(), resume="runs/x"), "resume= continues a run with its own config"),
        (lambda: erl.train(resume=tmp_path), "is not the folder of a run"),
        (
            lambda: erl.train(env=ToyTaskEnv(2), recipe=TrainConfig(output=str(tmp_path / "b"), autotune=True)),
            "autotune",
        ),
        (lambda: erl.load_policy(unorm_key="x"), "no option 'unorm_key'"),
        (lambda: erl.load_policy(into=policy), "holds openvla, not tests.toy.ToyPolicy"),
        (lambda: erl.make_vec_env("tabletop_spatail"), "Did you mean 'tabletop_spatial'"),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_resume_with_another_class_or_by_the_command_line_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Other(ToyPolicy):
        pass

    from embodied_rl.cli import main

    out = tmp_path / "run"
    erl.train("tabletop_openvla_ppo", env=ToyTaskEnv(8), policy=ToyPolicy(), output=out, iterations=1, **TINY)
    with pytest.raises(UserError, match=r"was not begun with a .*Other"):
        erl.train(resume=out, iterations=2, env=ToyTaskEnv(8), policy=Other())
    assert main(["train", "--resume", str(out), "--iterations", "2"]) == 2
    assert main(["eval", "--checkpoint", str(out)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len([line for line in lines if line.startswith("embodied-rl: error:")]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"simulator": "Warp"}, "runs in mujoco or warp"),
        ({"reward": "dense", "state": True, "cameras": 0}, "one of sparse, staged, shaped"),
        ({"device": "gpu"}, "choose auto, cpu or cuda"),
        ({"suite": "gymnasium", "tasks": ["CartPole-v1"], "image_size": 128}, "do not apply to 'gymnasium'"),
        ({"suite": "gymnasium", "tasks": ["CartPole-v1"], "num_threads": 2}, "num_threads' does not apply to gymn"),
        ({"simulator": "warp", "num_threads": 2}, "num_threads' does not apply to warp"),
    ],
)
def test_a_value_that_is_none_of_the_choices_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        erl.make_vec_env(**options)


def test_a_state_policy_is_evaluated_on_its_own_task_only() -> None:
    with (
        erl.make_vec_env("gymnasium", 1, tasks=["CartPole-v1"]) as env,
        erl.make_vec_env("gymnasium", 1, tasks=["Pendulum-v1"]) as other,
    ):
        policy = MLPPolicy(MLPModelConfig(observation_dim=4, action_dim=env.info.action_dim))
        with pytest.raises(UserError, match="it was trained on another task"):
            erl.evaluate(other, policy, episodes=1)

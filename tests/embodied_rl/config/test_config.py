"""The configuration: what is written is read back, and nothing wrong gets in."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.env import ENVS, MujocoConfig, WarpConfig
from embodied_rl.config.policies import OpenVLAConfig
from embodied_rl.config.train import TrainConfig, dump_yaml, from_dict, kind_of, load_yaml, to_dict
from embodied_rl.configs import BENCHMARKS, RECIPES, get
from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.rewards.config import RewardConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import PipelinedConfig

positive = st.floats(1e-9, 1e6)
probability = st.floats(0, 1)
count = st.integers(1, 10**6)
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1)
level = st.sampled_from(["token", "action", "chunk"])

grpo = st.builds(
    GRPOConfig,
    group_size=st.integers(2, 99),
    success_rate_range=st.none() | st.tuples(st.floats(0, 0.3), st.floats(0.7, 1)),
    clip_low=st.floats(0.01, 0.99),
    clip_high=positive,
    ratio_level=level,
    epochs=count,
)
ppo = st.builds(
    PPOConfig,
    gamma=probability,
    gae_lambda=probability,
    value_clip=st.none() | positive,
    ratio_level=level,
    critic_warmup_iterations=st.integers(0, 9),
)
configs = st.builds(
    TrainConfig,
    suite=text,
    tasks=st.lists(text, max_size=3).map(tuple),
    iterations=count,
    seed=st.integers(0, 2**63),
    output=text,
    num_threads=st.none() | count,
    device=st.sampled_from(["auto", "cpu", "cuda"]),
    env=st.builds(MujocoConfig, num_envs=count, num_threads=st.none() | count),
    policy=st.builds(OpenVLAConfig, checkpoint=text, temperature=positive),
    algorithm=grpo | ppo,
    rollout=st.builds(RolloutConfig, episodes_per_iteration=count),
    learner=st.builds(LearnerConfig, lr=positive, betas=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99))),
    evaluation=st.builds(EvalConfig, every=st.integers(0, 99), mode=st.sampled_from(["greedy", "sample"])),
    checkpoint=st.builds(CheckpointConfig, every=count),
)


@settings(deadline=None)
@given(configs)
def test_yaml_round_trip_is_exact(config: TrainConfig) -> None:
    assert from_dict(yaml.safe_load(dump_yaml(config))) == config


@settings(deadline=None)
@given(configs, configs)
def test_what_a_file_names_wins_over_any_base(config: TrainConfig, base: TrainConfig) -> None:
    assert from_dict(to_dict(config), base) == config


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_consistent_and_what_its_name_says(name: str) -> None:
    config = get(name)
    config.check()
    parts = (kind_of("policy", config.policy), kind_of("algorithm", config.algorithm))
    plain = name.replace("_7b", "")  # the same three with published weights
    assert plain in ["_".join((benchmark, *parts)) for benchmark in BENCHMARKS]
    assert config.suite.startswith(name.partition("_")[0])


def test_an_unknown_recipe_is_suggested_for() -> None:
    with pytest.raises(UserError, match="Did you mean 'tabletop_pi0_ppo'"):
        get("tabletop_pi0_poo")


def test_a_file_changes_only_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("seed: 7\nlearner:\n  lr: 3e-5\nalgorithm:\n  success_rate_range: [0.2, 1]\n")
    base = TrainConfig(iterations=3, learner=LearnerConfig(value_lr=0.5), algorithm=GRPOConfig())
    loaded = load_yaml(path, base)
    changed = dataclasses.replace(
        base, seed=7, learner=LearnerConfig(value_lr=0.5, lr=3e-5), algorithm=GRPOConfig(success_rate_range=(0.2, 1.0))
    )
    assert loaded == changed


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sede": 1}, "unknown key 'sede'. Did you mean 'seed'?"),
        ({"env": {"num_env": 1}}, "unknown key 'env.num_env'. Did you mean 'num_envs'?"),
        ({"algorithm": {"name": "grpo", "gamma": 1.0}}, "'algorithm.gamma' does not apply to grpo (it belongs to ppo)"),
        ({"algorithm": {"clip_lo": 0.1}}, "unknown key 'algorithm.clip_lo'. Did you mean 'clip_low'?"),
        ({"algorithm": {"group_size": 4}}, "'algorithm.group_size' does not apply to ppo (it belongs to grpo)"),
        ({"algorithm": {"name": "gpro"}}, "unknown algorithm 'gpro'. Did you mean 'grpo'?"),
        ({"algorithm": {"epochs": "8"}}, "'algorithm.epochs' must be a whole number, got '8'"),
        ({"algorithm": {"epochs": 8.0}}, "'algorithm.epochs' must be a whole number, got 8.0"),
        ({"algorithm": {"epochs": True}}, "'algorithm.epochs' must be a whole number, got True"),
        ({"learner": {"lr": True}}, "'learner.lr' must be a number, got True"),
        ({"learner": {"lr": "fast"}}, "'learner.lr' must be a number, got 'fast'"),
        ({"learner": {"betas": [0.9]}}, "'learner.betas' must be a list of 2 numbers"),
        ({"env": {"renderer": "vulkan"}}, "'env.renderer' must be one of auto, egl, osmesa, raycast"),
        ({"env": 3}, "'env' must hold keys and values"),
        ({"tasks": "stack"}, "'tasks' must be a list of names"),
        ({"seed": None}, "'seed' must be a whole number, got None"),
        ({"seed": -1}, "seed must not be negative"),
        ({"env": {"num_envs": 0}}, "env.num_envs must be at least 1"),
        ({"env": {"processes": 0}}, "env.processes must be at least 1"),
        ({"env": {"num_envs": 4, "processes": 5}}, "--env.processes 5: there are only 4 envs."),
        ({"policy": {"temperature": 0.0}}, "policy.temperature must be positive"),
    ],
)
def test_a_bad_key_or_value_is_one_clear_line(data: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        from_dict(data)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["- a list\n", "seed: [1\n", "text"])
def test_a_file_that_is_not_a_mapping(content: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(content)
    with pytest.raises(UserError, match=r"bad\.yaml") as caught:
        load_yaml(path)
    assert "\n" not in str(caught.value)


def test_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read .*none.yaml"):
        load_yaml(tmp_path / "none.yaml")


def test_group_size_must_divide_only_where_there_are_groups() -> None:
    rollout = RolloutConfig(episodes_per_iteration=30)
    TrainConfig(algorithm=PPOConfig(), rollout=rollout).check()
    with pytest.raises(UserError, match="use 24 or 32 episodes"):
        TrainConfig(algorithm=GRPOConfig(group_size=8), rollout=rollout).check()


OLD = {
    "num_envs": 4, "simulator": "native", "renderer": "auto", "render_quality": "auto", "era": "auto",
    "reward": "sparse", "reward_gamma": None, "step_reward": "auto", "control": "auto", "num_threads": 2,
    "randomize_color": 0.0, "randomize_light": 0.0, "randomize_camera": 0.0, "randomize_friction": 0.0,
    "randomize_mass": 0.0, "deterministic": False, "processes": None,
}  # fmt: skip
"""What a run wrote when one class had the options of every simulator."""


@pytest.mark.parametrize(
    ("suite", "changes", "name", "kept"),
    [
        (
            "tabletop_goal",
            {"renderer": "raycast", "era": "current"},
            "mujoco",
            {"renderer": "raycast", "num_threads": 2},
        ),
        ("libero_10", {"reward": "staged", "reward_gamma": 0.9}, "mujoco", {"reward_gamma": 0.9}),
        ("tabletop_goal", {"simulator": "warp", "randomize_mass": 0.1}, "warp", {"randomize_mass": 0.1}),
        ("gymnasium", {"processes": 2}, "gymnasium", {"processes": 2}),
        ("fetch", {"reward_gamma": 0.95}, "envpool", {"reward_gamma": 0.95}),
        ("maniskill", {"control": "libero"}, "maniskill", {"control_mode": "libero"}),
        ("point", {}, "custom", {}),
    ],
)
def test_the_env_of_an_earlier_version_is_read(
    suite: str, changes: dict[str, object], name: str, kept: dict[str, object]
) -> None:
    env = from_dict({"suite": suite, "env": OLD | changes}).env
    assert type(env) is ENVS[name]
    assert env.num_envs == 4
    assert {key: getattr(env, key) for key in kept} == kept


def test_an_option_of_another_simulator_is_refused_in_a_file_of_an_earlier_version() -> None:
    with pytest.raises(UserError, match=r"'env.control_mode' does not apply to simulator mujoco: remove it"):
        from_dict({"env": OLD | {"control": "libero"}})


def test_another_simulator_keeps_what_both_have() -> None:
    base = TrainConfig(env=MujocoConfig(num_envs=3, render_quality="fast", num_threads=2))
    assert from_dict({"env": {"name": "warp"}}, base).env == WarpConfig(num_envs=3, render_quality="fast")
    with pytest.raises(UserError, match=r"'env.physics_version' does not apply to warp \(it belongs to mujoco\)"):
        from_dict({"env": {"name": "warp", "era": "current"}}, base)


def test_an_option_that_is_gone_is_read_where_it_says_what_always_is_now() -> None:
    data: dict[str, Any] = {"guard": {"max_rollbacks": 3}, "scheduler": {"name": "pipelined", "max_batch_delay_ms": 0}}
    assert from_dict(data) == TrainConfig(scheduler=PipelinedConfig())
    data = {"reward": {"model": "judge", "alone": True}}
    assert from_dict(data).reward == RewardConfig(model="judge", replace_env_reward=True), "and what has another name"
    with pytest.raises(UserError, match=r"mine.yaml: 'guard.max_rollbacks' is no option any more, and 5 is not"):
        from_dict({"guard": {"max_rollbacks": 5}}, source="mine.yaml")

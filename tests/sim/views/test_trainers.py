"""rl_games, rsl_rl and skrl, as they come from the package index, train through the view."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from gymnasium import spaces

from embodied_rl.benchmarks.view_trainers import TRAINERS
from embodied_rl.errors import UserError
from embodied_rl.sim.views import rl_games as rl_games_view
from embodied_rl.sim.views import rsl_rl as rsl_rl_view
from embodied_rl.sim.views.skrl import SkrlVecEnv
from tests.sim.views.test_isaacgym import World, actions, view

PAGE = Path(__file__).parents[3] / "docs" / "views.md"
IMPORTS = {
    "views.rl_games": "rl_games",
    "views.rsl_rl": "tensordict",
    "views.skrl": "skrl",
    "stable_baselines3": "stable_baselines3",
    "torchrl": "torchrl",
}
PACKAGES = {"rl_games": "rl_games.common", "rsl_rl": "tensordict"}


def need(name: str) -> None:
    """Skip where the trainer is not installed; never in CI."""
    if importlib.util.find_spec(name) is None and os.environ.get("CI") != "true":
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("name", list(TRAINERS))
def test_a_trainer_runs_unmodified(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(name)
    monkeypatch.chdir(tmp_path)
    worlds: list[World] = []

    def make(num_envs: int, seed: int):
        worlds.append(World(num_envs, breaks={1: 1}))
        return view(worlds[-1], seed=seed)

    TRAINERS[name](make, 1, tmp_path, num_envs=8, epochs=2)
    assert len(worlds[0].started) > 24


def test_rsl_rl_sees_observations_in_groups_and_may_shift_episodes() -> None:
    need("tensordict")
    env = rsl_rl_view.RslRlVecEnv(view(obs=("proprio",), states=("state",)))
    groups = env.get_observations()
    assert sorted(groups.keys()) == ["critic", "policy"]
    assert torch.equal(groups["policy"], env.get_observations()["policy"])
    env.episode_length_buf = torch.full_like(env.episode_length_buf, env.max_episode_length - 1)
    _, _, reset, extras = env.step(torch.zeros(6, 2))
    assert reset.all()
    assert extras["time_outs"].all()


def test_skrl_tells_the_end_of_an_episode_from_the_end_of_its_time() -> None:
    env = SkrlVecEnv(view())
    first, _ = env.reset()
    assert torch.equal(first, env.reset()[0])  # it resets again where it evaluates, and must not lose episodes
    ended, late = 0, 0
    for action in actions(40):
        obs, reward, terminated, truncated, extras = env.step(action)
        assert (obs.shape, reward.shape, terminated.shape, truncated.shape) == ((6, 5), (6, 1), (6, 1), (6, 1))
        assert terminated.dtype == truncated.dtype == torch.bool
        assert torch.equal(truncated[:, 0], extras["time_outs"])
        assert torch.equal(terminated[:, 0], extras["success"])
        ended, late = ended + int(terminated.sum()), late + int(truncated.sum())
    assert ended
    assert late
    assert env.state_space is None
    assert env.state() is None


def test_skrl_shows_states_to_a_critic_alone() -> None:
    env = SkrlVecEnv(view(obs=("proprio",), states=("state",)))
    env.reset()
    before = env.state()
    env.step(torch.ones(6, 2))
    assert env.state_space is not None
    assert before is not None
    assert before.shape == (6, env.env.num_states)


class OldBox:
    """As gym.spaces.Box: a class of its own, not gymnasium's."""


class OldBoxOfGymnasium(spaces.Box):
    """As gym.spaces.Box where gym is a layer over gymnasium."""


@pytest.mark.parametrize("old", [OldBox, spaces.Box, OldBoxOfGymnasium, spaces.Space])
def test_spaces_are_also_those_of_gym_where_it_is_installed(old: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where `gym` is gymnasium itself under another name."""
    monkeypatch.setitem(sys.modules, "gym", ModuleType("gym"))
    monkeypatch.setitem(sys.modules, "gym.spaces", SimpleNamespace(Box=old))
    space = view().action_space
    assert isinstance(space, old)
    assert isinstance(space, spaces.Box)
    assert space.contains(space.sample())


def test_a_module_that_is_called_gym_and_has_no_spaces_is_not_gym(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym", ModuleType("gym"))
    assert type(view().action_space) is spaces.Box


@pytest.mark.parametrize("number", range(6))
def test_the_examples_of_the_page_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but with fewer envs and updates."""
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[number]
    need(next((package for word, package in IMPORTS.items() if word in code), "torch"))
    monkeypatch.chdir(tmp_path)
    for long, short in (
        ("num_envs=32", "num_envs=2"),
        (", 32,", ", 2,"),
        ("=60", "=1"),
        ("(60)", "(1)"),
        ("32 * 60", "32"),
        ("20_000", "16"),
    ):
        code = code.replace(long, short)
    exec(compile(code, f"views.md, block {number}", "exec"), {})


@pytest.mark.parametrize("name", ["rl_games", "rsl_rl"])
def test_a_missing_trainer_is_named_with_its_install_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[name], None)
    with pytest.raises(UserError, match="pip install"):
        rl_games_view.register(view) if name == "rl_games" else rsl_rl_view.RslRlVecEnv(view())

"""A run's reward model: pinned by its digest, refused where it does not belong, and handed to the learner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.autotune.tune import tune
from embodied_rl.cli import main
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.train import TrainConfig, from_dict, to_dict
from embodied_rl.errors import UserError
from embodied_rl.jobs.describe import reward_words
from embodied_rl.jobs.ranks import RunRanks, WorkerRankError, open_together, settings_of
from embodied_rl.jobs.run_folder import check_unchanged
from embodied_rl.jobs.train_setup import Overrides, RunSetup, with_reward
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.guard import GuardConfig
from embodied_rl.reward_model import SIMULATOR_REWARD
from embodied_rl.rewards.config import RewardConfig
from embodied_rl.rewards.open import reward_digest
from embodied_rl.rewards.progress import ProgressConfig, ProgressModel, digest, save_progress
from embodied_rl.rewards.relabel import ProgressReward, SuccessReward
from embodied_rl.rollout.config import RolloutConfig
from tests.embodied_rl.rewards.tiny_models import save_clip


def save(folder: Path, seed: int) -> Path:
    torch.manual_seed(seed)
    save_progress(ProgressModel(ProgressConfig(cameras=2, image_size=16, words=("go",))), folder, {})
    return folder


def opened(config: TrainConfig, size: int = 16, *, has_success: bool = True) -> RunSetup:
    info = SimpleNamespace(cameras=("agentview", "wrist"), image_shape=(size, size), has_success=has_success)
    env: Any = SimpleNamespace(info=info)
    none: Any = None
    return RunSetup(config, env, none, none, none, none, none, Overrides())


def asks_for(folder: Path) -> TrainConfig:
    base = TrainConfig(device="cpu", num_threads=1)
    reward = RewardConfig(model=str(folder), weight=0.25)
    return replace(base, reward=reward, env=replace(base.env, num_threads=1))


def test_the_model_is_pinned_and_another_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "reward", 0)
    setup = with_reward(opened(asks_for(folder)))
    assert setup.config.reward.digest == digest(folder)
    assert digest(folder)[:12] in reward_words(setup.config.reward)
    assert with_reward(setup).config == setup.config, "a resumed run finds the same"
    assert from_dict(to_dict(setup.config)) == setup.config
    save(folder, 1)
    with pytest.raises(UserError, match="another reward model"):
        with_reward(setup)
    edited = replace(setup.config, reward=replace(setup.config.reward, digest=digest(folder)))
    with pytest.raises(UserError, match=r"reward\.digest was"):
        check_unchanged(edited, to_dict(setup.config))


def test_a_run_without_one_has_the_simulators_rewards() -> None:
    setup = opened(TrainConfig())
    assert with_reward(setup) is setup


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path / "reward", 0)
    with pytest.raises(UserError, match="train one on such data"):
        with_reward(opened(asks_for(folder), size=32))
    with_reward(opened(asks_for(folder), has_success=False))  # a potential needs no success
    with pytest.raises(UserError, match="knows the words of its demonstrations, and --perturb instruction"):
        with_reward(opened(replace(asks_for(folder), perturb=("light", "instruction"))))
    with_reward(opened(replace(asks_for(folder), perturb=("light",))))
    with pytest.raises(UserError, match="no reward model"):
        with_reward(opened(asks_for(tmp_path)))
    with pytest.raises(UserError, match="Use --algorithm ppo"):
        replace(asks_for(folder), algorithm=GRPOConfig()).check()
    with pytest.raises(UserError, match="weight must be above 0"):
        RewardConfig(model=str(folder), weight=0)


def test_a_judge_may_teach_alone(tmp_path: Path) -> None:
    """Also where no simulator speaks of success; and whatever else would follow the simulator is refused by name."""
    asked = asks_for(save(tmp_path / "reward", 0))
    ppo = PPOConfig(bootstrap_truncated=False)
    asked = replace(asked, algorithm=ppo, reward=replace(asked.reward, replace_env_reward=True))
    asked.check()
    for has_success in (True, False):
        setup = with_reward(opened(asked, has_success=has_success))
        assert isinstance(setup.reward_model, SuccessReward)
        assert "alone" in reward_words(setup.config.reward)
        assert from_dict(to_dict(setup.config)) == setup.config
    beside = replace(setup.config, reward=replace(setup.config.reward, replace_env_reward=False))
    with pytest.raises(UserError, match=r"reward\.replace_env_reward was"):
        check_unchanged(beside, to_dict(setup.config))
    with pytest.raises(UserError, match=r"name it with --reward\.model"):
        RewardConfig(replace_env_reward=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": GRPOConfig()}, "--reward.model is built for PPO: GRPO compares"),
        ({"algorithm": PPOConfig()}, "add --algorithm.no-bootstrap-truncated"),
        ({"rollout": RolloutConfig(sampler="adaptive")}, "--rollout.sampler adaptive draws episodes by the simulator"),
        ({"guard": GuardConfig(action="roll_back")}, "--guard.action roll_back takes updates back by the simulator"),
        ({"env": MujocoConfig(reward="staged")}, "--env.reward staged is paid by the simulator"),
    ],
)
def test_what_would_follow_the_simulator_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    asked = replace(asks_for(tmp_path), algorithm=PPOConfig(bootstrap_truncated=False))
    beside = replace(asked, **changes)
    alone = replace(beside, reward=replace(asked.reward, replace_env_reward=True))
    if not isinstance(beside.algorithm, GRPOConfig):
        beside.check()
    with pytest.raises(UserError, match=re.escape(said)) as refused:
        alone.check()
    assert "\n" not in str(refused.value)


def test_the_settings_of_a_run_have_it(tmp_path: Path) -> None:
    setup = with_reward(opened(asks_for(save(tmp_path / "reward", 0))))
    found = settings_of(setup).reward_model
    assert isinstance(found, ProgressReward)
    assert found.needs_final_images, "PPO bootstraps, unless told"
    ends = replace(setup.config, algorithm=PPOConfig(bootstrap_truncated=False))
    assert not with_reward(replace(setup, config=ends)).reward_model.needs_final_images
    assert settings_of(replace(setup, reward_model=SIMULATOR_REWARD)).reward_model is SIMULATOR_REWARD


def test_one_of_transformers_is_pinned_with_its_prompts(tmp_path: Path) -> None:
    """A resumed run refuses other weights, and other prompts."""
    folder = save_clip(tmp_path / "clip")
    asked = asks_for(folder)
    asked = replace(asked, reward=replace(asked.reward, goal_prompt="a robot arm {instruction}"))
    setup = with_reward(opened(asked, size=32))
    assert setup.config.reward.digest == reward_digest(folder)
    assert from_dict(to_dict(setup.config)) == setup.config
    other = replace(setup.config, reward=replace(setup.config.reward, goal_prompt="a table"))
    with pytest.raises(UserError, match=r"reward\.goal_prompt was"):
        check_unchanged(other, to_dict(setup.config))
    save_clip(folder, seed=1)
    with pytest.raises(UserError, match="another reward model"):
        with_reward(setup)


def test_prompts_without_a_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"name it with --reward\.model"):
        RewardConfig(goal_prompt="go")
    prompted = RewardConfig(model=str(save(tmp_path / "reward", 0)), goal_prompt="go")
    with pytest.raises(UserError, match="a goal prompt does not apply"):
        with_reward(opened(replace(asks_for(tmp_path), reward=prompted)))


@pytest.mark.parametrize(
    ("prompts", "said"),
    [
        ({"goal_prompt": "the {instruction}", "baseline_prompt": "the drawer"}, "choose another baseline prompt"),
        ({}, "reads 12 tokens"),
    ],
)
def test_a_goal_that_clip_cannot_read_is_found_before_the_first_episode(
    tmp_path: Path, prompts: dict[str, str], said: str
) -> None:
    asked = asks_for(save_clip(tmp_path / "clip"))
    setup = opened(replace(asked, reward=replace(asked.reward, **prompts)))
    assert with_reward(replace(setup, instructions=("go", "open"))).config.reward.digest != "auto"
    with pytest.raises(UserError, match=said):
        with_reward(replace(setup, instructions=("go", "drawer" if prompts else "go " * 30)))


def test_autotune_has_no_reward_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tabletop", "--reward.model", str(save(tmp_path / "reward", 0))]
    assert main(["train", *words, "--autotune", "--output", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert "--autotune has no reward model in its trials" in said
    assert said.count("\n") == 1
    none: Any = None
    with pytest.raises(UserError, match=r"leave out --reward\.model"):
        tune(asks_for(tmp_path), none, none, {}, none)


class Told(Collectives):
    """Rank `rank` of two, the other of which says the same but for its digests."""

    def __init__(self, rank: int, **other: str) -> None:
        self.rank, self.size, self._other = rank, 2, other

    def gather(self, value: Any) -> list[Any]:
        text, pinned = value
        other = {what: self._other.get(what.split()[0], digest) for what, digest in pinned.items()}
        return [value, (text, other)] if self.rank == 0 else [(text, other), value]


def test_ranks_with_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = asks_for(save(tmp_path / "reward", 0))

    @contextmanager
    def open_run(*_: object, **__: object) -> Iterator[RunSetup]:
        yield opened(config)

    monkeypatch.setattr("embodied_rl.jobs.ranks.open_run", open_run)

    def begin(collectives: Collectives) -> str:
        with open_together(RunRanks(config, None, collectives), Overrides(), Console(quiet=True)) as setup:
            return setup.config.reward.digest

    assert begin(Told(0)) == digest(Path(config.reward.model))
    with pytest.raises(UserError, match=r"rank 1 has another reward model in .*: copy rank 0's") as refused:
        begin(Told(0, reward="f" * 64))
    assert "\n" not in str(refused.value)
    with pytest.raises(WorkerRankError):
        begin(Told(1, reward="f" * 64))

"""Progress models: what they learn, how they are kept, and what their rewards leave as it was."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.cli import main
from embodied_rl.data import writer
from embodied_rl.data.layout import ACTION_NAMES, PROPRIO_NAMES, DatasetSpec, Episode
from embodied_rl.errors import UserError
from embodied_rl.jobs.reward import _write
from embodied_rl.learner.batches import join_batches, split_groups
from embodied_rl.rewards.card import JudgedEpisode, auc, demonstration_figures, rank_correlation, rollout_figures
from embodied_rl.rewards.progress import ProgressConfig, ProgressModel, digest, load_progress, save_progress
from embodied_rl.rewards.relabel import ProgressReward, differences
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.rewards.test_rewards import rollout

SIZE = 16
FAST = ["--steps", "120", "--batch-size", "16", "--shift", "0", "--threads", "1", "--success-frames", "1"]


def demonstrations(out: Path, order: Any = np.arange) -> Path:
    """Two cameras in which a bar rises over 12 frames; `order(12)` says which frame stands where."""
    spec = DatasetSpec(("agentview", "wrist"), SIZE, PROPRIO_NAMES, ACTION_NAMES)
    partial = writer.begin(out, {})
    for key in range(5):
        images = np.full((12, 2, SIZE, SIZE, 3), 20 * key, np.uint8)
        for time, frame in enumerate(order(12)):
            images[time, :, SIZE - 1 - frame :] = 255
        numbers = np.zeros((12, 8), np.float32)
        writer.add_episode(
            partial, spec, Episode(key, "raise the bar", images, numbers, numbers[:, :7], numbers[:, :7])
        )
    writer.finalize(out, spec, {"suite": "tabletop_object", "renderer": "raycast", "split": "fresh"})
    return out


def model(seed: int = 0) -> ProgressModel:
    torch.manual_seed(seed)
    return ProgressModel(ProgressConfig(cameras=1, image_size=SIZE, words=("go",))).eval()


def seen(path: Path) -> RolloutBatch:
    """A rollout of the toy with pictures that the model takes, and at least one success and one failure."""
    batch = rollout(path, PPOConfig())
    torch.manual_seed(1)
    images = torch.randint(0, 256, (len(batch), 1, SIZE, SIZE, 3), dtype=torch.uint8)
    episodes = [replace(each, success=number % 2 == 0) for number, each in enumerate(batch.episodes)]
    return replace(batch, images=images, instruction=["go"] * len(batch), episodes=episodes)


def test_a_model_is_trained_kept_and_measured(tmp_path: Path) -> None:
    data, out = demonstrations(tmp_path / "demos"), tmp_path / "reward"
    train = ["reward", "train", str(data), *FAST]
    assert main([*train, "--out", str(out)]) == 0
    assert main(["reward", "card", str(out), str(data), "--episodes", "0"]) == 0
    card = json.loads((out / "card.json").read_text())
    assert card["demonstrations"] == 1, "a fifth of five is held out"
    assert card["rank_correlation"] > 0.9
    assert card["auc_earlier_frames"] > 0.95
    assert main([*train, "--out", str(tmp_path / "again")]) == 0
    weights = [load_progress(folder)[0].state_dict() for folder in (out, tmp_path / "again")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0]), "the same seed"
    assert load_progress(out)[1]["dataset"]["sha256"] == card["dataset"]
    assert main([*train, "--out", str(out)]) == 2, "a model is not written over"


def test_frames_in_no_order_teach_nothing(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    data, out = demonstrations(tmp_path / "demos", draws.permutation), tmp_path / "reward"
    assert main(["reward", "train", str(data), *FAST, "--out", str(out)]) == 0
    assert main(["reward", "card", str(out), str(data), "--episodes", "0"]) == 0
    assert json.loads((out / "card.json").read_text())["rank_correlation"] < 0.9


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=20), st.floats(0, 1))
@settings(max_examples=50, deadline=None)
def test_an_episodes_discounted_return_stays(progress: list[float], gamma: float) -> None:
    added = differences(torch.tensor(progress, dtype=torch.float64), gamma)
    assert abs(float((added * gamma ** torch.arange(len(added)).double()).sum())) < 1e-9


def test_every_episode_is_shaped_and_returns_stay(tmp_path: Path) -> None:
    batch, gamma = seen(tmp_path), 0.9
    found = ProgressReward(model(), gamma=gamma, weight=2.0).relabel(batch)
    for number in range(len(batch.episodes)):
        rows = batch.episode == number
        discounts = gamma ** torch.arange(int(rows.sum()))
        torch.testing.assert_close(
            (found.reward[rows] * discounts).sum(), (batch.reward[rows] * discounts).sum(), atol=1e-5, rtol=0
        )
        assert len(discounts) == 1 or not torch.equal(found.reward[rows], batch.reward[rows])


class Unsure:
    """A judge that knows nothing."""

    def __init__(self, answer: float) -> None:
        self._answer = answer

    def progress(self, images: torch.Tensor, instruction: list[str]) -> torch.Tensor:
        return torch.full((len(instruction),), self._answer)

    def done(self, images: torch.Tensor, instruction: list[str]) -> torch.Tensor:
        return torch.full((len(instruction),), self._answer)

    def drain(self) -> dict[str, float]:
        return {"reward/answers": 1.0}


@pytest.mark.parametrize("answer", [math.nan, math.inf, -math.inf])
def test_an_episode_of_which_nothing_is_known_is_left_as_it_was(answer: float, tmp_path: Path) -> None:
    batch = seen(tmp_path)
    reward = ProgressReward(Unsure(answer), gamma=0.9, weight=2.0)
    assert torch.equal(reward.relabel(batch).reward, batch.reward)
    assert reward.drain() == {"reward/answers": 1.0, "reward/unknown_episodes": float(len(batch.episodes))}


def test_progress_that_is_not_known_stays_what_it_was() -> None:
    """By hand, gamma 0.5: phi is 0, 0, 0.25, 0.25 and 0.75 before the decisions of which the first and fourth are
    unknown; then 0, or what is seen after the last."""
    seen = torch.tensor([torch.nan, 0.25, 0.5, torch.nan, 1.0])
    assert differences(seen, 0.5).tolist() == [0.0, 0.125, -0.125, 0.125, -0.75]
    assert differences(seen, 0.5, goes_on=True).tolist() == [0.0, 0.125, -0.125, 0.125]


def test_a_learner_that_bootstraps_needs_the_last_pictures(tmp_path: Path) -> None:
    reward = ProgressReward(model(), gamma=0.9, weight=2.0, bootstrap=True)
    assert reward.needs_final_images
    with pytest.raises(ValueError, match="pictures after it"):
        reward.relabel(seen(tmp_path))


def test_groups_give_what_a_whole_batch_gives(tmp_path: Path) -> None:
    batch, reward = seen(tmp_path), ProgressReward(model(), gamma=0.99, weight=0.5)
    parts = join_batches([reward.relabel(group) for group in split_groups(batch)])
    assert torch.equal(reward.relabel(batch).reward, parts.reward)


def test_damaged_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no reward model"):
        load_progress(tmp_path)
    save_progress(model(), tmp_path / "a", {})
    save_progress(model(1), tmp_path / "b", {})
    assert digest(tmp_path / "a") != digest(tmp_path / "b")
    weights = tmp_path / "a" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match="damaged"):
        load_progress(tmp_path / "a")
    with pytest.raises(UserError, match="cameras"):
        model().judge(torch.zeros((1, 2, SIZE, SIZE, 3), dtype=torch.uint8), ["go"])


def test_a_checkpoint_and_its_card_are_written_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of a checkpoint's files can't be written, and a card only half: what was there is whole."""
    folder, card = tmp_path / "a", tmp_path / "a" / "card.json"
    save_progress(model(), folder, {})
    before = digest(folder)
    with pytest.raises(TypeError):
        save_progress(model(1), folder, {"not": object()})
    assert digest(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    _write(card, {"auc": 0.5})
    write = Path.write_text

    def full(path: Path, text: str, **options: Any) -> int:
        write(path, text[: len(text) // 2], **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match="No space left"):
        _write(card, {"auc": 0.25})
    assert json.loads(card.read_text()) == {"auc": 0.5}


def test_an_unknown_word_is_read_as_one() -> None:
    images = torch.zeros((2, 1, SIZE, SIZE, 3), dtype=torch.uint8)
    progress, _ = model().judge(images, ["stop", "halt"])
    assert progress[0] == progress[1]


def test_figures_by_hand() -> None:
    assert rank_correlation(np.array([0.1, 0.2, 0.9])) == pytest.approx(1)
    assert rank_correlation(np.array([0.9, 0.2, 0.1])) == pytest.approx(-1)
    assert rank_correlation(np.ones(3)) == 0
    assert auc(np.array([0.9, 0.5]), np.array([0.5, 0.1])) == pytest.approx(3.5 / 4)
    shown = JudgedEpisode(np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.1, 0.8]), True)
    fooled = JudgedEpisode(shown.progress, np.array([0.1, 0.9, 0.2]), False)
    honest = JudgedEpisode(shown.progress, np.array([0.1, 0.2, 0.3]), False)
    assert demonstration_figures([shown])["auc_earlier_frames"] == 1
    figures = rollout_figures([shown], [shown, fooled, honest])
    assert figures["failed_episodes_rewarded"] == 0.5
    assert figures["auc_failed_episodes"] == pytest.approx(5 / 6)
    assert figures["auc_ends_of_episodes"] == 1

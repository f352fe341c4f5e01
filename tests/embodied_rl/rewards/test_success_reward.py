"""A judge alone: what it pays, what it never looks at, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from embodied_rl.learner.batches import join_batches, split_groups
from embodied_rl.rewards.relabel import SuccessReward
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.rewards.test_progress import model, seen

GAMMA = 0.9


class Bright:
    """Sees the task done in a bright picture (NaN in one that is grey), and progress in time."""

    def __init__(self, *, knows_progress: bool = True) -> None:
        self._knows_progress = knows_progress

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        found = torch.linspace(0.2, 0.8, len(instruction))
        return found if self._knows_progress else found * torch.nan

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        light = images.flatten(1).float().mean(1)
        return torch.where(light == 7, torch.nan, light / 255)

    def drain(self) -> dict[str, float]:
        return {"reward/answers": 1.0}


def ended(path: Path) -> RolloutBatch:
    """A batch whose episodes' pictures are bright throughout; at their end only every third is, and one is grey."""
    batch = seen(path)
    images = torch.zeros(len(batch.episodes), *batch.images.shape[1:], dtype=torch.uint8)
    images[::3], images[1] = 255, 7
    return replace(batch, images=torch.full_like(batch.images, 255), final_images=images)


def alone(judge: Bright | None = None, weight: float = 2.0, *, has_success: bool = True) -> SuccessReward:
    return SuccessReward(judge or Bright(), gamma=GAMMA, weight=weight, has_success=has_success)


def test_an_episode_pays_by_what_it_shows_at_its_end(tmp_path: Path) -> None:
    """1 at the last decision or 0, and differences that leave the discounted return at that."""
    batch = ended(tmp_path)
    found = alone().relabel(replace(batch, reward=batch.reward + 5))
    plain = alone(Bright(knows_progress=False)).relabel(batch)
    for number, episode in enumerate(found.episodes):
        rows = found.reward[batch.episode == number]
        paid = number % 3 == 0
        wanted = GAMMA ** (len(rows) - 1) * paid
        assert float((rows * GAMMA ** torch.arange(len(rows))).sum()) == pytest.approx(wanted, abs=1e-5)
        assert episode.reward == pytest.approx(float(rows.sum()), abs=1e-5)
        assert plain.reward[batch.episode == number].tolist() == [0.0] * (len(rows) - 1) + [float(paid)]
        assert len(rows) == 1 or bool((rows[:-1] > 0).any()), "progress is credited, however the episode ends"


def test_an_answer_that_is_not_finite_is_none(tmp_path: Path) -> None:
    class Endless(Bright):
        def done(self, images: Tensor, instruction: list[str]) -> Tensor:
            return torch.full((len(images),), torch.inf)

    batch, reward = ended(tmp_path), alone(Endless(knows_progress=False))
    assert not reward.relabel(batch).reward.any()
    assert reward.drain()["reward/unknown_episodes"] == len(batch.episodes)


def test_what_the_simulator_says_changes_no_reward(tmp_path: Path) -> None:
    batch = ended(tmp_path)
    lied = [
        replace(each, success=not each.success, terminated=each.truncated, truncated=each.terminated, reward=9.0)
        for each in batch.episodes
    ]
    one, two = alone().relabel(batch), alone().relabel(replace(batch, reward=-batch.reward, episodes=lied))
    assert torch.equal(one.reward, two.reward)
    assert [each.reward for each in one.episodes] == [each.reward for each in two.episodes]


def test_agreement_with_the_simulator_is_reported(tmp_path: Path) -> None:
    batch, reward = ended(tmp_path), alone()
    reward.relabel(batch)
    count = len(batch.episodes)
    done = [number % 3 == 0 for number in range(count)]
    won = [episode.success for episode in batch.episodes]
    positives = sum(yes and not really for yes, really in zip(done, won, strict=True))
    negatives = sum(really and not yes for yes, really in zip(done, won, strict=True))
    assert positives
    assert negatives
    assert reward.drain() == pytest.approx(
        {
            "reward/answers": 1.0,
            "reward/unknown_episodes": 1.0,
            "reward/done": sum(done) / count,
            "reward/agreement": 1 - (positives + negatives) / count,
            "reward/false_positives": positives / count,
            "reward/false_negatives": negatives / count,
        }
    )
    assert reward.drain() == {"reward/answers": 1.0, "reward/unknown_episodes": 0.0}, "of no episodes there is nothing"
    silent = alone(has_success=False)
    silent.relabel(batch)
    assert set(silent.drain()) == {"reward/answers", "reward/unknown_episodes", "reward/done"}


def test_groups_give_what_a_whole_batch_gives(tmp_path: Path) -> None:
    batch = ended(tmp_path)
    torch.manual_seed(2)
    assert batch.final_images is not None
    batch.final_images = torch.randint_like(batch.final_images, 256)
    judge = model()
    with torch.no_grad():  # so that some are done and some not
        half = judge.forward(batch.final_images, ["go"] * len(batch.episodes))[:, 1].median()
        last = judge.head[-1]
        assert isinstance(last, torch.nn.Linear)
        last.bias[1] -= half
    reward = SuccessReward(judge, gamma=GAMMA, weight=0.5, has_success=True)
    whole = reward.relabel(batch)
    assert 0 < reward.drain()["reward/done"] < 1
    parts = join_batches([reward.relabel(group) for group in split_groups(batch)])
    assert torch.equal(whole.reward, parts.reward)
    assert whole.episodes == parts.episodes


def test_without_final_images_nothing_is_judged(tmp_path: Path) -> None:
    """Not by the last decision's pictures either, in which the goal never holds."""
    with pytest.raises(ValueError, match="after each episode's last step"):
        alone().relabel(seen(tmp_path))

"""Judging by questions: strict reading, progress from comparisons, batches, and answers that cannot be read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.rewards.config import PromptConfig
from embodied_rl.rewards.vlm import VlmJudge, accumulate, read_closer, read_done
from tests.embodied_rl.rewards.tiny_models import SIZE, save_vlm

MIXED = ["10", "-5", "+40%", "yes", "no"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_vlm(tmp_path_factory.mktemp("vlm"), MIXED, seed=2)


def pictures(count: int) -> torch.Tensor:
    torch.manual_seed(3)
    bright = torch.tensor([0.25, 1.0, 0.6])[torch.arange(count) % 3][:, None, None, None, None]
    return (bright * torch.randint(0, 256, (count, 1, SIZE, SIZE, 3))).to(torch.uint8)


@pytest.mark.parametrize(
    ("answer", "value"), [("10", 0.1), (" +40% ", 0.4), ("-5.", -0.05), ("0", 0.0), ("-100", -1.0), ("100 %", 1.0)]
)
def test_a_number_alone_is_read(answer: str, value: float) -> None:
    assert read_closer(answer) == value


@pytest.mark.parametrize(
    "answer", ["", "yes", "10 or 20", "about 10", "101", "-101", "0.5", "1e1", "--3", "10%%", "ten", "\u0661\u0660"]
)
def test_what_is_no_number_is_not_guessed(answer: str) -> None:
    assert math.isnan(read_closer(answer))


def test_yes_and_no_alone_are_read() -> None:
    assert [read_done(answer) for answer in ("yes", " No.", "YES")] == [1.0, 0.0, 1.0]
    assert all(math.isnan(read_done(answer)) for answer in ("", "yes, it is", "not yet", "1", "yes no"))


@given(st.lists(st.floats(-1, 1), max_size=30))
def test_progress_stays_between_nothing_and_done(closer: list[float]) -> None:
    found = accumulate(closer)
    assert len(found) == len(closer) + 1
    assert all(0 <= value <= 1 for value in found)
    for share, before, after in zip(closer, found, found[1:], strict=False):
        assert (after - before) * share >= 0, "it moves the way the comparison says"


def test_progress_by_hand_and_unread_from_there_on() -> None:
    assert accumulate([0.5, 0.5, -0.5]) == [0.0, 0.5, 0.75, 0.375]
    found = accumulate([0.5, math.nan, 0.5])
    assert found[:2] == [0.0, 0.5]
    assert all(map(math.isnan, found[2:]))


def test_questions_in_batches_get_the_answers_of_each_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = VlmJudge(folder, PromptConfig(), "cpu")
    frames = [frame.numpy() for frame in pictures(9)[:, 0]]
    texts = ["go", "open the drawer then", "a"] * 3  # of several lengths
    alone = [judge.ask([[frame]], [text])[0] for frame, text in zip(frames, texts, strict=True)]
    assert len(set(alone)) > 2, "pictures or texts are told apart"
    assert judge.ask([[frame] for frame in frames], texts) == alone
    monkeypatch.setattr("embodied_rl.rewards.vlm._MICROBATCH", 2)
    assert judge.ask([[frame] for frame in frames], texts) == alone


def test_an_episode_is_judged_and_unread_answers_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, images = VlmJudge(folder, PromptConfig(goal_prompt="finished: {instruction}"), "cpu"), pictures(4)
    asked: list[tuple[int, str]] = []

    def ask(shown: list[list[object]], texts: list[str]) -> list[str]:
        asked.extend(zip(map(len, shown), texts, strict=True))
        return ["50", "no idea", "10"] if len(shown) == 3 else ["yes", "no", "maybe", "no"]

    monkeypatch.setattr(judge, "ask", ask)
    progress = judge.progress(images, ["go"] * 4)
    assert progress[:2].tolist() == [0.0, 0.5]
    assert progress[2:].isnan().all()
    done = judge.done(images, ["go"] * 4)
    assert done.isnan().tolist() == [False, False, True, False]
    assert judge.drain() == {"reward/answers": 7.0, "reward/unread_answers": 2.0}
    assert judge.drain() == {"reward/answers": 0.0, "reward/unread_answers": 0.0}
    assert [count for count, _ in asked] == [2, 2, 2, 1, 1, 1, 1]
    assert all("finished: go" in text for _, text in asked)


def test_a_model_that_never_answers_as_asked_ends_the_run(tmp_path: Path) -> None:
    judge = VlmJudge(save_vlm(tmp_path, ["yes", "no"]), PromptConfig(), "cpu")
    assert not judge.done(pictures(3), ["go"] * 3).isnan().any()
    judge.progress(pictures(20), ["go"] * 20)  # it has answered something
    mute = VlmJudge(tmp_path, PromptConfig(), "cpu")
    assert mute.progress(pictures(4), ["go"] * 4)[1:].isnan().all()
    with pytest.raises(UserError, match="no answer of the model in"):
        mute.progress(pictures(20), ["go"] * 20)


def test_a_model_without_a_chat_template_is_refused(tmp_path: Path) -> None:
    save_vlm(tmp_path, ["yes", "no"])
    (tmp_path / "chat_template.jinja").unlink()
    with pytest.raises(UserError, match="chat template"):
        VlmJudge(tmp_path, PromptConfig(), "cpu")

"""Progress by CLIP: the formula against numpy, batches against single frames, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.rewards.clip import BASELINE, ClipJudge
from embodied_rl.rewards.config import PromptConfig
from embodied_rl.rewards.open import open_judge, reward_digest
from embodied_rl.types import Array
from tests.embodied_rl.rewards.test_progress import demonstrations
from tests.embodied_rl.rewards.tiny_models import SIZE, save_bert, save_clip, save_vlm

WORDS = ["open the drawer", "go", "open the drawer"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_clip(tmp_path_factory.mktemp("clip"))


def pictures(count: int = 3) -> torch.Tensor:
    torch.manual_seed(7)
    bright = torch.linspace(0.2, 1, count)[:, None, None, None, None]
    return (bright * torch.randint(0, 256, (count, 2, SIZE, SIZE, 3))).to(torch.uint8)


def vectors(folder: Path, images: torch.Tensor, texts: list[str]) -> tuple[Array, Array, float]:
    """What CLIP's own forward pass makes of pictures (of the first camera) and texts, one by one."""
    from transformers import CLIPModel, PreTrainedTokenizerFast

    model = CLIPModel.from_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    mean, std = np.array([0.48145466, 0.4578275, 0.40821073]), np.array([0.26862954, 0.26130258, 0.27577711])
    seen, read = [], []
    for frame in images[:, 0].numpy():
        pixels = torch.from_numpy(((frame / 255 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32))
        for text in texts:
            out = model(pixel_values=pixels, **tokenizer([text], return_tensors="pt"))
            read.append(out.text_embeds[0].detach().double().numpy())
        seen.append(out.image_embeds[0].detach().double().numpy())
    return np.array(seen), np.array(read[: len(texts)]), float(model.logit_scale.detach().exp())


@pytest.mark.parametrize("projection", [0.0, 0.3, 1.0])
def test_the_formula_is_the_papers(folder: Path, projection: float) -> None:
    images = pictures()
    seen, read, scale = vectors(folder, images, [*WORDS, BASELINE])
    goal, baseline = read[:3], read[3]
    wanted, chosen = [], []
    for s, g in zip(seen, goal, strict=True):
        way = (g - baseline)[:, None]
        onto = way @ way.T / (way.T @ way)  # the projection's matrix, about g
        point = projection * (g + onto @ (s - g)) + (1 - projection) * s
        wanted.append(1 - 0.5 * np.linalg.norm(point - g) ** 2)
        odds = np.exp(scale * np.array([s @ g, s @ baseline]))
        chosen.append(odds[0] / odds.sum())
    judge = ClipJudge(folder, PromptConfig(projection=projection), "cpu")
    np.testing.assert_allclose(judge.progress(images, WORDS).numpy(), wanted, atol=1e-5)
    np.testing.assert_allclose(judge.done(images, WORDS).numpy(), chosen, atol=1e-4)
    assert judge.drain() == {}
    if projection == 0:  # then 1 - |s - g|^2 / 2 is the cosine
        np.testing.assert_allclose(wanted, (seen * goal).sum(1), atol=1e-6)


def test_many_frames_give_what_each_gives_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, judge = pictures(7), ClipJudge(folder, PromptConfig(goal_prompt="a robot arm {instruction}"), "cpu")
    words = ["go", "open the drawer"] * 3 + ["go"]
    whole = judge.progress(images, words), judge.done(images, words)
    alone = [(judge.progress(images[i : i + 1], words[i : i + 1]), i) for i in range(7)]
    torch.testing.assert_close(whole[0], torch.cat([value for value, _ in alone]), atol=1e-5, rtol=0)
    monkeypatch.setattr("embodied_rl.rewards.clip._MICROBATCH", 2)
    torch.testing.assert_close(whole[1], judge.done(images, words), atol=1e-5, rtol=0)
    assert whole[0].unique().numel() == 7, "the pictures are told apart"


def test_prompts_decide(folder: Path) -> None:
    images = pictures()
    prompts = [
        PromptConfig(),
        PromptConfig(goal_prompt="lifts the {instruction}"),
        PromptConfig(baseline_prompt="mug"),
        PromptConfig(projection=1.0),
    ]
    found = [tuple(ClipJudge(folder, each, "cpu").progress(images, WORDS).tolist()) for each in prompts]
    assert len(set(found)) == len(prompts)


def test_wrong_prompts_and_folders_are_refused_in_a_line(folder: Path, tmp_path: Path) -> None:
    images = pictures()
    with pytest.raises(UserError, match="the goal is the baseline prompt"):
        ClipJudge(folder, PromptConfig(baseline_prompt="go"), "cpu").progress(images, ["go"] * 3)
    with pytest.raises(UserError, match="reads 12 tokens"):
        ClipJudge(folder, PromptConfig(goal_prompt="go " * 30), "cpu").progress(images, WORDS)
    with pytest.raises(UserError, match="no other braces"):
        PromptConfig(goal_prompt="done: {task}")
    with pytest.raises(UserError, match=r"lie in \[0, 1\]"):
        PromptConfig(projection=1.5)
    with pytest.raises(UserError, match="type 'bert'"):
        open_judge(save_bert(tmp_path / "bert"), PromptConfig(), "cpu")
    whole = save_clip(tmp_path / "whole")
    digest = reward_digest(whole)
    assert digest == reward_digest(save_clip(tmp_path / "same"))
    assert digest != reward_digest(save_clip(tmp_path / "other", seed=1))
    (whole / "card.json").write_text("{}")
    assert reward_digest(whole) == digest, "a card is no part of a model"
    for name, content in (("model.safetensors", b"none"), ("tokenizer.json", b"{}"), ("config.json", b"{")):
        broken = save_clip(tmp_path / name)
        (broken / name).write_bytes(content)
        with pytest.raises(UserError) as refused:
            open_judge(broken, PromptConfig(), "cpu")
        assert "\n" not in str(refused.value)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save_clip(tmp_path / "clip")
    weights = load_file(folder / "model.safetensors")
    weights.pop("visual_projection.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks 1 of its weights"):
        open_judge(folder, PromptConfig(), "cpu")


def test_each_kind_is_known_by_its_config(folder: Path, tmp_path: Path) -> None:
    assert type(open_judge(folder, PromptConfig(), "cpu")) is ClipJudge
    judge = open_judge(save_vlm(tmp_path / "vlm", ["yes", "no"]), PromptConfig(goal_prompt="go"), "cpu")
    assert type(judge).__name__ == "VlmJudge"
    with pytest.raises(UserError, match="a baseline prompt does not apply"):
        open_judge(tmp_path / "vlm", PromptConfig(baseline_prompt="go"), "cpu")


def test_a_card_is_written_and_one_of_unread_answers_is_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All demonstrations count for a model that has learned from none of them."""
    data = demonstrations(tmp_path / "demos")
    card = ["reward", "card", "--episodes", "0", "--goal-prompt", "lifts"]
    model = save_clip(tmp_path / "clip")
    assert main([*card, str(model), str(data)]) == 0
    figures = json.loads((model / "card.json").read_text())
    assert figures["demonstrations"] == 5
    assert "answers" not in figures
    assert main([*card, str(save_vlm(tmp_path / "vlm", ["perhaps"])), str(data)]) == 2
    assert "does not judge as asked" in capsys.readouterr().err

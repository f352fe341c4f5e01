"""Progress by questions to an image-text-to-text model: which of two pictures is closer to done, and is it done?

After VLAC, "A Vision-Language-Action-Critic Model for Robotic Real-World Reinforcement Learning" (Zhai et al. 2025).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.rewards.config import PromptConfig
from embodied_rl.rewards.pretrained import first_camera, load_pretrained

PAIR = (
    "A robot has this task: {task}. The first and the second image show the scene at two times. How much closer to "
    "the finished task is the second image than the first? Answer with one whole number from -100 to 100 and nothing "
    "else: above 0 if the second image is closer, below 0 if the first is, 0 if neither is."
)
DONE = "A robot has this task: {task}. Does the image show it finished? Answer with yes or no and nothing else."
_CLOSER = re.compile(r"[+-]?[0-9]{1,3}\s*%?\.?")
_WORDS = {"yes": 1.0, "no": 0.0}
_MICROBATCH = 16
_MAX_NEW_TOKENS = 8
_PATIENCE = 16
"""Answers after which one must have been read."""
UNREAD = math.nan
"""Stands for an answer that is none."""


def read_closer(answer: str) -> float:
    """The share by which the second image is closer, in [-1, 1]; NaN unless the answer is such a number alone."""
    text = answer.strip()
    if not _CLOSER.fullmatch(text):
        return UNREAD
    number = int(text.rstrip(" %.\t\n"))
    return number / 100 if -100 <= number <= 100 else UNREAD


def read_done(answer: str) -> float:
    """1 for yes, 0 for no; NaN for any other answer."""
    return _WORDS.get(answer.strip().removesuffix(".").lower(), UNREAD)


def accumulate(closer: Sequence[float]) -> list[float]:
    """Progress in [0, 1] of T frames from the T - 1 comparisons of neighbours; the first frame has 0.

    A share above 0 is one of what is left, a share below 0 one of what there is. After an unread one all are NaN.
    """
    found = [0.0]
    for share in closer:
        last = found[-1]
        found.append(last + share * (1 - last) if share > 0 else last + share * last)
    return found


class VlmJudge:
    """Asks an image-text-to-text model of transformers about the first camera's pictures; greedy answers, in batches.

    Answers are read strictly: what is not exactly what was asked for counts as unread, and the judgement is NaN.

    Example:
        >>> judge = VlmJudge(Path("a-vlm"), PromptConfig(), "cuda")
        >>> progress = judge.progress(batch.images[rows], words)
        >>> judge.drain()
        {'reward/answers': 31.0, 'reward/unread_answers': 2.0}
    """

    def __init__(self, folder: Path, prompts: PromptConfig, device: str) -> None:
        self._folder, self._prompts, self._device = folder, prompts, device
        self._model, self._processor = load_pretrained(folder, "AutoModelForImageTextToText", device)
        if not getattr(self._processor, "chat_template", None):
            raise UserError(f"the reward model in {folder} has no chat template: choose one that was trained to answer")
        self._processor.tokenizer.padding_side = "left"  # answers begin where questions end
        self._answers = self._unread = self._asked = 0
        self._answers_well = False

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        """As `Judge.progress`, in [0, 1]: neighbouring frames are compared.

        Raises:
            UserError: of the first 16 answers none could be read.
        """
        frames = first_camera(images)
        texts = [PAIR.format(task=self._prompts.goal(words)) for words in instruction[1:]]
        answers = self.ask([list(pair) for pair in pairwise(frames)], texts)
        return torch.tensor(accumulate(self._read([read_closer(answer) for answer in answers], answers)))

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        """As `Judge.done`: 1 or 0.

        Raises:
            UserError: of the first 16 answers none could be read.
        """
        texts = [DONE.format(task=self._prompts.goal(words)) for words in instruction]
        answers = self.ask([[frame] for frame in first_camera(images)], texts)
        return torch.tensor(self._read([read_done(answer) for answer in answers], answers))

    def drain(self) -> dict[str, float]:
        """How many answers there were, and how many could not be read."""
        found = {"reward/answers": float(self._answers), "reward/unread_answers": float(self._unread)}
        self._answers = self._unread = 0
        return found

    @torch.no_grad()
    def ask(self, images: Sequence[Sequence[Any]], texts: Sequence[str]) -> list[str]:
        """What the model says to each text with its images."""
        from PIL import Image

        answers: list[str] = []
        for row in range(0, len(texts), _MICROBATCH):
            part = slice(row, row + _MICROBATCH)
            chats = [
                _question([Image.fromarray(frame) for frame in frames], text)
                for frames, text in zip(images[part], texts[part], strict=True)
            ]
            inputs = self._processor.apply_chat_template(
                chats,
                add_generation_prompt=True,
                tokenize=True,
                return_dict=True,
                return_tensors="pt",
                processor_kwargs={"padding": True},
            ).to(self._device, dtype=self._model.dtype)
            said = self._model.generate(**inputs, do_sample=False, max_new_tokens=_MAX_NEW_TOKENS)
            new = said[:, inputs["input_ids"].shape[1] :]
            answers += self._processor.batch_decode(new, skip_special_tokens=True)
        return answers

    def _read(self, values: list[float], answers: Sequence[str]) -> list[float]:
        unread = sum(map(math.isnan, values))
        self._answers += len(values)
        self._unread += unread
        self._asked += len(values)
        self._answers_well |= unread < len(values)
        if self._asked >= _PATIENCE and not self._answers_well:
            raise UserError(
                f"no answer of the model in {self._folder} can be read, such as {answers[0][:60]!r}: it does not judge "
                "as asked, choose another"
            )
        return values


def _question(images: Sequence[Any], text: str) -> list[dict[str, Any]]:
    content = [{"type": "image", "image": image} for image in images] + [{"type": "text", "text": text}]
    return [{"role": "user", "content": content}]

"""Progress by CLIP: how near a picture is to the goal in words, measured along the way from a baseline in words.

After "Vision-Language Models are Zero-Shot Reward Models for Reinforcement Learning" (Rocamonde et al. 2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from embodied_rl.errors import UserError
from embodied_rl.rewards.config import PromptConfig
from embodied_rl.rewards.pretrained import first_camera, load_pretrained

BASELINE = "a robot arm at a table"
PROJECTION = 0.5
_MICROBATCH = 64


class ClipJudge:
    """Judges the first camera's pictures with a CLIP-like model of transformers (CLIP, SigLIP, ALIGN, ...).

    Each frame, goal and baseline is a vector of length 1: s, g, b. `progress` is goal-baseline regularisation,

        1 - |projection * P(s - g) + (1 - projection) * (s - g)|^2 / 2

    where P projects onto the line through b and g. `done` is CLIP's own choice between goal and baseline: the softmax
    of scale * (s.g, s.b).

    Example:
        >>> judge = ClipJudge(Path("clip-vit-large"), PromptConfig(goal_prompt="an open drawer"), "cuda")
        >>> progress = judge.progress(batch.images[rows], words)
    """

    def __init__(self, folder: Path, prompts: PromptConfig, device: str) -> None:
        self._folder, self._prompts, self._device = folder, prompts, device
        self._projection = PROJECTION if prompts.projection is None else prompts.projection
        self._model, self._processor = load_pretrained(folder, "AutoModel", device)
        self._texts: dict[str, Tensor] = {}
        self._baseline_text = prompts.baseline_prompt or BASELINE
        self._baseline = self._text(self._baseline_text)

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        """As `Judge.progress`; at most 1."""
        seen, goal = self._see(images), self._goals(instruction)
        way = normalize(goal - self._baseline, dim=1)
        off = seen - goal
        along = (off * way).sum(1, keepdim=True) * way
        apart = self._projection * along + (1 - self._projection) * off
        return 1 - apart.square().sum(1) / 2

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        """As `Judge.done`."""
        seen, goal = self._see(images), self._goals(instruction)
        scale = self._model.logit_scale.float().exp().cpu() if hasattr(self._model, "logit_scale") else 1.0
        return (scale * (seen * (goal - self._baseline)).sum(1)).sigmoid()

    def check(self, instruction: Sequence[str]) -> None:
        """UserError if a task's goal is too long for the model, or is the baseline."""
        if instruction:
            self._goals(instruction)

    def drain(self) -> dict[str, float]:
        """None: every picture has an answer."""
        return {}

    @torch.no_grad()
    def _see(self, images: Tensor) -> Tensor:
        """Float32 [N, D], each of length 1."""
        parts = []
        for row in range(0, len(images), _MICROBATCH):
            frames = first_camera(images[row : row + _MICROBATCH])
            inputs = self._processor.image_processor(images=frames, return_tensors="pt")
            parts.append(self._vectors(self._model.get_image_features(**self._here(inputs))))
        return torch.cat(parts)

    def _goals(self, instruction: Sequence[str]) -> Tensor:
        """Float32 [N, D]."""
        goals = [self._prompts.goal(words) for words in instruction]
        if self._baseline_text in goals:
            raise UserError(f"the goal is the baseline prompt, '{self._baseline_text}': choose another baseline prompt")
        return torch.cat([self._text(goal) for goal in goals])

    @torch.no_grad()
    def _text(self, text: str) -> Tensor:
        """Float32 [1, D]; kept, as tasks are few."""
        if text not in self._texts:
            tokenizer, config = self._processor.tokenizer, self._model.config
            most = int(getattr(config, "text_config", config).max_position_embeddings)
            count = len(tokenizer(text)["input_ids"])
            if count > most:
                raise UserError(f"the model in {self._folder} reads {most} tokens, and '{text[:60]}...' has {count}")
            inputs = tokenizer([text], padding="max_length", max_length=most, return_tensors="pt")
            self._texts[text] = self._vectors(self._model.get_text_features(**self._here(inputs)))
        return self._texts[text]

    def _here(self, inputs: Any) -> dict[str, Tensor]:
        """On the model's device; pictures in its dtype."""
        moved = {name: value.to(self._device) for name, value in inputs.items() if isinstance(value, Tensor)}
        return {
            name: value.to(self._model.dtype) if value.is_floating_point() else value for name, value in moved.items()
        }

    @staticmethod
    def _vectors(features: Any) -> Tensor:
        found = features if isinstance(features, Tensor) else features.pooler_output
        return normalize(found.float(), dim=1).cpu()

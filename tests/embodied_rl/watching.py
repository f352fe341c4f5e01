"""A toy policy that says what it makes of an observation, and a detector for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from embodied_rl.evaluation.detector import DemonstratedStates, Detector, Kind
from embodied_rl.policy import PolicyTraits
from embodied_rl.training.filtered_bc import weights_digest
from tests.toy import CHUNK, INSTRUCTIONS, ToyPolicy, row_linear
from tests.toy_demos import demonstrations


class SummarisingPolicy(ToyPolicy):
    """Its summary is its hidden layer. asked: rows of each call."""

    def __init__(self, seed: int = 0, *, with_value: bool = False) -> None:
        super().__init__(seed, with_value=with_value)
        self.asked: list[int] = []

    @property
    def traits(self) -> PolicyTraits:  # type: ignore[override]
        return replace(ToyPolicy.traits, summarise=self.summarise)

    @torch.no_grad()
    def summarise(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        self.asked.append(len(instruction))
        text = torch.tensor([[float("touch" in words)] for words in instruction])
        x = torch.cat([images.flatten(1).float() / 255, proprio, text], dim=1)
        return torch.tanh(row_linear(x, self.body))


def toy_detector(policy: SummarisingPolicy, limit: float, kind: Kind = "nearest") -> Detector:
    """With demonstrations of the toy to compare with, and one limit for all tasks."""
    data = demonstrations(range(4))
    lengths = np.diff(data.starts)
    to_go = np.concatenate([np.arange(length, 0, -1) for length in lengths])
    summary = policy.summarise(torch.from_numpy(data.images[:]), torch.from_numpy(data.state), data.instruction)
    states = DemonstratedStates.of(summary.numpy(), to_go, data.instruction)
    return Detector(kind, weights_digest(policy), CHUNK, dict.fromkeys(INSTRUCTIONS.values(), limit), states)

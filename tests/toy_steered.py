"""The toy policy (see `tests.toy`) with chunks to choose from, and files that keep its critic."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from embodied_rl.policies.checkpoints.folder import to_json
from embodied_rl.policies.steering import Steering, is_steered, load_steering, steering_files
from embodied_rl.policy import ActMode, PolicyTraits, Proposals
from embodied_rl.rng import DecisionRng
from embodied_rl.training.settings import PolicyFiles
from embodied_rl.types import ActOutput, Observation
from tests.toy import ToyPolicy, row_linear


class SteeredToy(ToyPolicy):
    """Samples its chunks, in either mode; counts how often it is asked, and for how many rows."""

    steering: Steering | None

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed, with_value=False)
        self.steering = None
        self.asked: Counter[str] = Counter()

    @property
    def traits(self) -> PolicyTraits:  # type: ignore[override]
        return replace(ToyPolicy.traits, critic=None, propose=self.propose, summarise=self.summarise)

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        if self.steering is not None:
            return self.steering.act(self, obs, rng, mode)
        return super().act(obs, rng, mode)

    def propose(self, obs: Observation, rng: DecisionRng, mode: ActMode, count: int) -> Proposals:
        self.asked["propose"] += len(obs.instruction)
        again = obs.rows([row for row in range(len(obs.instruction)) for _ in range(count)])
        act = super().act(again, rng.candidates(count), "sample")
        return Proposals(act, self._summary(obs.images, obs.proprio, obs.instruction))

    def summarise(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        self.asked["summarise"] += len(instruction)
        return self._summary(images, proprio, instruction)

    @torch.no_grad()
    def _summary(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        text = torch.tensor([[float("touch" in words)] for words in instruction])
        x = torch.cat([images.flatten(1).float() / 255, proprio, text], dim=1)
        return torch.tanh(row_linear(x, self.body))


def steered_files(policy: SteeredToy) -> PolicyFiles:
    """As `toy_run.files_of`, of a policy that may be steered."""

    def save(folder: Path) -> None:
        folder.mkdir()
        own = {name: value for name, value in policy.state_dict().items() if not name.startswith("steering.")}
        save_file(own, folder / "model.safetensors")
        about, files = steering_files(policy.steering)
        (folder / "config.json").write_bytes(to_json(about))
        for name, write in files.items():
            assert callable(write)
            write(folder / name)

    def load(folder: Path) -> None:
        policy.steering = None
        policy.load_state_dict(load_file(folder / "model.safetensors"))
        if is_steered(folder):
            load_steering(folder, policy)

    return PolicyFiles(save, load)

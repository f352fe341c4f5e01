"""A small convolutional network that sees how far a task has come, and whether it is done.

A checkpoint is a folder: model.safetensors and config.json, which says how the network was made and from which data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.rewards.pretrained import CONFIG, read_config
from embodied_rl.utils.dataclass_io import read_dataclass
from embodied_rl.utils.output import replace_folder

ARCHITECTURE, FORMAT = "progress", 1
WEIGHTS = "model.safetensors"
_UNKNOWN = 0
_CHANNELS = (16, 32, 64, 64)
_MICROBATCH = 256


@dataclass(frozen=True, kw_only=True)
class ProgressConfig:
    """The shape of a progress model. words: the instructions' vocabulary, numbered from 1."""

    cameras: int
    image_size: int
    words: tuple[str, ...]
    width: int = 128

    def __post_init__(self) -> None:
        if self.image_size % 16 or self.image_size < 16:
            raise UserError(f"a progress model needs images of a multiple of 16 pixels, got {self.image_size}")


def words_of(instruction: str) -> list[str]:
    """The words of an instruction in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+", instruction.lower())


class ProgressModel(nn.Module):
    """Progress and success from the last frame of every camera and the instruction.

    Each camera has convolutions of its own, whose features the instruction scales and shifts (FiLM, Perez et al. 2018).

    Example:
        >>> model = ProgressModel(ProgressConfig(cameras=2, image_size=64, words=("open", "drawer")))
        >>> progress, done = model.judge(obs.images, obs.instruction)
    """

    def __init__(self, config: ProgressConfig) -> None:
        super().__init__()
        self.config = config
        self._numbers = {word: number for number, word in enumerate(config.words, start=1)}
        self.embedding = nn.Embedding(len(config.words) + 1, config.width)
        self.position = nn.Embedding(64, config.width)
        self.text = nn.Sequential(nn.Linear(config.width, config.width), nn.ReLU())
        self.film = nn.Linear(config.width, 2 * config.cameras * _CHANNELS[-1])
        self.cameras = nn.ModuleList(_convolutions() for _ in range(config.cameras))
        features = config.cameras * _CHANNELS[-1] * (config.image_size // 16) ** 2
        self.head = nn.Sequential(nn.Linear(features, config.width), nn.ReLU(), nn.Linear(config.width, 2))

    def forward(self, images: Tensor, instruction: list[str]) -> Tensor:
        """Logits float32 [N, 2] of progress and of success, for images uint8 [N,V,H,W,3] and N instructions."""
        size = self.config.image_size
        if images.shape[1:] != (self.config.cameras, size, size, 3):
            _, cameras, height, width, _ = images.shape
            raise UserError(
                f"the reward model sees {self.config.cameras} cameras of {size} x {size} pixels, and got {cameras} "
                f"of {height} x {width}: train it on data of that size (collect --image-size)"
            )
        scale, shift = (
            self.film(self._read(instruction)).unflatten(1, (2, self.config.cameras, _CHANNELS[-1])).unbind(1)
        )
        pixels = images.permute(1, 0, 4, 2, 3).to(self.film.weight.dtype) / 127.5 - 1.0
        seen = [
            torch.relu(net(view) * (1 + scale[:, camera, :, None, None]) + shift[:, camera, :, None, None])
            for camera, (net, view) in enumerate(zip(self.cameras, pixels, strict=True))
        ]
        return self.head(torch.cat([view.flatten(1) for view in seen], dim=1))

    @torch.no_grad()
    def judge(self, images: Tensor, instruction: list[str]) -> tuple[Tensor, Tensor]:
        """Progress and the probability of success, float32 [N] in [0, 1] on the CPU; a row depends on itself alone."""
        device = self.film.weight.device
        rows = range(0, len(instruction), _MICROBATCH)
        parts = [
            self(images[row : row + _MICROBATCH].to(device), instruction[row : row + _MICROBATCH]).sigmoid().cpu()
            for row in rows
        ]
        progress, done = (torch.cat(parts) if parts else torch.zeros(0, 2)).unbind(1)
        return progress, done

    def progress(self, images: Tensor, instruction: list[str]) -> Tensor:
        """As `Judge.progress`."""
        return self.judge(images, instruction)[0]

    def done(self, images: Tensor, instruction: list[str]) -> Tensor:
        """As `Judge.done`."""
        return self.judge(images, instruction)[1]

    def drain(self) -> dict[str, float]:
        """None: every picture has an answer."""
        return {}

    def _read(self, instruction: list[str]) -> Tensor:
        """Float32 [N, width]: the mean of the words' embeddings, each with its place in the sentence."""
        texts = list(dict.fromkeys(instruction))
        read = []
        for text in texts:
            words = words_of(text)[: self.position.num_embeddings] or [""]
            numbers = torch.tensor(
                [self._numbers.get(word, _UNKNOWN) for word in words], device=self.film.weight.device
            )
            places = torch.arange(len(words), device=self.film.weight.device)
            read.append((self.embedding(numbers) * (1 + self.position(places))).mean(0))
        place = {text: number for number, text in enumerate(texts)}
        index = torch.tensor([place[text] for text in instruction], device=self.film.weight.device)
        return self.text(torch.stack(read))[index]


def _convolutions() -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip((3, *_CHANNELS), _CHANNELS, strict=False):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.GroupNorm(8, _CHANNELS[-1]))


def save_progress(model: ProgressModel, folder: Path, provenance: dict[str, Any]) -> None:
    """Write a checkpoint, all or nothing. provenance: how it was trained, with the data set's hash as `dataset`."""
    config = {"architecture": ARCHITECTURE, "format": FORMAT, "model": dataclasses.asdict(model.config)}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        replace_folder(
            folder,
            {
                WEIGHTS: partial(save_file, model.state_dict()),
                CONFIG: json.dumps(config | {"provenance": provenance}, indent=1).encode(),
            },
        )
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {folder} ({error}): free some space or choose another folder") from error


def load_progress(folder: Path) -> tuple[ProgressModel, dict[str, Any]]:
    """The model in a folder, in evaluation mode, and its provenance; UserError unless it holds a whole one."""
    config = read_reward_config(folder)
    try:
        model = ProgressModel(
            read_dataclass(ProgressConfig, config["model"], where="model", source=str(folder / CONFIG), base=None)
        )
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (KeyError, OSError, RuntimeError, SafetensorError) as error:
        what = " ".join(str(error).split())[:200]
        raise UserError(f"the reward model in {folder} is damaged ({what}): train it again") from error
    return model.eval(), config["provenance"]


def read_reward_config(folder: Path) -> dict[str, Any]:
    """config.json of a reward model's folder; UserError unless it is one of a progress model."""
    config = read_config(folder)
    if config.get("architecture") != ARCHITECTURE or config.get("format") != FORMAT:
        raise UserError(f"{folder} holds no reward model of this version: make one with embodied-rl reward train")
    return config


def digest(folder: Path) -> str:
    """SHA-256 of the weights and the config: the same for the same model."""
    read_reward_config(folder)
    found = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        try:
            found.update((folder / name).read_bytes())
        except OSError as error:
            raise UserError(f"the reward model in {folder} lacks {name}: train it again") from error
    return found.hexdigest()

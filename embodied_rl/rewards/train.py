"""Trains a progress model on demonstrations: time since the start over length, and success in the last frames."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from torch.nn.functional import binary_cross_entropy_with_logits

from embodied_rl.data.chunks import batch_samples, held_out_episodes, random_shift
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.data.progress import ProgressBar
from embodied_rl.errors import UserError
from embodied_rl.rewards.config import RewardTrainConfig
from embodied_rl.rewards.progress import ProgressConfig, ProgressModel, words_of
from embodied_rl.types import Array

_WARMUP = 50
_OF_SUCCESS = 4
"""One frame in so many of a batch shows success."""


@dataclass(frozen=True, slots=True)
class FrameLabels:
    """progress float32 [F] in [0, 1]; success bool [F]; known bool [F]: it is certain; episode int64 [F]."""

    progress: Array
    success: Array
    known: Array
    episode: Array


def label_frames(data: Demonstrations, success_frames: int) -> FrameLabels:
    """Labels of every frame of demonstrations that end in success.

    Raises:
        UserError: an episode is too short to have both.
    """
    lengths = np.diff(data.starts)
    if lengths.min() < 2 * success_frames + 2:
        raise UserError(
            f"{data.root} has an episode of {lengths.min()} frames: a progress model needs {2 * success_frames + 2} or "
            "more; give fewer --success-frames"
        )
    episode = np.repeat(np.arange(len(data)), lengths)
    since = np.arange(len(episode)) - data.starts[episode]
    left = lengths[episode] - 1 - since
    success = left < success_frames
    return FrameLabels(
        (since / (lengths[episode] - 1)).astype(np.float32), success, success | (left >= 2 * success_frames), episode
    )


def fit_progress(data: Demonstrations, config: RewardTrainConfig, console: Console) -> ProgressModel:
    """A progress model trained on the episodes that are not held out.

    The same data, config and number of threads give the same weights, bit for bit.

    Raises:
        UserError: the images do not suit the network, or the loss is not finite.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    labels = label_frames(data, config.success_frames)
    trained = ~held_out_episodes(data, validation=config.validation, seed=config.seed)[labels.episode]
    rows, ends = np.flatnonzero(trained), np.flatnonzero(trained & labels.success)
    model = _fresh(data, config.seed)
    adam = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=0.01)
    few = max(1, config.batch_size // _OF_SUCCESS)
    with ProgressBar(console, "reward") as bar:
        job = bar.add_task("", total=config.steps, note="")
        for step in range(config.steps):
            some = rows[batch_samples(len(rows), config.batch_size - few, step, config.seed)]
            batch = np.concatenate([some, ends[batch_samples(len(ends), few, step, config.seed + 1)]])
            for group in adam.param_groups:
                group["lr"] = _rate(step, config)
            loss = _loss(model, data, labels, batch, config, step)
            if not math.isfinite(loss.item()):
                raise UserError(f"the loss of step {step} is not finite: lower --lr")
            adam.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            bar.update(job, completed=step + 1, note=f"loss {loss.item():.3f}")
    return model.eval()


def _fresh(data: Demonstrations, seed: int) -> ProgressModel:
    _, views, height, width, _ = data.images.shape
    if height != width:
        raise UserError(f"{data.root} has images of {height} x {width} pixels: a progress model needs square ones")
    words = sorted({word for text in set(data.instruction) for word in words_of(text)})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ProgressModel(ProgressConfig(cameras=views, image_size=height, words=tuple(words)))


def _loss(
    model: ProgressModel, data: Demonstrations, labels: FrameLabels, rows: Array, config: RewardTrainConfig, step: int
) -> torch.Tensor:
    """Cross-entropy of progress, plus that of success where it is known."""
    images = random_shift(torch.from_numpy(data.images[rows]), config.shift, config.seed, step)
    progress, success = model(images, [data.instruction[row] for row in rows]).unbind(1)
    known = torch.from_numpy(labels.known[rows])
    of_success = torch.from_numpy(labels.success[rows]).float()
    return binary_cross_entropy_with_logits(
        progress, torch.from_numpy(labels.progress[rows])
    ) + binary_cross_entropy_with_logits(success[known], of_success[known])


def _rate(step: int, config: RewardTrainConfig) -> float:
    falling = 0.5 * (1.0 + math.cos(math.pi * step / config.steps))
    return config.lr * min(1.0, (step + 1) / _WARMUP) * falling

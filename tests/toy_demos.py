"""Demonstrations of the toy world (see `tests.toy`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from embodied_rl.data.chunks import split
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.data.mixture import Augmentation, Mixture, Part
from embodied_rl.learner.imitation import Demos
from embodied_rl.types import EpisodeSpec
from tests.toy import CHUNK, INSTRUCTIONS, TASKS, ToyEnv

CHANGE = Augmentation(1, 0.5)


def demonstrations(states: Sequence[int], tasks: Sequence[str] = tuple(TASKS)) -> Demonstrations:
    """Straight to the goal; every other episode does not say that it ended in success, so its last chunk is masked."""
    images, state, action, lengths, words = [], [], [], [], []
    for number, (task, start) in enumerate((task, start) for task in tasks for start in states):
        env = ToyEnv(1)
        env.reset([0], [EpisodeSpec(number, task, start, seed=0, group=number)])
        goal = (np.array([start % 2, start // 2 % 2]) * 1.5 - 0.75).astype(np.float32)
        obs = env.new_observation(1)
        first = len(action)
        for _ in range(7):
            env.observe([0], obs)
            images.append(obs.images[0].numpy().copy())
            state.append(obs.proprio[0].numpy().copy())
            action.append(np.round(np.clip((goal - state[-1]) * 4, -1, 1) * 2) / 2)
            words.append(INSTRUCTIONS[task])
            done = env.step([0], torch.from_numpy(action[-1].astype(np.float32)).view(1, 1, 2))
            if done.success[0]:
                break
        lengths.append(len(action) - first)
    return Demonstrations(
        images=np.stack(images),
        state=np.stack(state),
        action=np.stack(action).astype(np.float32),
        pushed=np.zeros(len(action), bool),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        success=np.arange(len(lengths)) % 2 == 0,
        instruction=words,
        cameras=("observation.images.front",),
        info={"fps": 20},
        root=Path(),
    )


def toy_demos(*weights: float, digest: str = "abc") -> Demos:
    """A data set of each weight, of different states."""
    sets = [demonstrations(range(4 * n, 4 * n + 4)) for n in range(len(weights))]
    parts = [split(data, CHUNK, validation=0.0, seed=0)[0] for data in sets]
    mixture = Mixture([Part(part, weight=weight) for part, weight in zip(parts, weights, strict=True)])
    return Demos(mixture, CHANGE, digest)

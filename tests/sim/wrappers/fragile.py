"""Toy worlds that break down on purpose, for children of a process environment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from embodied_rl.types import ChunkResult, EpisodeSpec, Observation
from tests.toy_world import ToyEnv


class FragileEnv(ToyEnv):
    """Breaks down in episodes named in `plan`, each time `folder` says that it has not yet."""

    def __init__(self, num_envs: int, plan: dict[int, str], folder: Path, leak: int) -> None:
        super().__init__(num_envs)
        self._plan = plan
        self._folder = folder
        self._leak = leak
        self._hoard: list[np.ndarray] = []
        self._episode: dict[int, int] = {}

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._spec[env_id] = None
            self._episode[env_id] = spec.episode_id
            if self._leak:
                self._hoard.append(np.ones(self._leak, np.uint8))
            self._break_down(spec.episode_id, "reset")
        super().reset(env_ids, episodes)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        for env_id in env_ids:
            spec = self._spec[env_id]
            if spec is not None and self._steps[env_id] > 0:
                self._break_down(spec.episode_id, "step")
        return super().step(env_ids, actions)

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        for env_id in env_ids:
            if self._spec[env_id] is None:
                self._break_down(self._episode[env_id], "end")
        super().observe(env_ids, out)

    def _break_down(self, episode: int, where: str) -> None:
        how, _, place = self._plan.get(episode, "").partition("@")
        done = self._folder / f"broken-{episode}"
        if not how or place != where or done.exists():
            return
        done.touch()
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(3600)
        raise ZeroDivisionError("the simulator broke")


@dataclass(frozen=True)
class Fragile:
    """Builds a FragileEnv in a child."""

    folder: Path
    plan: dict[int, str]
    leak: int = 0

    def __call__(self, num_envs: int) -> FragileEnv:
        return FragileEnv(num_envs, self.plan, self.folder, self.leak)


@dataclass(frozen=True)
class NeverStarts:
    """Cannot be built."""

    def __call__(self, num_envs: int) -> FragileEnv:
        raise FileNotFoundError("no assets for this simulator")


@dataclass(frozen=True)
class AlwaysBreaks(Fragile):
    """Breaks in whatever it does first, every time."""

    def __call__(self, num_envs: int) -> FragileEnv:
        class Env(FragileEnv):
            def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
                raise ZeroDivisionError("the simulator broke")

        return Env(num_envs, {}, self.folder, 0)


@dataclass(frozen=True)
class Kills(Fragile):
    """Episodes from one initial state kill the process as they begin."""

    state: tuple[str, int] = ("", 0)

    def __call__(self, num_envs: int) -> FragileEnv:
        state = self.state

        class Env(FragileEnv):
            def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
                if any((spec.task, spec.init_state) == state for spec in episodes):
                    os.kill(os.getpid(), signal.SIGKILL)
                super().reset(env_ids, episodes)

        return Env(num_envs, {}, self.folder, 0)

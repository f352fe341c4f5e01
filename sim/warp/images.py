"""Which visual model draws which task: models are built when they are first asked for, equal ones once."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
import torch

from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.warp.batch import Settings
from embodied_rl.sim.warp.randomize import Randomization
from embodied_rl.sim.warp.render import SceneRenderer, View
from embodied_rl.sim.warp.transfer import to_device
from embodied_rl.types import Array


def digest(model: mujoco.MjModel) -> str:
    """SHA-256 of a compiled model; models of equal digests are the same to the last bit."""
    binary = np.zeros(mujoco.mj_sizeModel(model), np.uint8)
    mujoco.mj_saveModel(model, None, binary)
    return hashlib.sha256(binary.tobytes()).hexdigest()


@dataclass(frozen=True, slots=True)
class Shown:
    """Envs that are drawn, and the rows of an observation that they fill."""

    env_ids: Sequence[int]
    rows: Sequence[int]


class Images:
    """Draws envs of any tasks, each visual model's in one batch.

    Args:
        num_envs: most envs of a call.
        view: what `draw` shows.
        settings: where it draws.
        randomize: how the looks of episodes differ; None: they have the model's own.
    """

    def __init__(self, num_envs: int, view: View, settings: Settings, randomize: Randomization | None = None) -> None:
        self._num_envs, self._view, self._settings = num_envs, view, settings
        self._randomize = randomize if randomize is not None and randomize.changes_looks else None
        self._by_digest: dict[str, SceneRenderer] = {}
        self._by_task: dict[str, SceneRenderer] = {}
        self._lock = threading.RLock()

    def renderer(self, task: MujocoTask) -> SceneRenderer:
        """The renderer of a task's visual model."""
        if task.name not in self._by_task:
            model = task.build_visual()
            key = digest(model)
            if key not in self._by_digest:
                self._by_digest[key] = SceneRenderer(model, self._num_envs, self._settings)
            self._by_task[task.name] = self._by_digest[key]
        return self._by_task[task.name]

    def reset(self, env_id: int, task: MujocoTask, seed: int) -> None:
        """Draw the looks of the episode with this seed, where they are to differ."""
        if self._randomize is not None:
            with self._lock:  # other threads draw meanwhile, or meet the task for the first time too
                renderer = self.renderer(task)
                renderer.randomize([env_id], [self._randomize.looks(renderer.host, seed)])

    def draw(self, tasks: Sequence[MujocoTask], qpos: torch.Tensor, out: torch.Tensor, shown: Shown) -> None:
        """Fill rows of out, uint8 [.., V, H, W, 3] on the device: out[shown.rows[i]] shows tasks[i] at qpos[i].

        qpos: float [N, nq] on the device, of tasks with one physics model.
        """
        with self._lock:
            for part in group([self.renderer(task) for task in tasks]):
                at = qpos if len(part) == len(tasks) else qpos[_index(part, qpos)]
                ids = None
                if self._randomize is not None:
                    ids = _index([shown.env_ids[i] for i in part], qpos)
                drawn = self.renderer(tasks[part[0]]).draw(at, self._view, ids)
                out[_index([shown.rows[i] for i in part], out)] = drawn

    def frame(self, task: MujocoTask, qpos: torch.Tensor, view: View, env_id: int) -> Array:
        """One picture in host memory: uint8 [size, size, 3]; qpos float [nq] on the device."""
        ids = None if self._randomize is None else _index([env_id], qpos)
        with self._lock:
            return self.renderer(task).draw(qpos[None], view, ids)[0, 0].cpu().numpy()


def _index(rows: Sequence[int], place: torch.Tensor) -> torch.Tensor:
    """int64 [n], where `place` is."""
    return to_device(torch.tensor(rows, dtype=torch.int64), place.device)


def group(owners: Sequence[object]) -> list[list[int]]:
    """Rows by owner, in order of first appearance."""
    found: dict[int, list[int]] = {}
    for row, owner in enumerate(owners):
        found.setdefault(id(owner), []).append(row)
    return list(found.values())

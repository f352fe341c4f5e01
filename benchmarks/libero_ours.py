"""Our side of `bench libero`: MujocoVecEnv on exported tasks, measured as the official side is."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from embodied_rl.benchmarks.libero_official import Timing
from embodied_rl.sim.libero.tasks import LiberoTask, load_task
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.render.gl import GlRenderer
from embodied_rl.types import Array, EpisodeSpec

_WARM_CHUNKS = 8


class OurEnvs:
    """N envs of one task, each in another of its first initial states; frames are OSMesa's.

    pictures: None draws nothing; True draws with shadows, antialiasing and reflections, as the official stack; False
    without them, as this project's policies see it.
    """

    def __init__(self, task: LiberoTask, count: int, size: int, *, images: bool | None = None) -> None:
        renderer = GlRenderer("osmesa", images=images) if images is not None else None
        self._envs = MujocoVecEnv([task], count, image_size=size, renderer=renderer, stop_at_success=False)
        self._slots = list(range(count))
        self._specs = [EpisodeSpec(env_id, task.name, env_id, 0) for env_id in self._slots]
        self._out = self._envs.new_observation(count) if renderer is not None else None
        self._envs.reset(self._slots, self._specs)

    def reset(self, times: int) -> Timing:
        """All envs to their first states, `times` times; seconds of all of it."""

        def job() -> None:
            for _ in range(times):
                self._envs.reset(self._slots, self._specs)

        return _timed(job)

    def step(self, actions: Array, chunk: int) -> Timing:
        """Control steps with float32 [T, N, 7] in chunks; where something is drawn, once before each chunk."""

        def job() -> None:
            for rows in chunks:
                if self._out is not None:
                    self._envs.observe(self._slots, self._out)
                taken.append(int(self._envs.step(self._slots, torch.from_numpy(rows)).steps_taken.sum()))

        taken: list[int] = []
        chunks = [np.ascontiguousarray(actions[at : at + chunk].swapaxes(0, 1)) for at in range(0, len(actions), chunk)]
        timing = _timed(job)
        if sum(taken) != actions.shape[0] * actions.shape[1]:
            raise RuntimeError(f"{sum(taken)} control steps ran instead of {actions.shape[0] * actions.shape[1]}")
        return timing

    def distance(self, states: list[list[float]]) -> float:
        """Largest difference of a joint position to other envs' [time, qpos, qvel]."""
        gaps = [0.0]
        for env_id, state in zip(self._slots, states, strict=True):
            qpos = self._envs.data(env_id).qpos
            gaps.append(float(np.abs(qpos - np.array(state)[1 : 1 + len(qpos)]).max()))
        return max(gaps)

    def close(self) -> None:
        """Stop the threads."""
        self._envs.close()


def slot_bytes(root: Path, name: str, count: int) -> float:
    """Memory that each env adds to the first one, bytes, over `count` envs that have all run; in a new process."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_slot_bytes, root, name, count).result()


def _slot_bytes(root: Path, name: str, count: int) -> float:
    task = load_task(root, name)
    envs = MujocoVecEnv([task], 1 + count, stop_at_success=False)
    run = _run_slots(envs, task)
    run([0])
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # else new envs would live on memory that loading the task has left
    before = unique_bytes()
    run(list(range(1, 1 + count)))
    added = unique_bytes() - before
    envs.close()
    return added / count


def _run_slots(envs: MujocoVecEnv, task: LiberoTask) -> Callable[[list[int]], None]:
    def run(env_ids: list[int]) -> None:
        envs.reset(env_ids, [EpisodeSpec(env_id, task.name, env_id % len(task.init_states), 0) for env_id in env_ids])
        for _ in range(_WARM_CHUNKS):  # pages count once they are used
            envs.step(env_ids, torch.zeros(len(env_ids), 8, PANDA.action_dim))

    return run


def unique_bytes() -> int:
    """Memory of this process that no other one shares (Linux)."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def _timed(job: Callable[[], None]) -> Timing:
    cpu, started = time.process_time(), time.perf_counter()
    job()
    return Timing(time.perf_counter() - started, time.process_time() - cpu)

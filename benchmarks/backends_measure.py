"""What `bench backends` does with an open simulator: step it, draw it, or both, for some time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from embodied_rl.config.env import MujocoConfig
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.rng import philox
from embodied_rl.sim.mujoco.kernel import is_compiled
from embodied_rl.types import EpisodeSpec
from embodied_rl.vec_env import VecEnv

CHUNK = 8
Mode = Literal["physics", "frames", "both"]
"""physics: chunks of 8 control steps, nothing drawn. frames: every camera of every env, again and again. both: a
control step of every env, then every camera."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of all envs together: control steps and pictures a second, CPU milliseconds of one env's control step.

    In mode 'frames' there are no control steps, and `cpu_ms` is that of one picture. seconds: of the measurement.
    """

    env_steps_per_s: float
    frames_per_s: float
    cpu_ms: float
    seconds: float


class RandomEpisodes:
    """Random episodes of `tasks`, in turn, in all envs of a simulator."""

    def __init__(self, env: VecEnv, tasks: Sequence[str]) -> None:
        self.env = env
        self._tasks, self._ids = list(tasks), list(range(env.num_envs))
        self._cameras = len(env.info.cameras)
        self._out = env.new_observation(env.num_envs)
        self._episodes = 0
        info = env.info
        low, high = torch.tensor(info.action_low), torch.tensor(info.action_high)
        middle, half = (low + high) / 2, (high - low) / 4  # not to the ends, where arms only run into their limits
        draws = torch.from_numpy(philox(0, 0).uniform(-1.0, 1.0, (4, env.num_envs, CHUNK, info.action_dim)))
        self._actions = (middle + half * draws).float().to(info.device)
        self._turn = 0
        self._begin(self._ids)

    def _begin(self, env_ids: Sequence[int]) -> None:
        first, self._episodes = self._episodes, self._episodes + len(env_ids)
        # env ids belong to tasks for good: a backend may have a batch for each
        specs = [
            EpisodeSpec(first + number, self._tasks[env_id % len(self._tasks)], 0, first + number)
            for number, env_id in enumerate(env_ids)
        ]
        self.env.reset(env_ids, specs)

    def step(self, count: int) -> int:
        """Up to `count` control steps of every env; those that ended begin anew. Returns the steps that ran."""
        self._turn += 1
        result = self.env.step(self._ids, self._actions[self._turn % len(self._actions)][:, :count])
        over = torch.nonzero(result.terminated | result.truncated | result.failed).flatten().tolist()
        if over:
            self._begin(over)
        return int(result.steps_taken.sum())

    def draw(self) -> int:
        """Observe every env. Returns the number of pictures."""
        self.env.observe(self._ids, self._out)
        return self._cameras * len(self._ids)

    def turn(self, mode: Mode) -> tuple[int, int]:
        """Once round: control steps, pictures."""
        if mode == "physics":
            return self.step(CHUNK), 0
        if mode == "frames":
            return 0, self.draw()
        return self.step(1), self.draw()


def measure(episodes: RandomEpisodes, mode: Mode, seconds: float, warm_up: int = 2) -> Speed:
    """Go round for so long, at least once, after rounds that do not count."""
    for _ in range(warm_up):
        episodes.turn(mode)
    wait = _wait_for(episodes.env.info.device)
    wait()
    began, used = time.perf_counter(), time.process_time()
    steps = frames = 0
    while not steps + frames or time.perf_counter() - began < seconds:
        more_steps, more_frames = episodes.turn(mode)
        steps, frames = steps + more_steps, frames + more_frames
        if mode == "frames":
            wait()  # nothing else does, and the clock would only see launches
    wait()
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    return Speed(steps / wall, frames / wall, 1e3 * cpu / (steps or frames), wall)


def _wait_for(device: str) -> Callable[[], object]:
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def compile_simulator() -> None:
    """Compile the CPU engine's kernels unless they are in numba's cache, so that nothing measured has to."""
    if is_compiled():
        return
    config = MujocoConfig(num_envs=1, renderer="raycast")
    with open_tasks(load("tabletop_object", (), config), config) as env:
        episodes = RandomEpisodes(env, list(env.train_states)[:1])
        episodes.turn("both")

"""Scripted experts of the built-in suites and LIBERO: in `collect`'s one env, and in a person's place in a run's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.suites import suite_named
from embodied_rl.data.collect import Bench
from embodied_rl.data.collect import Expert as EpisodeExpert
from embodied_rl.errors import UserError
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.suites import of_scenes, open_tasks
from embodied_rl.factory.view import View
from embodied_rl.rng import EpisodeStream, philox
from embodied_rl.sim import tabletop
from embodied_rl.sim.libero import expert as libero_expert
from embodied_rl.sim.libero.protocol import Protocol
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.tabletop import expert as tabletop_expert
from embodied_rl.sim.wrappers.takeover import ExpertTakeover, TakeoverRule, Watcher
from embodied_rl.types import Array

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask

_HELD = ExitStack()


@contextmanager
def open_bench(tasks: Sequence[SuiteTask], config: MujocoConfig, chosen: Protocol, image_size: int) -> Iterator[Bench]:
    """One env, drawn and run as `config` and `chosen` say, and the expert of each task at the start of an episode."""
    settings = replace(config, num_envs=1, num_threads=1, processes=None)
    view = View(image_size=image_size, cameras=len(PANDA.cameras), protocol=chosen)
    with open_tasks(of_scenes(suite_named(tasks[0].suite), tasks), settings, view) as env:
        yield Bench(env, _Experts(env.mujoco, tasks).of)


def hold_bench(bench: AbstractContextManager[Bench]) -> Bench:
    """What `open_bench` opens, for a worker process: closed when the process ends."""
    torch.set_num_threads(1)  # workers share out the cores; and another number would round otherwise
    return _HELD.enter_context(bench)


def with_people(
    env: SuiteEnv, tasks: Sequence[SuiteTask], rule: TakeoverRule, watcher: Watcher | None = None
) -> ExpertTakeover:
    """`env` with the suite's scripted expert in a person's place.

    Args:
        env: holds all its worlds in this process, on the CPU.
        tasks: its tasks.
        rule: when the expert takes an episode over.
        watcher: of the rule 'detector'.

    Raises:
        UserError: There is no expert for the suite, or it can't look into the simulator.
    """
    if not tasks:
        raise UserError(f"suite '{env.info.suite}' has no scripted expert: people expert is for tabletop and LIBERO.")
    if not isinstance(env.simulator, MujocoVecEnv):
        raise UserError(
            "people expert looks into the simulator: leave --env.processes out, and run it on the CPU (--env mujoco)."
        )
    experts = _Experts(env.simulator, tasks)
    return ExpertTakeover(env, rule, lambda env_id, spec: experts.of(spec.task, spec.seed, env_id).act, watcher)


class _Experts:
    """Makes the expert of the episode that an env holds now."""

    def __init__(self, env: MujocoVecEnv, tasks: Sequence[SuiteTask]) -> None:
        self._env = env
        self._tasks = {task.name: task for task in tasks}
        self._surfaces: dict[str, libero_expert.Surface] = {}

    def of(self, name: str, seed: int, env_id: int = 0) -> EpisodeExpert:
        """The expert of task `name`; seed: the episode's."""
        task, env = self._tasks[name], self._env
        if task.suite in tabletop.suites():
            return _Tabletop(env, env_id, tabletop_expert.Expert(task, env.model(env_id)))
        if name not in self._surfaces:
            self._surfaces[name] = libero_expert.Surface(env.model(env_id))
        draws = philox(seed, EpisodeStream.GRASPS)
        return _Libero(env, env_id, libero_expert.Expert(task, env.model(env_id), self._surfaces[name], draws))


class _Tabletop:
    def __init__(self, env: MujocoVecEnv, env_id: int, expert: tabletop_expert.Expert) -> None:
        self._env, self._env_id, self._expert = env, env_id, expert
        expert.reset()

    def act(self) -> Array:
        """float64 [7] in [-1, 1]."""
        return self._expert.act(self._env.data(self._env_id))


class _Libero:
    def __init__(self, env: MujocoVecEnv, env_id: int, expert: libero_expert.Expert) -> None:
        self._env, self._env_id, self._expert = env, env_id, expert

    def act(self) -> Array:
        """float64 [7] in [-1, 1]."""
        return self._expert.act(self._env.data(self._env_id), self._env.held(self._env_id))

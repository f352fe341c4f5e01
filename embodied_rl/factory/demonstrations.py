"""What `collect` records in: one environment of the tabletop suites, with their scripted expert."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from embodied_rl.data.collect import Bench
from embodied_rl.sim.mujoco.vec_env import NativeVecEnv
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.tabletop.expert import Expert
from embodied_rl.types import Array

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask


def open_bench(tasks: Sequence[SuiteTask], image_size: int) -> Bench:
    """One environment, and the expert of each task at the start of an episode in it. Close `Bench.env`."""
    renderer = make_renderer("auto", [task.build_visual() for task in tasks])
    env = NativeVecEnv(tasks, 1, image_size=image_size, renderer=renderer, threads=1)
    by_name = {task.name: task for task in tasks}
    return Bench(env, lambda name: _Scripted(env, by_name[name]))


class _Scripted:
    """The tabletop expert at the start of the episode in env 0."""

    def __init__(self, env: NativeVecEnv, task: SuiteTask) -> None:
        self._env = env
        self._expert = Expert(task, env.model(0))
        self._expert.reset()

    def act(self) -> Array:
        """float64 [7] in [-1, 1]."""
        return self._expert.act(self._env.data(0))

"""Opens the native engine, in this process or, as `ProcessVecEnv` wants it, in one of its own."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.sim.engine.vec_env import NativeVecEnv
from embodied_rl.sim.render import RendererChoice, make_renderer
from embodied_rl.sim.task import Task


@dataclass(frozen=True, slots=True)
class NativeFactory:
    """`NativeVecEnv` of these tasks with as many slots as it is called with; can be pickled.

    renderer: as `make_renderer` takes it; official: pictures with shadows, reflections and antialiasing. The others are
    those of `NativeVecEnv`.
    """

    tasks: tuple[Task, ...]
    renderer: RendererChoice
    official: bool
    image_size: int
    threads: int | None
    stop_at_success: bool
    cameras: int

    def __call__(self, slots: int) -> NativeVecEnv:
        renderer = make_renderer(self.renderer, (), pictures=self.official)
        return NativeVecEnv(
            self.tasks, slots, image_size=self.image_size, renderer=renderer, threads=self.threads,
            stop_at_success=self.stop_at_success, cameras=self.cameras,
        )  # fmt: skip

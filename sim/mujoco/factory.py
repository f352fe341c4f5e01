"""Opens the MuJoCo env, in this process or in the child of a `ProcessVecEnv`; chooses its renderer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from embodied_rl.sim.mujoco import joint_kernel, kernel
from embodied_rl.sim.mujoco.episodes import TASKS_OWN, TrainingEpisodes
from embodied_rl.sim.mujoco.pool import AnyLayout
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.render import Choice, RendererChoice, choose, make_renderer
from embodied_rl.sim.state.staged import Shaping
from embodied_rl.types import EpisodeSpec


def choose_renderer(wanted: str, tasks: Sequence[MujocoTask], quality: Literal["exact", "fast"]) -> Choice:
    """What will draw these tasks in this quality, and why; UserError if nothing can."""
    # one model at a time: all of LIBERO's at once would take many gigabytes
    return choose(wanted, (task.build_visual() for task in tasks), fast=quality == "fast")


def choose_render_quality(wanted: str, tasks: Sequence[MujocoTask]) -> Literal["exact", "fast"]:
    """'exact' or 'fast' as wanted; 'auto' means 'exact' if any of the tasks is official."""
    exact = any(task.is_official for task in tasks) if wanted == "auto" else wanted == "exact"
    return "exact" if exact else "fast"


@dataclass(frozen=True, slots=True)
class MujocoFactory:
    """Call it with a number of envs to open a `MujocoVecEnv`; can be pickled.

    Args:
        renderer: as `make_renderer` takes it; none is made for 0 cameras.
        official: render with shadows, reflections and antialiasing.
        ladders: folder of decimated meshes, for the renderer 'raster'.

    The other arguments are those of `MujocoVecEnv`.
    """

    tasks: tuple[MujocoTask, ...]
    renderer: RendererChoice
    official: bool
    image_size: int | tuple[int, int]
    threads: int | None
    stop_at_success: bool
    cameras: int | tuple[str, ...]
    max_scene_bytes: int
    ladders: Path | None = None
    layout: AnyLayout | None = None
    shaping: Shaping | None = None
    pay_stages: bool = False
    training: TrainingEpisodes = TASKS_OWN

    def __call__(self, num_envs: int) -> MujocoVecEnv:
        renderer = None
        if self.cameras:
            renderer = make_renderer(self.renderer, (), images=self.official, ladders=self.ladders)
        return MujocoVecEnv(
            self.tasks,
            num_envs,
            image_size=self.image_size,
            renderer=renderer,
            threads=self.threads,
            stop_at_success=self.stop_at_success,
            cameras=self.cameras,
            max_scene_bytes=self.max_scene_bytes,
            layout=self.layout,
            shaping=self.shaping,
            pay_stages=self.pay_stages,
            training=self.training,
        )

    def compile(self) -> None:
        """Compile the kernels that are not in the disk cache: it may take longer than a child may leave unanswered."""
        if (joint_kernel if self.tasks[0].robot.drives else kernel).is_compiled():
            return
        with closing(self(1)) as env:
            env.reset([0], [EpisodeSpec(0, self.tasks[0].name, 0, 0)])
            env.step([0], torch.zeros(1, 1, env.info.action_dim))
            env.observe([0], env.new_observation(1))

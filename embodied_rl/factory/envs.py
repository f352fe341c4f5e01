"""Opens the simulated worlds of a list of MuJoCo tasks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Literal

from embodied_rl.config.env import SceneConfig, WarpConfig, discount
from embodied_rl.errors import UserError
from embodied_rl.factory.warp import WarpRequest, choose_warp, drawn_by_warp, open_warp
from embodied_rl.utils.console import tell_once

if TYPE_CHECKING:
    from embodied_rl.sim.mujoco.episodes import TrainingEpisodes
    from embodied_rl.sim.mujoco.task import MujocoTask
    from embodied_rl.sim.render import Choice
    from embodied_rl.sim.state.vector import StateLayout
    from embodied_rl.vec_env import VecEnv

_SCENE_BYTES = 2 << 30
"""Memory for models of scenes, for all processes together."""
_OTHER_GROWTH = 2 << 30
"""What a process with worlds may grow by else before it is replaced."""


def pick_renderer(config: SceneConfig, tasks: Sequence[MujocoTask]) -> Choice:
    """What will draw these tasks as `config` asks, and why; UserError if nothing can."""
    from embodied_rl.sim.mujoco.factory import choose_renderer

    if config.drawn_by_warp:
        return choose_warp(config.renderer)
    return choose_renderer(config.renderer, tasks, pick_render_quality(config.render_quality, tasks))


def pick_render_quality(wanted: str, tasks: Sequence[MujocoTask]) -> Literal["exact", "fast"]:
    """How frames are drawn: 'auto' means as LIBERO's own wherever one of its tasks is among these."""
    from embodied_rl.sim.mujoco.factory import choose_render_quality

    return choose_render_quality(wanted, tasks)


def open_env(
    tasks: Sequence[MujocoTask],
    config: SceneConfig,
    image_size: int,
    *,
    cameras: int = 2,
    stop_at_success: bool = True,
    state: bool = False,
    device: str = "cpu",
    training: TrainingEpisodes | None = None,
) -> closing[VecEnv]:
    """The worlds, to be used in a `with` statement; `cameras` of the simulator's are drawn, from the first.

    config.renderer is what `pick_renderer` chose, for these tasks or for those that they are variants of; nothing is
    drawn with 0 cameras. state: observations have one, with room for every task of the suites of `tasks`. device: where
    MuJoCo Warp simulates or draws, 'cpu' or 'cuda'. training: how episodes may differ from the tasks' own (None: they
    may not).
    """
    if cameras == 0 and config.randomizes_images:
        raise UserError(
            "--env.randomize-color, -light and -camera change images, and without cameras there are none: leave "
            "them out, or ask for cameras."
        )
    exact, by_warp = pick_render_quality(config.render_quality, tasks) == "exact", config.renderer == "warp"
    if isinstance(config, WarpConfig):
        asked = WarpRequest(config, image_size, cameras, stop_at_success, device, exact)
        return closing(open_warp(tasks, asked, state=state))
    announce_compilation()
    from embodied_rl.factory.tasks import ladders_dir
    from embodied_rl.sim.mujoco.episodes import TASKS_OWN
    from embodied_rl.sim.mujoco.factory import MujocoFactory
    from embodied_rl.sim.state.staged import Shaping
    from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv

    factory = MujocoFactory(
        tuple(tasks),
        "auto" if config.renderer == "warp" else config.renderer,
        official=exact,
        image_size=image_size,
        threads=threads_each(config.num_threads, config.processes),
        stop_at_success=stop_at_success,
        cameras=0 if by_warp else cameras,
        max_scene_bytes=_SCENE_BYTES // (config.processes or 1),
        ladders=ladders_dir(),
        layout=_state_layout(tasks) if state else None,
        shaping=None if config.reward == "sparse" else Shaping(config.reward, discount(config)),
        training=training or TASKS_OWN,
    )
    if by_warp and cameras:
        return closing(drawn_by_warp(factory(config.num_envs), cameras, device, config, exact=exact))
    if config.processes is None:
        return closing(factory(config.num_envs))
    factory.compile()
    return closing(
        ProcessVecEnv(
            factory,
            config.num_envs,
            processes=config.processes,
            max_growth=_SCENE_BYTES + _OTHER_GROWTH,
            say=lambda line: print(line, file=sys.stderr),  # looked up when called: a progress bar may hold it
        )
    )


def _state_layout(tasks: Sequence[MujocoTask]) -> StateLayout:
    """Room for all tasks of these tasks' suites, so that a policy of one of them fits the others."""
    from embodied_rl.factory.tasks import load_tasks
    from embodied_rl.sim.state.vector import StateLayout

    suites = {task.suite: task.era for task in tasks}
    return StateLayout.of([*tasks, *(task for suite, era in suites.items() for task in load_tasks(suite, (), era))])


def threads_each(threads: int | None, processes: int | None) -> int | None:
    """Threads of a process with worlds; at least one, so more processes than threads run side by side all the same."""
    return threads if processes is None or threads is None else max(1, threads // processes)


def announce_compilation() -> None:
    """Say on stderr why the first worlds of an installation keep their user waiting."""
    from embodied_rl.sim.mujoco import kernel

    if not kernel.is_compiled():
        tell_once("Compiling the simulator, once per installation: a minute on an idle machine.")

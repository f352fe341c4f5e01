"""The envs of MuJoCo scenes, the built-in suites' and LIBERO's: what simulates and draws them, under which protocol."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from typing import TYPE_CHECKING, Literal

from embodied_rl.config.env import AUTO, MujocoConfig, SceneConfig, WarpConfig, discount, resized
from embodied_rl.errors import UserError
from embodied_rl.factory.warp import WarpRequest, choose_warp, drawn_by_warp, open_warp
from embodied_rl.policies.preprocessing.images import image_pipeline, prepare
from embodied_rl.sim.libero.protocol import NATIVE
from embodied_rl.sim.wrappers.protocol_env import ProtocolEnv
from embodied_rl.utils.console import tell_once
from embodied_rl.utils.machine import cpu_count

if TYPE_CHECKING:
    from embodied_rl.factory.view import View
    from embodied_rl.sim.mujoco.task import MujocoTask
    from embodied_rl.sim.render import Choice
    from embodied_rl.sim.state.vector import StateLayout
    from embodied_rl.types import Array
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


def scene_envs(tasks: Sequence[MujocoTask], env: SceneConfig, view: View) -> AbstractContextManager[VecEnv]:
    """The envs of `tasks` as `view` wants them: a part of `factory.suites.open_tasks`, which is what opens envs.

    env.renderer: AUTO, or what `pick_renderer` chose, for these tasks or for those that they are variants of.

    Raises:
        UserError: `view` and `env` do not go together, or nothing can draw.
    """
    assert view.cameras is not None, "what a scene's policy looks at is known"
    if view.cameras == 0 and not view.state:
        raise UserError("without cameras there is nothing to act on: ask for the state (state=True), or for cameras.")
    if view.cameras and env.renderer == AUTO:
        env = dataclasses.replace(env, renderer=pick_renderer(env, tasks).name)
    if view.protocol is NATIVE and not view.judged:
        return closing(_simulated(tasks, env, view))
    if view.state:
        raise UserError(f"protocol '{view.protocol.name}' is for policies that see images: state goes with native.")
    return _under_protocol(tasks, env, view)


@contextmanager
def _under_protocol(tasks: Sequence[MujocoTask], config: SceneConfig, view: View) -> Iterator[ProtocolEnv]:
    """The envs, run and shown as `view.protocol` says."""
    chosen = view.protocol
    if isinstance(config, MujocoConfig) and config.reward != "sparse":
        raise UserError(
            f"--env.reward {config.reward} goes with --protocol native: '{chosen.name}' pays for success only."
        )
    assert view.cameras is not None, "as `scene_envs` has checked"
    timed = [dataclasses.replace(task, max_episode_steps=chosen.settle_steps + chosen.horizon(task)) for task in tasks]
    threads = config.threads or cpu_count()
    settings = resized(config, threads=threads)
    assert isinstance(settings, SceneConfig)
    inner = dataclasses.replace(view, image_size=chosen.render_size or view.image_size, stop_at_success=False)
    pipeline = image_pipeline(chosen.images)
    if not view.crop:
        pipeline = dataclasses.replace(pipeline, crop_area=None)

    def pictures(frames: Array, out: Array) -> None:
        prepare(pipeline, frames, out, pool)

    with closing(_simulated(timed, settings, inner)) as env, ThreadPoolExecutor(threads, "pictures") as pool:
        yield ProtocolEnv(
            env,
            chosen,
            image_size=view.image_size,
            cameras=view.cameras,
            prepare=None if pipeline == image_pipeline(NATIVE.images) else pictures,
            run_on=view.run_on,
            translate=view.translate,
            sensor=view.sensor,
        )


def _simulated(tasks: Sequence[MujocoTask], config: SceneConfig, view: View) -> VecEnv:
    """The simulator itself, to be closed. Of `view` it takes what is drawn and when an episode ends, no protocol.

    A state has room for every task of the suites of `tasks`.
    """
    cameras, image_size = view.cameras, view.image_size
    assert cameras is not None, "as `scene_envs` has checked"
    if cameras == 0 and config.randomizes_images:
        raise UserError(
            "--env.randomize-color, -light and -camera change images, and without cameras there are none: leave "
            "them out, or ask for cameras."
        )
    exact, by_warp = pick_render_quality(config.render_quality, tasks) == "exact", config.renderer == "warp"
    if isinstance(config, WarpConfig):
        asked = WarpRequest(config, image_size, cameras, view.stop_at_success, view.device, exact)
        return open_warp(tasks, asked, state=view.state)
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
        stop_at_success=view.stop_at_success,
        cameras=0 if by_warp else cameras,
        max_scene_bytes=_SCENE_BYTES // (config.processes or 1),
        ladders=ladders_dir(),
        layout=_state_layout(tasks) if view.state else None,
        shaping=None if config.reward == "sparse" else Shaping(config.reward, discount(config)),
        training=view.training or TASKS_OWN,
    )
    if by_warp and cameras:
        return drawn_by_warp(factory(config.num_envs), cameras, view.device, config, exact=exact)
    if config.processes is None:
        return factory(config.num_envs)
    factory.compile()
    return ProcessVecEnv(
        factory,
        config.num_envs,
        processes=config.processes,
        max_growth=_SCENE_BYTES + _OTHER_GROWTH,
        say=lambda line: print(line, file=sys.stderr),  # looked up when called: a progress bar may hold it
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

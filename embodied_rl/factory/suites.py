"""The one door to simulated envs: a suite's tasks by name, then their envs as a command wants to see them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from embodied_rl.config.env import (
    AlohaConfig,
    EnvConfig,
    EnvPoolConfig,
    GymnasiumConfig,
    ManiSkillConfig,
    MetaWorldConfig,
    SceneConfig,
    discount,
    one_env,
    scenes,
)
from embodied_rl.config.suites import Suite, check_simulator, suite_named
from embodied_rl.errors import UserError, refuse_twice
from embodied_rl.factory.custom import TaskEnv, custom_tasks, env_factory
from embodied_rl.factory.premises import judge
from embodied_rl.factory.scenes import scene_envs
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.factory.view import View
from embodied_rl.policies.preprocessing.fit import fit_image
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.libero.protocol import NATIVE
from embodied_rl.sim.task import SEEDED_HELDOUT, SEEDED_TRAIN
from embodied_rl.sim.wrappers.fitted_images import FittedImages
from embodied_rl.utils.suites import as_names
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import EnvInfo, VecEnv

if TYPE_CHECKING:
    from embodied_rl.factory.tasks import SuiteTask
    from embodied_rl.sim.libero.premises import Premises


@dataclass(frozen=True, slots=True)
class Tasks:
    """Tasks of a suite, before their envs are open.

    scenes: what the built-in suites' and LIBERO's are made of, empty for others. train_states, heldout_states: initial
    states by whole name; empty where only the simulator knows them, which says them when it is open (`asked`). info: of
    the simulator, where that was asked. given: one that its user has opened and will close.
    """

    suite: Suite
    names: tuple[str, ...] = ()
    scenes: tuple[SuiteTask, ...] = ()
    train_states: TaskStates = field(default_factory=dict)
    heldout_states: TaskStates = field(default_factory=dict)
    info: EnvInfo | None = None
    given: TaskEnv | None = None

    @property
    def instructions(self) -> tuple[str, ...]:
        """Of the tasks, as far as they are known before an episode."""
        return tuple(task.instruction for task in self.scenes)

    def judged(self, console: Console) -> tuple[Tasks, dict[str, Premises]]:
        """LIBERO's without the training states that nobody can solve; and LIBERO's premises by task name."""
        if not self.scenes:
            return self, {}
        found, premises = judge(self.scenes, console)
        return of_scenes(self.suite, found), premises


def load(suite: str, names: str | Sequence[str], env: EnvConfig) -> Tasks:
    """The tasks of `suite`, or those with the short `names`.

    Raises:
        UserError: There is no such suite or task, or one is named twice; the simulator that `env` is for can't run the
            suite; or no task is named in one that is too large, and its tasks too different, to be run whole.
    """
    table, names = suite_named(suite), as_names(names)
    check_simulator(table, env)
    if table.is_custom:
        return Tasks(table, custom_tasks(suite, names))
    if isinstance(env, SceneConfig):
        return of_scenes(table, load_tasks(suite, names, env.physics_version))
    names = names or ((table.task,) if table.task else ())
    if not names:
        raise UserError(f"suite '{suite}' needs the name of a task: --task {table.example}")
    refuse_twice(names, "task")
    whole = [f"{suite}/{name}" for name in names]
    train, heldout = ({name: list(rows) for name in whole} for rows in (SEEDED_TRAIN, SEEDED_HELDOUT))
    return Tasks(table, names, train_states=train, heldout_states=heldout)


def of_scenes(suite: Suite, tasks: Sequence[SuiteTask]) -> Tasks:
    """The same from tasks that are at hand."""
    train, heldout = ({task.name: list(rows(task)) for task in tasks} for rows in (_train, _heldout))
    names = tuple(task.name.partition("/")[2] for task in tasks)
    return Tasks(suite, names, tuple(tasks), train, heldout)


def opened_by_user(env: TaskEnv) -> Tasks:
    """The tasks of a simulator that is open, and stays so."""
    table = Suite(env.info.suite, ("custom",), "any", is_custom=True)
    return Tasks(table, train_states=env.train_states, heldout_states=env.heldout_states, info=env.info, given=env)


def asked(tasks: Tasks, env: EnvConfig) -> Tasks:
    """`tasks` with the initial states, and with what only a simulator knows of itself: one env is opened to ask it."""
    if not tasks.suite.is_custom or tasks.info is not None:
        return tasks
    with open_tasks(tasks, one_env(env)) as opened:
        return dataclasses.replace(
            tasks,
            names=tasks.names or tuple(name.partition("/")[2] or name for name in opened.heldout_states),
            train_states=opened.train_states,
            heldout_states=opened.heldout_states,
            info=opened.info,
        )


def open_tasks(tasks: Tasks, env: EnvConfig, view: View | None = None) -> SuiteEnv:
    """The envs of `tasks`, with their initial states; to be closed, or used in a `with` statement.

    Raises:
        UserError: The simulator is not installed, a task does not exist, nothing can draw, or `view` asks for what the
            suite has not.
    """
    shown = view or View()
    with ExitStack() as stack:
        if tasks.scenes:
            opened = stack.enter_context(scene_envs(tasks.scenes, scenes(env), shown))
        elif tasks.given is not None:
            opened = tasks.given
        else:
            opened = stack.enter_context(closing(_open_simulator(tasks, env, shown)))
            if tasks.suite.is_custom:
                return SuiteEnv(_fitted(opened, shown), *_states_of(opened), stack.pop_all())
            opened = _fitted(opened, shown)
        return SuiteEnv(opened, tasks.train_states, tasks.heldout_states, stack.pop_all())


def _fitted(env: VecEnv, view: View) -> VecEnv:
    """`env` with its images at the size that `view` wants; UserError where it has other cameras than are looked at."""
    if view.fit is None or not env.info.cameras:
        return env
    cameras, size = env.info.cameras, view.image_size
    if view.cameras not in (None, len(cameras)):
        raise UserError(
            f"the policy looks at {counted(view.cameras or 0, 'camera')}, and suite '{env.info.suite}' shows "
            f"{', '.join(cameras)}: choose by --env.cameras, where it has that option."
        )
    if env.info.image_shape == (size, size):
        return env
    return FittedImages(env, image_size=size, cameras=len(cameras), resize=partial(fit_image, how=view.fit))


def _open_simulator(tasks: Tasks, env: EnvConfig, view: View) -> VecEnv:
    name = tasks.suite.name
    if view.protocol != NATIVE:
        raise UserError(f"--protocol {view.protocol.name} is one of LIBERO's: it does not apply to suite '{name}'.")
    if view.run_on or view.translate is not None or view.training is not None or not view.stop_at_success:
        raise UserError(f"suite '{name}' runs its tasks as they are: leave --at-end and --perturb out.")
    drawn = view.image_size != View().image_size or view.cameras not in (0, View().cameras)
    if drawn and view.fit is None:
        raise UserError(f"image_size and cameras do not apply to '{name}': its tasks show what they show.")
    factory = _simulator_factory(tasks.suite, tasks.names, env, view)
    if env.watched is None:
        return factory(env.num_envs)
    from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv

    return ProcessVecEnv(
        factory,
        env.num_envs,
        processes=env.watched,
        say=lambda line: print(line, file=sys.stderr),  # looked up when called: a progress bar may hold it
    )


def _states_of(env: Any) -> tuple[TaskStates, TaskStates]:
    """Those to train on and those held out, of a custom simulator here or in watched processes."""
    states = env.task_states() if hasattr(env, "task_states") else (env.train_states, env.heldout_states)
    return states


def _simulator_factory(suite: Suite, names: tuple[str, ...], env: EnvConfig, view: View) -> Callable[[int], VecEnv]:
    """What opens so many envs; it can be pickled, so that watched processes may hold them."""
    if suite.is_custom:
        return env_factory(suite.name, names, env)
    if isinstance(env, ManiSkillConfig):
        from embodied_rl.sim.maniskill import tasks as maniskill
        from embodied_rl.sim.maniskill.vec_env import ManiSkillFactory

        found, shown = tuple(maniskill.load_tasks(names)), view.fit is not None
        size, cameras = (view.image_size, view.cameras) if shown else (None, None)
        if env.device == "cuda":
            from embodied_rl.sim.maniskill.gpu import ManiSkillGpuFactory
            from embodied_rl.sim.maniskill.vec_env import Setup

            only, *others = found
            if others:
                raise UserError("ManiSkill on a GPU runs one task: name one, or leave --env.device out.")
            setup = Setup(env.control_mode, env.reward_mode, size, discount(env), cameras, for_policies=shown)
            return ManiSkillGpuFactory(only, setup)
        return ManiSkillFactory(
            found,
            control=env.control_mode,
            reward=env.reward_mode,
            gamma=discount(env),
            image_size=size,
            cameras=cameras,
            for_policies=shown,
        )
    if isinstance(env, MetaWorldConfig):
        return _metaworld_factory(names, env, view)
    if isinstance(env, AlohaConfig):
        from embodied_rl.sim.aloha.factory import USUAL_CAMERAS, Setup, aloha_factory

        cameras = () if view.fit is None or view.cameras == 0 else env.cameras or USUAL_CAMERAS
        setup = Setup(view.image_size, cameras, env.renderer, env.num_threads, env.reward_mode, discount(env))
        return aloha_factory(suite.name, names, setup)
    if isinstance(env, EnvPoolConfig):
        from embodied_rl.sim.envpool import tasks as envpool
        from embodied_rl.sim.envpool.vec_env import EnvPoolFactory

        found = tuple(envpool.load_tasks(suite.name, names))
        return EnvPoolFactory(found, reward=env.reward_mode, gamma=discount(env))
    from embodied_rl.sim.gymnasium.factory import GymnasiumFactory
    from embodied_rl.sim.gymnasium.spaces import ReadOptions

    assert isinstance(env, GymnasiumConfig)

    for name in names:
        if name.startswith("embodied_rl/"):
            raise UserError(f"{name} is a suite of this project and shows images: embodied-rl train tabletop.")
    read = ReadOptions(env.cameras, env.proprio, env.instruction, env.control_hz, view.own_units)
    return GymnasiumFactory(names, read, apart=view.apart or env.watched is not None)


def _metaworld_factory(names: tuple[str, ...], env: MetaWorldConfig, view: View) -> Callable[[int], VecEnv]:
    from embodied_rl.sim.metaworld import tasks
    from embodied_rl.sim.metaworld.pictures import CAMERAS, choose_renderer
    from embodied_rl.sim.metaworld.vec_env import MetaWorldFactory, Setup
    from embodied_rl.sim.pinned_wheel import METAWORLD

    first, *others = tasks.load_tasks(names)
    cameras = 0 if view.fit is None else len(CAMERAS) if view.cameras is None else view.cameras
    renderer: Any = choose_renderer(env.renderer, first.env_id).name  # here: watched processes must not differ
    ladders = METAWORLD.root() / "ladders"
    return MetaWorldFactory(
        (first, *others), Setup(view.image_size, cameras, renderer, env.reward_mode, discount(env), ladders)
    )


def _train(task: SuiteTask) -> Sequence[int]:
    return task.train_states


def _heldout(task: SuiteTask) -> Sequence[int]:
    return task.heldout_states

"""Scenes and envs of many tasks in one process, bounded in memory: the least recently used ones go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import mujoco

from embodied_rl.sim.mujoco.env import ControllerMode, Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.mujoco.indicators import Switch, compile_switches
from embodied_rl.sim.mujoco.joint_env import JointEnv, compile_stages, find_joint_robot
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.state.facts import Facts
from embodied_rl.sim.state.joints import JointStateLayout
from embodied_rl.sim.state.vector import StateLayout, StateReader
from embodied_rl.types import Array

AnyLayout = StateLayout | JointStateLayout
"""Of the states of tasks: those of LIBERO's Panda, or of robots that are driven by joint positions."""


class FrameRenderer(Protocol):
    """What the engine needs of a renderer (see embodied_rl.sim.render): safe to call from several threads."""

    name: str

    def add_scene(self, visual_model: mujoco.MjModel) -> int: ...

    def remove_scene(self, scene: int) -> None: ...

    def render(
        self,
        scene: int,
        xpos: Array,
        xmat: Array,
        cameras: tuple[str, ...],
        out: Array,
        site_groups: tuple[int, ...] = (),
    ) -> None: ...


class _StateReader(Protocol):
    def read(self, env: Any, out: Array) -> None: ...


class Scene:
    """What all envs of a task share: its models, robot and goal. `users` counts the envs that hold it now.

    new_env makes one more. facts: None where the task has stages in place of a goal.
    """

    new_env: Callable[[ControllerMode], Env | JointEnv]
    facts: Facts | None
    reader: _StateReader | None

    def __init__(self, task: MujocoTask, renderer: FrameRenderer | None, layout: AnyLayout | None) -> None:
        self.task = task
        self.model = task.build_physics()
        if task.robot.drives:
            assert layout is None or isinstance(layout, JointStateLayout)
            joints, stages = find_joint_robot(task.robot, self.model), compile_stages(task.stages, self.model)
            self.new_env = lambda _: JointEnv(self.model, joints, stages)
            self.facts, self.reader = None, None if layout is None else layout.reader(self.model)
        else:
            assert layout is None or isinstance(layout, StateLayout)
            robot, goal = find_robot(self.model), compile_goal(task, self.model)
            self.new_env = lambda mode: Env(self.model, robot, goal, mode)
            self.facts = facts = Facts(task, self.model)
            self.reader = None if layout is None else StateReader(layout, task, self.model, facts)
        self.start = task.start
        self.switches: tuple[Switch, ...] = compile_switches(task.indicators, self.model)
        self.size = int(mujoco.mj_sizeModel(self.model))
        """Bytes of its models."""
        self.users = 0
        self.drawn: int | None = None
        """The renderer's number for this scene."""
        self.visual: mujoco.MjModel | None = None
        """What is drawn."""
        if renderer is not None:
            self.visual = task.build_visual()
            self.size += int(mujoco.mj_sizeModel(self.visual))
            self.drawn = renderer.add_scene(self.visual)


class ScenePool:
    """Builds scenes when they are first asked for and keeps them, with the envs that were given back. Thread-safe.

    Args:
        tasks: by name.
        controller: None takes 'exact' for official tasks, else 'fast'.
        max_bytes: memory for models; a scene in use stays even beyond it.
        max_spare: how many envs are kept that nobody uses.
        layout: of the states that scenes can read; None: they read none.
    """

    def __init__(
        self,
        tasks: Mapping[str, MujocoTask],
        renderer: FrameRenderer | None,
        controller: ControllerMode | None,
        max_bytes: int,
        max_spare: int,
        layout: AnyLayout | None = None,
    ) -> None:
        self._tasks = tasks
        self._renderer, self._layout = renderer, layout
        self._controller: ControllerMode | None = controller
        self._max_bytes, self._max_spare = max_bytes, max_spare
        self._scenes: OrderedDict[str, Scene] = OrderedDict()  # the least recently used first
        self._spare: list[tuple[Scene, Env | JointEnv]] = []  # the oldest first
        self._lock = threading.Lock()

    def take(self, name: str) -> tuple[Scene, Env | JointEnv]:
        """An env of task `name` and its scene; give both back with `give_back`."""
        with self._lock:
            scene = self._scenes.get(name)
            if scene is None:
                scene = Scene(self._tasks[name], self._renderer, self._layout)
                self._scenes[name] = scene
            self._scenes.move_to_end(name)
            scene.users += 1
            self._evict()
            for i in reversed(range(len(self._spare))):
                if self._spare[i][0] is scene:
                    return self._spare.pop(i)
        mode: ControllerMode = self._controller or ("exact" if scene.task.is_official else "fast")
        return scene, scene.new_env(mode)

    def give_back(self, scene: Scene, env: Env | JointEnv) -> None:
        """End the use of what `take` returned."""
        with self._lock:
            scene.users -= 1
            self._spare.append((scene, env))
            del self._spare[: -self._max_spare]
            self._evict()

    def _evict(self) -> None:
        total = sum(scene.size for scene in self._scenes.values())
        for name, scene in list(self._scenes.items()):
            if total <= self._max_bytes:
                return
            if scene.users:
                continue
            del self._scenes[name]
            self._spare = [pair for pair in self._spare if pair[0] is not scene]
            if self._renderer is not None and scene.drawn is not None:
                self._renderer.remove_scene(scene.drawn)
            total -= scene.size

"""Scenes and worlds of many tasks in one process, bounded in memory: the least recently used ones go first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Protocol

import mujoco

from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import ControllerMode, Env, find_robot
from embodied_rl.sim.mujoco.goal import Goal, compile_goal
from embodied_rl.sim.mujoco.indicators import Switch, compile_switches
from embodied_rl.sim.task import Task
from embodied_rl.types import Array


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


class Scene:
    """What all worlds of a task share; `users` counts the envs that hold it now."""

    def __init__(self, task: Task, renderer: FrameRenderer | None) -> None:
        self.task = task
        self.model = task.build_physics()
        self.robot: kernel.Robot = find_robot(self.model)
        self.goal: Goal = compile_goal(task, self.model)
        self.start: Mapping[str, Array] | None = getattr(task, "start", None)
        """What LIBERO's env.reset leaves behind; our own tasks have no such thing."""
        self.switches: tuple[Switch, ...] = compile_switches(getattr(task, "indicators", ()), self.model)
        """What is drawn only while a joint is in a range; our own tasks have no such thing either."""
        self.size = int(mujoco.mj_sizeModel(self.model))
        """Bytes of its models."""
        self.users = 0
        self.drawn: int | None = None
        """The renderer's number for this scene."""
        if renderer is not None:
            visual = task.build_visual()
            self.size += int(mujoco.mj_sizeModel(visual))
            self.drawn = renderer.add_scene(visual)


class ScenePool:
    """Builds scenes when they are first asked for and keeps them, with the worlds that envs gave back, while they fit.

    max_bytes: of models; a scene that a env holds stays even over it. max_spare: worlds that no env holds.
    controller: None takes 'exact' for tasks that have an official run to agree with, else 'fast'. Thread-safe.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        renderer: FrameRenderer | None,
        controller: ControllerMode | None,
        max_bytes: int,
        max_spare: int,
    ) -> None:
        self._tasks = tasks
        self._renderer = renderer
        self._controller: ControllerMode | None = controller
        self._max_bytes, self._max_spare = max_bytes, max_spare
        self._scenes: OrderedDict[str, Scene] = OrderedDict()  # the least recently used first
        self._spare: list[tuple[Scene, Env]] = []  # the oldest first
        self._lock = threading.Lock()

    def take(self, name: str) -> tuple[Scene, Env]:
        """A world of task `name` for one env; give it back with `give_back`."""
        with self._lock:
            scene = self._scenes.get(name)
            if scene is None:
                scene = Scene(self._tasks[name], self._renderer)
                self._scenes[name] = scene
            self._scenes.move_to_end(name)
            scene.users += 1
            self._evict()
            for i in reversed(range(len(self._spare))):
                if self._spare[i][0] is scene:
                    return self._spare.pop(i)
        mode: ControllerMode = self._controller or ("fast" if scene.start is None else "exact")
        return scene, Env(scene.model, scene.robot, scene.goal, mode)

    def give_back(self, scene: Scene, world: Env) -> None:
        """A env needs this world no longer."""
        with self._lock:
            scene.users -= 1
            self._spare.append((scene, world))
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

"""The twin's physics: the tabletop scene with a joint controller in place of training's, and looks of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import mujoco
import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.rng import TwinStream, philox
from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.goal import compile_goal
from embodied_rl.sim.perturb import Perturber
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.tabletop.expert import Expert
from embodied_rl.types import Array, EpisodeSpec

CAMERAS = ("agentview", "robot0_eye_in_hand")
LOOKS = ("camera", "light", "texture")
KP, KD = 900.0, 60.0
"""Spring (1/s^2) and damper (1/s) of each joint, after the inertia is compensated: stiff, critically damped."""


@dataclass(frozen=True)
class Difference:
    """In what the twin differs from the scene of training.

    Args:
        friction: Factor on the sliding friction of everything.
        damping: Joint damping beyond the model's, N m s/rad, which the controller does not know of.
        looks: What is redrawn for each episode: 'camera', 'light', 'texture'.
        level: How strongly.
        noise: Standard deviation of each pixel's noise, of 255.
    """

    friction: float = 1.0
    damping: float = 0.0
    looks: tuple[str, ...] = ()
    level: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for look in self.looks:
            if look not in LOOKS:
                raise UserError(f"unknown look '{look}'.{suggest(look, LOOKS)}")
        if self.friction <= 0 or min(self.damping, self.level, self.noise) < 0:
            raise UserError("friction must be positive; damping, level and noise must not be negative")


class Plant:
    """A tabletop episode whose arm follows joint set points.

    Args:
        suite: A tabletop suite.
        difference: From the scene of training.
        image_size: H = W of the pictures.

    Example:
        >>> plant = Plant("tabletop_object")
        >>> plant.reset(plant.tasks[0], state=50, seed=0)
        >>> plant.advance(angles, velocities, 0.04, steps=5)
    """

    def __init__(self, suite: str, difference: Difference | None = None, image_size: int = 64) -> None:
        self.difference = difference or Difference()
        self._tasks = {task.name: task for task in load_suite(suite)}
        self._size = image_size
        self._renderer = make_renderer("auto", [])
        self._scene: int | None = None
        self._rng = philox(0, TwinStream.PLANT)
        self._lock = threading.Lock()
        self._loaded = ""
        self._env: Env | None = None
        self.cameras = CAMERAS

    @property
    def tasks(self) -> list[str]:
        """The suite's tasks."""
        return list(self._tasks)

    def unknown(self, task: str, state: int, seed: int) -> str:
        """Why there is no such episode; empty where there is."""
        if task not in self._tasks:
            return f"unknown task '{task}'.{suggest(task, self._tasks)}"
        count = len(self._tasks[task].init_states)
        if not 0 <= state < count:
            return f"{task} has the initial states 0 to {count - 1}, not {state}"
        return "" if seed >= 0 else f"a seed is not negative, got {seed}"

    def reset(self, task: str, state: int, seed: int) -> str:
        """Begin an episode.

        Args:
            task: Its name.
            state: Number of the initial state; from 50 on training has not seen it.
            seed: Of looks and noise.

        Returns:
            The instruction.
        """
        if problem := self.unknown(task, state, seed):
            raise UserError(problem)
        spec = self._tasks[task]
        with self._lock:
            if self._loaded != task or self._env is None:
                model = spec.build_physics()
                self._change(model)
                self._env = Env(model, find_robot(model), compile_goal(spec, model), "fast")
                self._robot = find_robot(model)
                self._mass = np.zeros((model.nv, model.nv))
            if self._loaded != task or self.difference.looks:
                self._redraw(task, state, seed)
            self._loaded, self._rng = task, philox(seed, TwinStream.PLANT)
            self._env.reset(spec.init_states[state])
        return spec.instruction

    def advance(self, angles: np.ndarray, velocities: np.ndarray, finger: float, steps: int = 1) -> None:
        """Run steps of 2 ms towards a set point.

        Args:
            angles: Where the joints should be [7], rad.
            velocities: How fast they should move there [7], rad/s.
            finger: Where each finger should be, m from closed.
            steps: How many.
        """
        with self._lock:
            env, robot = self._running(), self._robot
            model, data = env.model, env.data
            for _ in range(steps):
                mujoco.mj_step1(model, data)
                pull = KP * (angles - data.qpos[robot.qpos]) + KD * (velocities - data.qvel[robot.dof])
                mujoco.mj_fullM(model, data, self._mass)
                inertia = self._mass[np.ix_(robot.dof, robot.dof)]
                torque = inertia @ pull + data.qfrc_bias[robot.dof]
                data.ctrl[robot.motor] = np.clip(torque, robot.low, robot.high)
                data.ctrl[robot.finger_motor] = (finger, -finger)
                mujoco.mj_step2(model, data)

    def joints(self) -> tuple[np.ndarray, np.ndarray]:
        """Positions and velocities of the seven joints and two fingers, [9] each, rad and m."""
        with self._lock:
            env, robot = self._running(), self._robot
            where = np.concatenate([robot.qpos, robot.finger_qpos])
            return env.data.qpos[where].copy(), env.data.qvel[where].copy()

    def succeeded(self) -> bool:
        """Whether the goal holds now."""
        with self._lock:
            held = self._running().judge()
        return bool(len(held) and held.all())

    def expert(self) -> Expert:
        """A scripted expert of the running episode's task, before its first step."""
        with self._lock:
            expert = Expert(self._tasks[self._loaded], self._running().model)
        expert.reset()
        return expert

    def advice(self, expert: Expert) -> Array:
        """What an expert would do now: an action of training, float64 [7] in [-1, 1]."""
        with self._lock:
            return expert.act(self._running().data)

    def images(self, size: int | None = None) -> np.ndarray:
        """Every camera's picture of the present state: uint8 [2, H, W, 3]."""
        size = size or self._size
        out = np.empty((len(CAMERAS), size, size, 3), np.uint8)
        with self._lock:
            env = self._running()
            mujoco.mj_kinematics(env.model, env.data)
            xpos, xmat = env.data.xpos.copy(), env.data.xmat.copy()
        assert self._scene is not None
        self._renderer.render(self._scene, xpos, xmat, CAMERAS, out)
        if self.difference.noise:
            noisy = out + self._rng.normal(0, self.difference.noise, out.shape)
            out = np.clip(np.rint(noisy), 0, 255).astype(np.uint8)
        return out

    def _running(self) -> Env:
        if self._env is None:
            raise UserError("the twin holds no episode yet")
        return self._env

    def _change(self, model: mujoco.MjModel) -> None:
        model.geom_friction[:, 0] *= self.difference.friction
        model.dof_damping[find_robot(model).dof] += self.difference.damping

    def _redraw(self, name: str, state: int, seed: int) -> None:
        task = self._tasks[name]
        if self._scene is not None:
            self._renderer.remove_scene(self._scene)
        if self.difference.looks:
            perturber = Perturber([task], self.difference.looks, self.difference.level)
            task = perturber.variant(EpisodeSpec(0, task.name, state, seed)).task
        self._scene = self._renderer.add_scene(task.build_visual())

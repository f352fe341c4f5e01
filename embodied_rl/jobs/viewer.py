"""An episode that a person looks at: it plays, is stepped, and is moved by hand. Imports torch and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from embodied_rl.evaluation.stepped import SteppedEpisode
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.policy import ActMode, Policy
from embodied_rl.real_robot.core.cartesian import ControlLaw, PoseReference
from embodied_rl.sim.mujoco.env import GRIP_SITE
from embodied_rl.sim.mujoco.indicators import FIRST_GROUP, compile_switches, lit_groups
from embodied_rl.sim.render.mesh.parts import Part, drawn_parts
from embodied_rl.sim.render.scene import camera_index, camera_pose
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.words import sentence
from embodied_rl.vec_env import SimulatorFailed

GRIPPER = 6
"""The action's component that closes the fingers."""


class Viewer:
    """One episode at a time, which plays, is stepped, or is moved by hand.

    Nothing runs by itself: `step` is called as long as it is `playing`. Where the simulator fails, `problem` says so
    and the episode is over.

    Args:
        env: Of MuJoCo's scenes, one env.
        policy: That acts.
        specs: The episodes that there are to choose from, those of an evaluation.
        mode: How it acts.

    Example:
        >>> viewer = Viewer(env, policy, plan.specs, "greedy")
        >>> viewer.step()
        >>> viewer.move(np.array([0, 0, 1, 0, 0, 0]))  # a person lifts the hand
        >>> viewer.release()
    """

    def __init__(self, env: SuiteEnv, policy: Policy, specs: Sequence[EpisodeSpec], mode: ActMode) -> None:
        self._env, self._policy, self._mode = env, policy, mode
        self.tasks: dict[str, list[EpisodeSpec]] = {}
        for spec in specs:
            self.tasks.setdefault(sentence(spec.task), []).append(spec)
        self.choose(specs[0])

    @property
    def over(self) -> bool:
        """Whether only another episode can go on."""
        return self.episode.over or bool(self.problem)

    def choose(self, spec: EpisodeSpec) -> None:
        """Begin `spec`, and stand still."""
        self.spec, self.playing, self.by_hand, self.problem = spec, False, False, ""
        self.grip = -1.0
        self.episode = SteppedEpisode(self._env, self._policy, spec, self._mode)
        self._ask(self.episode.decide)

    def reset(self) -> None:
        """Begin the same episode again."""
        self.choose(self.spec)

    def play(self) -> None:
        """Let the policy go on, unless a person moves the arm."""
        self.playing = not (self.over or self.by_hand)

    def pause(self) -> None:
        """Stand still."""
        self.playing = False

    def step(self) -> None:
        """Run a control step of the policy; none where the episode is over, or a person moves the arm."""
        if self.over or self.by_hand:
            self.playing = False
            return
        self.grip = float(np.sign(float(self.episode.chunk[0, GRIPPER])))
        self._ask(self.episode.step)
        if not self.over and not len(self.episode.chunk):
            self._ask(self.episode.decide)
        self.playing &= not self.over

    def move(self, delta: Array, *, toggle: bool = False) -> None:
        """Take the arm over, if need be, and run one control step.

        Args:
            delta: [6], in [-1, 1]: the hand's way and turn, as a policy's action.
            toggle: Whether the fingers change their way.
        """
        if self.over:
            return
        self.playing, self.by_hand = False, True
        self.grip = (-self.grip or 1.0) if toggle else self.grip
        action = torch.tensor([*delta.tolist(), self.grip], dtype=torch.float32)
        self._ask(lambda: self.episode.step(action))
        if not self.over:
            self._ask(self.episode.look)

    def release(self) -> None:
        """Give the arm back: the policy decides anew, from what it sees now."""
        if self.by_hand and not self.over:
            self._ask(self.episode.decide)
        self.by_hand = False

    def poses(self) -> tuple[Array, Array]:
        """Where the bodies are: positions [nbody, 3], m, and quaternions wxyz [nbody, 4]."""
        data = self._env.mujoco.data(0)
        return data.xpos.copy(), data.xquat.copy()

    def path(self) -> Array:
        """Where the hand goes in the rest of the chunk, float64 [k + 1, 3], m: its grip site now and after each step.

        It is what training's controller does to a hand that nothing stands in the way of.
        """
        env = self._env.mujoco.single_env(0)[1]
        law, site = ControlLaw(), env.data.site(GRIP_SITE)
        hand = PoseReference(law, site.xpos, site.xmat.reshape(3, 3), linear=env.control.velocity[:3])
        points = [hand.position]
        for action in self.episode.chunk.cpu().numpy():
            hand.act(action)
            hand.advance(1 / law.rate_hz)
            points.append(hand.position)
        return np.array(points)

    def parts(self) -> list[Part]:
        """What is drawn of the task's scene: its geoms, and the sites that a joint switches on."""
        visual = self._env.mujoco.task(0).build_visual()
        return [part for part in drawn_parts(visual) if part.group < 0 or part.group >= FIRST_GROUP]

    def lit(self) -> tuple[int, ...]:
        """Groups of the sites that are switched on."""
        task, env = self._env.mujoco.single_env(0)
        return lit_groups(compile_switches(task.indicators, env.model), env.data.qpos)

    def camera(self) -> tuple[Array, Array]:
        """Where the first camera is, and the point before it that is as far away as the hand: [3] each, m."""
        env = self._env.mujoco.single_env(0)[1]
        index = camera_index(env.model, self._env.info.cameras[0])
        at, axes = camera_pose(env.model, index, env.data.xpos, env.data.xmat)
        far = float(np.linalg.norm(env.data.site(GRIP_SITE).xpos - at))
        return at, at - far * axes[:, 2]

    def _ask(self, call: Callable[[], None]) -> None:
        try:
            call()
        except SimulatorFailed as error:
            self.problem, self.playing = str(error), False

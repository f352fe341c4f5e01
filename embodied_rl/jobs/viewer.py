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
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.utils.words import sentence
from embodied_rl.vec_env import SimulatorFailed

GRIPPER = 6
"""The action's component that closes the fingers."""


class Viewer:
    """One episode at a time, which plays, is stepped, or is moved by hand.

    Nothing runs by itself: `step` is to be called as long as it is `playing`. Where the simulator fails, `problem` says
    so, and the episode is over.

    Args:
        env: Of MuJoCo's scenes, one env.
        policy: That acts.
        specs: The episodes of an evaluation.
        mode: How the policy acts.

    Example:
        >>> viewer = Viewer(env, policy, plan.specs, "greedy")
        >>> viewer.step()
        >>> viewer.move((0, 0, 1, 0, 0, 0))  # a person lifts the hand
        >>> viewer.release()
    """

    def __init__(self, env: SuiteEnv, policy: Policy, specs: Sequence[EpisodeSpec], mode: ActMode) -> None:
        self._env, self._policy = env, policy
        self._mode: ActMode = mode
        self.tasks: dict[str, list[EpisodeSpec]] = {}
        for spec in specs:
            self.tasks.setdefault(sentence(spec.task), []).append(spec)
        self.choose(next(iter(self.tasks)))

    @property
    def over(self) -> bool:
        """Whether only another episode can go on."""
        return self.episode.over or bool(self.problem)

    def choose(self, task: str, place: int = 0) -> None:
        """Begin an episode of a task, which is named by its sentence, and stand still."""
        specs = self.tasks[task]
        self.place = place % len(specs)
        self.spec, self.playing, self.by_hand, self.problem, self.grip = specs[self.place], False, False, "", -1.0
        self.episode = SteppedEpisode(self._env, self._policy, self.spec, self._mode)
        self._try(self.episode.decide)

    def reset(self, further: int = 0) -> None:
        """Begin the same episode again, or that of the `further` next initial state of the task."""
        self.choose(sentence(self.spec.task), self.place + further)

    def play(self, goes_on: bool = True) -> None:
        """Let the policy go on, unless a person moves the arm; or stand still."""
        self.playing = goes_on and not (self.over or self.by_hand)

    def step(self) -> None:
        """Run a control step of the policy; none where the episode is over, or a person moves the arm."""
        if not (self.over or self.by_hand):
            self.grip = float(self.episode.chunk[0, GRIPPER].sign())
            self._try(self.episode.step)
            if not self.over and not len(self.episode.chunk):
                self._try(self.episode.decide)
        self.play(self.playing)

    def move(self, delta: Sequence[float], toggle: bool = False) -> None:
        """Take the arm over, if need be, and run one control step; none where the episode is over.

        Args:
            delta: [6], in [-1, 1]: the hand's way and turn, as of a policy's action.
            toggle: Whether the fingers change their way.
        """
        if self.over:
            return
        self.playing, self.by_hand = False, True
        self.grip = (-self.grip or 1.0) if toggle else self.grip
        self._try(lambda: self.episode.step(torch.tensor([*delta, self.grip])))
        if not self.over:
            self._try(self.episode.look)

    def release(self) -> None:
        """Give the arm back: the policy decides anew, from what it sees now."""
        if self.by_hand and not self.over:
            self._try(self.episode.decide)
        self.by_hand = False

    def poses(self) -> tuple[Array, Array]:
        """Where the bodies are: positions [nbody, 3], m, and quaternions wxyz [nbody, 4]."""
        data = self._env.mujoco.data(0)
        return data.xpos.copy(), data.xquat.copy()

    def path(self) -> Array:
        """Where the hand's grip site goes in the rest of the chunk, float64 [k + 1, 3], m: now, and after each step.

        It is what training's controller makes of the actions where nothing stands in the way.
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

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except SimulatorFailed as error:
            self.problem, self.playing = str(error), False

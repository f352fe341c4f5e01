"""An episode one control step at a time: what `evaluate` runs chunk by chunk, for those who look on."""

from __future__ import annotations

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.policy import ActMode, Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.isolation import IsolatedVecEnv
from embodied_rl.rollout.retries import finite_rows
from embodied_rl.types import Array, EpisodeResult, EpisodeSpec
from embodied_rl.vec_env import SimulatorFailed, VecEnv


class SteppedEpisode:
    """Runs `spec` in env 0, which must be free. The outcome is that of `evaluate` while nobody acts for the policy.

    Attributes:
        result: What is known of the episode so far.
        observation: What was seen last, one row.
        chunk: float32 [k, A], what is decided and not done yet; k = 0 where the policy is to decide.

    Raises:
        SimulatorFailed: In any method, where the simulator does.

    Example:
        >>> episode = SteppedEpisode(env, policy, spec, "greedy")
        >>> while not episode.over:
        ...     episode.step()
        >>> episode.result.success
    """

    def __init__(self, env: VecEnv, policy: Policy, spec: EpisodeSpec, mode: ActMode) -> None:
        self._env, self._policy = IsolatedVecEnv(env), policy
        self._mode: ActMode = mode
        self._env.reset([0], [spec])
        self._reached = False
        self.result = EpisodeResult(spec, False, False, False, 0.0, 0, 0)
        self.observation = env.new_observation(1)
        self.chunk = torch.zeros((0, policy.action_dim))

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.result.terminated or self.result.truncated

    def look(self) -> None:
        """Fill `observation` with what is seen now."""
        if self._env.observe([0], self.observation) or not finite_rows(self.observation)[0]:
            raise self._failed()

    def decide(self) -> None:
        """Look, and fill `chunk`; UserError where an action is not finite."""
        self.look()
        spec, result = self.result.spec, self.result
        rng = DecisionRng(np.array([spec.seed]), np.array([result.num_decisions]))
        chunk = self._policy.act(self.observation, rng, self._mode).actions[0]
        if not torch.isfinite(chunk).all():
            raise UserError(
                f"task '{spec.task}', initial state {spec.init_state}, got actions that are not finite from the policy."
            )
        result.num_decisions += 1
        self.chunk = chunk

    def step(self, action: torch.Tensor | None = None) -> None:
        """Run a control step, which must not be over.

        Args:
            action: float32 [A], a person's; the policy then decides anew before its next step. None: the next one of
                the policy's chunk.
        """
        by_hand = action is not None
        if action is None:
            if not len(self.chunk):
                self.decide()
            action, self.chunk = self.chunk[0], self.chunk[1:]
        else:
            self.chunk = self.chunk[:0]
        done, result = self._env.step([0], action[None, None]), self.result
        if done.failed[0]:
            raise self._failed()
        result.human_steps += 1 if by_hand else int(done.human[0])
        helped = result.human_steps > 0  # from a person's first step on nothing is paid
        self._reached |= bool(done.success[0])
        result.terminated = bool(done.terminated[0])
        result.truncated = bool(done.truncated[0]) and not result.terminated
        result.reward += 0.0 if helped else float(done.reward.sum())
        result.num_steps += 1
        result.success, result.helped_success = self._reached and not helped, self._reached and helped

    def frame(self, camera: str, size: int) -> Array:
        """As `VecEnv.frame`."""
        return self._env.frame(0, camera, size)

    def _failed(self) -> SimulatorFailed:
        spec = self.result.spec
        return SimulatorFailed(f"the simulator failed in task '{spec.task}', initial state {spec.init_state}.")

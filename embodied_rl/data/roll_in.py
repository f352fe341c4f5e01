"""A policy acts at the start of a demonstration, so that the expert shows how to go on from where the policy errs.

Ross and Bagnell 2014 ("Reinforcement and imitation learning via interactive no-regret learning") roll in with the
learner and out with the expert. Only what the expert did is recorded: labels of steps that another executed would make
chunks that nobody ever executed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from embodied_rl.rng import philox
from embodied_rl.types import Array, ChunkResult, Observation
from embodied_rl.vec_env import VecEnv

_LENGTH = 0x2011
"""Philox counter that keeps the lengths apart from other draws of an episode."""
SOLVED = "the policy solved it by itself"
"""Why an episode of a good policy has nothing for the expert to show."""


def solved_by_policy(reason: str) -> bool:
    """Whether a stored failure is none of the expert's: the policy of the roll-in needed no help."""
    return reason.endswith(SOLVED)


@dataclass(frozen=True, slots=True)
class RollIn:
    """The policy that begins episodes, and for how long.

    Args:
        decide: from the observation of one env, the episode's seed and the number of the decision: the chunk to
            execute, float32 [K, A].
        max_steps: by task, control steps of the longest roll-in; the length is drawn from 1 to here.

    Example:
        roll_in = RollIn(lambda obs, seed, decision: np.zeros((4, 7), np.float32), {"reach": 100})
    """

    decide: Callable[[Observation, int, int], Array]
    max_steps: Mapping[str, int]

    def length(self, task: str, seed: int) -> int:
        """Control steps of the roll-in of the episode of `task` with this seed."""
        return 1 + int(philox(seed, _LENGTH).integers(self.max_steps[task]))

    def run(self, env: VecEnv, task: str, seed: int) -> str:
        """Let the policy act in env 0, which holds an episode of `task`, for as many control steps as the seed says.

        Returns:
            '' if the episode goes on, else why it is over.
        """
        obs, length, done, decision = env.new_observation(1), self.length(task, seed), 0, 0
        while done < length:
            env.observe([0], obs)
            chunk = self.decide(obs, seed, decision)
            if not np.isfinite(chunk).all():
                return "the policy returned an action that is not finite"
            for action in chunk[: length - done]:
                result = env.step([0], torch.from_numpy(action[None, None]))
                done += 1
                if over := _over(result):
                    return over
            decision += 1
        return ""


def _over(result: ChunkResult) -> str:
    if result.failed[0]:
        return "the simulation broke down while the policy acted"
    if result.success[0]:
        return SOLVED
    return "the policy ended the episode" if result.terminated[0] or result.truncated[0] else ""

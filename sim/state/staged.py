"""Staged rewards: the sparse reward of a task, and potential-based shaping by what its goal still lacks.

Shaping adds gamma * phi(s') - phi(s) to a decision's reward. It changes no optimal policy (Ng, Harada and Russell 1999,
"Policy invariance under reward transformations", theorem 1), as the sum over an episode depends on its ends alone. An
episode that runs out of time keeps the potential of its last state, for a learner that goes on from that state's value;
one that counts it as 0 pays for what was reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import mujoco

from embodied_rl.errors import UserError
from embodied_rl.sim.state.facts import Distances, Facts
from embodied_rl.types import Array

_NEAR = 0.2
"""Distance (m) over which nearness falls from 1 to 0.24."""
_REACH, _PLACE = 0.4, 0.4
"""Shares of a fact that is not held: of a hand at the thing, and of the thing where it must be."""


@dataclass(frozen=True, slots=True)
class Shaping:
    """What is added to the sparse reward.

    Args:
        kind: staged: phi is the share of the goal's facts that hold. shaped: a fact that does not hold counts up to 0.8
            for a hand near the thing that must move, and for the thing near to where it must be.
        gamma: the learner's discount of one decision, in [0, 1]. Another one than the learner's is no longer sure to
            leave the optimum where it is.

    Example:
        >>> env = MujocoVecEnv(tasks, 8, cameras=0, shaping=Shaping("staged", gamma=0.99))
    """

    kind: Literal["staged", "shaped"]
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise UserError(f"the discount of a staged reward must lie in [0, 1], got {self.gamma}")

    def potential(self, facts: Facts | None, data: mujoco.MjData, held: Array) -> float:
        """phi in [0, 1] of the state in `data`.

        Args:
            facts: None where the task has stages.
            held: bool [G], which facts hold in it, or which stages are reached.

        Raises:
            UserError: `shaped` is of facts, and the task has stages.
        """
        if self.kind == "staged":
            return float(held.sum()) / len(held)
        if facts is None:
            raise UserError("the reward 'shaped' needs a goal of facts, and the task has stages: take 'staged'.")
        parts = (1.0 if held[fact] else _progress(facts.distances(data, fact)) for fact in range(len(facts)))
        return sum(parts) / len(facts)


def _progress(far: Distances) -> float:
    """Of a fact that does not hold, in [0, 0.8)."""
    placed = _near(far.place) if far.place.any() else 1.0 - far.share
    return _REACH * _near(far.reach) + _PLACE * placed


def _near(offset: Array) -> float:
    return 1.0 - math.tanh(math.sqrt(float(offset @ offset)) / _NEAR)

"""Chunks that a policy chooses from, kept while it acts: training a critic then never asks the policy for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policies.steering import CANDIDATES, CHOSEN, SUMMARY, Steering, choose
from embodied_rl.policy import ActMode, PolicyTraits
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.observation_pool import StepRecord
from embodied_rl.types import ActOutput, Array, Observation

KEPT = (SUMMARY, CANDIDATES, CHOSEN)
"""What is kept of a decision."""


class ProposingPolicy:
    """Acts as a `Policy`, and draws the same number of chunks whether it is steered or not yet, for `candidates_of`.

    Without a critic it does what the first of them says, which is the policy's own decision.

    Args:
        policy: offers `PolicyTraits.propose`.
        count: chunks of a decision.
    """

    def __init__(self, policy: TrainablePolicy, count: int) -> None:
        self._policy, self._count = policy, count
        self.chunk_len, self.action_dim = policy.chunk_len, policy.action_dim
        self.terms_per_step, self.with_value = policy.terms_per_step, False

    @property
    def traits(self) -> PolicyTraits:
        """As the policy's."""
        return self._policy.traits

    def state_dict(self) -> dict[str, Tensor]:
        """As the policy's."""
        return self._policy.state_dict()

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """As `Policy.act`; `replay` has the candidates too."""
        steering: Steering | None = getattr(self._policy, "steering", None)
        critic = None if steering is None else steering.critic
        return choose(self._policy, obs, rng, mode, self._count, critic)


def candidates_of(steps: Sequence[tuple[StepRecord, int]], calls: Sequence[int]) -> dict[str, Array]:
    """What an episode's decisions were chosen from.

    Args:
        steps: every call of the policy in the episode, in order.
        calls: the D of them after which a control step ran.

    Returns:
        By name, D rows: summary float32 [D,W], candidates float32 [D,M,K,A], chosen int64 [D].
    """
    rows = [steps[call] for call in calls]
    return {name: np.stack([step.act.replay[name][row].cpu().numpy() for step, row in rows]) for name in KEPT}

"""Acting for many rows on several CPU threads."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from embodied_rl.policy import ActMode, Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Observation, concatenate
from embodied_rl.utils.threads import CoreBudget, WorkerPool

MIN_ROWS = 16
"""Least rows of a part; with fewer, threads lose more by waiting for the GIL than they gain."""


class ParallelActor:
    """`Policy.act` on several CPU threads, each for a part of the rows.

    Parts depend on the numbers of rows and threads alone, so results are the same bit for bit whatever the timing.
    A policy acts in one call, in the caller's thread, if its traits do not say `acts_in_parts`, on a GPU, or
    compiled. Actions
    end on the env's device, all other outputs in host memory.

    Args:
        rows: of a call, at most.
        threads: to share out.
        cores: budget that the threads share with the learner's.
    """

    def __init__(self, policy: Policy, rows: int, threads: int, cores: CoreBudget | None = None) -> None:
        self.policy = policy
        places = {parameter.device.type for parameter in policy.parameters()} if isinstance(policy, nn.Module) else {}
        apart = policy.traits.acts_in_parts and places == {"cpu"}
        count = min(threads, rows // MIN_ROWS) if apart else 1
        inner = threads // max(1, count)
        several = count > 1
        self._threads = WorkerPool(count, "act", inner=inner, cores=cores, side="rollout") if several else None

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """As `Policy.act`."""
        rows = len(obs.instruction)
        if self._threads is None or self.policy.traits.compiled:
            return _to_env(self.policy.act(obs, rng, mode), obs)

        def decide(part: slice) -> ActOutput:
            return self.policy.act(obs.rows(part), DecisionRng(rng.seed[part], rng.decision[part]), mode)

        parts = max(1, min(self._threads.count, rows // MIN_ROWS))
        # By the numbers of rows and threads alone: a row's bits depend on those that it is computed with.
        ends = [rows * part // parts for part in range(parts + 1)]
        outs = self._threads.map(decide, [slice(*pair) for pair in pairwise(ends)])
        return concatenate(outs)

    def close(self) -> None:
        """End the threads."""
        if self._threads is not None:
            self._threads.close()


def _to_env(act: ActOutput, obs: Observation) -> ActOutput:
    """Actions on the env's device, the rest in host memory, where it waits for the update."""
    value = None if act.value is None else act.value.cpu()
    replay = {key: tensor.cpu() for key, tensor in act.replay.items()}
    return ActOutput(act.actions.to(obs.images.device), act.log_prob.cpu(), value, replay)

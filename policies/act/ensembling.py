"""Temporal ensembling: what overlapping chunks say of a control step, averaged (Zhao et al. 2023, algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_rl.rng import DecisionRng

MOST_EPISODES = 4096
"""Episodes that can run at once; those that began before are forgotten."""


@dataclass(slots=True)
class _Running:
    """An episode: its last decision, and of each step from there the weighted sum [H,A], its weights' and how many."""

    decision: int
    total: Tensor
    weight: Tensor
    count: Tensor


class TemporalEnsembler:
    """Averages chunks of which the first step is executed, each episode's by itself.

    An episode is known by its seed, and begins with decision 0; so a row's action depends on its episode alone,
    whatever others a batch has.

    Args:
        coefficient: the i-th chunk that covers a step, the oldest being 0, counts exp(-coefficient * i).

    Example:
        >>> ensembler = TemporalEnsembler(0.01)
        >>> ensembler.update(DecisionRng(np.array([7]), np.array([0])), torch.zeros(1, 100, 14)).shape
        torch.Size([1, 14])
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient
        self._running: dict[int, _Running] = {}

    def update(self, rng: DecisionRng, chunks: Tensor) -> Tensor:
        """The actions of this step, [N,A].

        Args:
            rng: of the N decisions; each episode's come in order.
            chunks: [N,H,A], what was decided now.

        Raises:
            RuntimeError: The decision before was not seen here.
        """
        rows = [
            self._step(int(seed), int(decision), chunk)
            for seed, decision, chunk in zip(rng.seed, rng.decision, chunks, strict=True)
        ]
        return torch.stack(rows)

    def _step(self, seed: int, decision: int, chunk: Tensor) -> Tensor:
        known = self._running.pop(seed, None)
        if decision == 0:
            known = _begun(chunk)
        elif known is None or known.decision != decision - 1:
            raise RuntimeError(
                f"temporal ensembling needs all decisions of an episode in order: {decision} of seed {seed} came after "
                f"{'none' if known is None else known.decision}"
            )
        share = torch.exp(-self.coefficient * known.count)
        total, weight = known.total + share[:, None] * chunk, known.weight + share
        self._running[seed] = _Running(decision, _shifted(total), _shifted(weight), _shifted(known.count + 1))
        if len(self._running) > MOST_EPISODES:
            self._running.pop(next(iter(self._running)))
        return total[0] / weight[0]


def _begun(chunk: Tensor) -> _Running:
    zeros = torch.zeros(len(chunk), dtype=chunk.dtype, device=chunk.device)
    return _Running(-1, torch.zeros_like(chunk), zeros, zeros.clone())


def _shifted(values: Tensor) -> Tensor:
    """Without the step that is executed, and a further one at the end, of which nothing is known."""
    return torch.cat([values[1:], torch.zeros_like(values[:1])])

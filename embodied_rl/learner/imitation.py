"""Imitation in an update: every optimiser step's loss has the policy's imitation loss on demonstrations as a term.

A task that the policy never solves gives RL no gradient; demonstrations do. The term's weight falls with the updates,
so that rewards decide in the end (DAPG: Rajeswaran et al. 2018; its factor max |A| is left out, as advantages are
normalised).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from embodied_rl.algorithms.base import LossOutput
from embodied_rl.algorithms.config import AlgorithmConfig, ImitateConfig, demo_weight
from embodied_rl.data.chunks import SftBatch
from embodied_rl.data.mixture import Augmentation, Mixture
from embodied_rl.rng import DataStream, DecisionRng, RunStream, philox

BATCH = 64
"""Demonstrated chunks of one optimiser step."""
_MAX_STEPS = 2**24
_SEEDS = 2**62


@dataclass(frozen=True, slots=True)
class Demos:
    """Demonstrations for a run, as its policy reads them.

    change: how pictures and chunks are augmented. digest: of the data sets and their weights.
    """

    mixture: Mixture
    change: Augmentation
    digest: str


@dataclass(frozen=True, slots=True)
class DemoRows:
    """Some demonstrated chunks of a step. share: of the loss of all chunks of the step. rng: of their loss's noise."""

    batch: SftBatch
    share: float
    rng: DecisionRng


class Imitation:
    """The imitation term of a run's updates.

    What a step imitates depends on the seed, the update and the step's number within it alone: a resumed run goes on
    exactly, and ranks share out the same chunks.

    Attributes:
        demos: what is imitated.

    Example:
        >>> learner.imitate(Imitation(demos, PPOConfig(demo_coef=1.0), seed=0))
    """

    def __init__(self, demos: Demos, config: AlgorithmConfig, seed: int) -> None:
        self.demos = demos
        self._config = config
        self._seed = int(philox(seed, RunStream.DEMONSTRATIONS).integers(_SEEDS))

    @property
    def digest(self) -> str:
        """Of the demonstrations: a run goes on with the same ones only."""
        return self.demos.digest

    def weight(self, update: int) -> float:
        """By which the term is multiplied in `update` (0-based); 0: there is none."""
        assert not isinstance(self._config, ImitateConfig), "it has no other loss"
        return demo_weight(self._config, update)

    def rows(self, update: int, step: int, *, rank: int = 0, ranks: int = 1, most: int = BATCH) -> list[DemoRows]:
        """What `rank` of `ranks` imitates in a step, in pieces of at most `most` chunks; on each rank equally many."""
        number = update * _MAX_STEPS + step
        batches = self.demos.mixture.draw(number, BATCH, self._seed, self.demos.change)
        seeds = philox(self._seed, DataStream.LOSS_NOISE, number).integers(_SEEDS, size=BATCH)
        found, first = [], 0
        for batch in batches:
            for index, share in pieces(batch, rank, ranks, most):
                noise = seeds[first + index.numpy()]
                found.append(
                    DemoRows(batch.rows(index), share * len(batch) / BATCH, DecisionRng(noise, np.zeros_like(noise)))
                )
            first += len(batch)
        return found

    def loss(self, policy: Any, weight: float, rows: DemoRows) -> LossOutput:
        """Their share of the term; over the ranks' pieces of a step they add up to the whole."""
        value = rows.share * imitation_loss(policy, rows.batch, rows.rng)
        nothing = torch.zeros((), device=value.device)
        return LossOutput(weight * value, {"demo_loss": value.detach()}, nothing, nothing.expand(3))


def imitation_loss(policy: Any, batch: SftBatch, rng: DecisionRng | None = None) -> torch.Tensor:
    """The policy's imitation loss of a batch, wherever that lies.

    rng: where a policy draws noise for it, in place of the policy's own random numbers.
    """
    to = next(parameter for _, parameter in policy.named_parameters()).device
    mask = None if batch.action_mask is None else batch.action_mask.to(to)
    inputs = batch.images.to(to), batch.proprio.to(to), batch.instruction, batch.actions.to(to)
    more = {"rng": rng} if rng is not None and policy.traits.noisy_imitation else {}
    return policy.sft_loss(*inputs, batch.drop_history, mask, **more)


def pieces(batch: SftBatch, rank: int, ranks: int, most: int) -> Sequence[tuple[torch.Tensor, float]]:
    """Rows of a batch that `rank` learns from, in pieces, and each piece's share of the batch's loss.

    The loss is a mean over the control steps that count: shares are by these. A rank that has fewer pieces than another
    gets one with a share of 0, since FSDP's ranks take all passes together.
    """
    steps = batch.actions.shape[1]
    counted = torch.full((len(batch),), float(steps)) if batch.action_mask is None else batch.action_mask.sum(1).float()
    parts = math.ceil(math.ceil(len(batch) / ranks) / most)
    found = []
    for own in np.array_split(np.arange(rank, len(batch), ranks), parts):
        piece = torch.from_numpy(own)
        share = float(counted[piece].sum() / counted.sum())
        found.append((piece if len(piece) else torch.zeros(1, dtype=torch.int64), share))
    return found

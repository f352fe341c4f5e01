"""Which rows of a batch are learned from, if not all are, and what each of them then counts for.

A row is taken with a probability that grows with |advantage| times how surprising its actions were, and counts for the
inverse of that probability. So every weighted sum over the taken rows, the gradient among them, has the expectation of
the sum over all rows (Horvitz & Thompson 1952). D3S (Wang et al. 2025, section 3) takes tokens by |advantage| times
entropy; the entropy of a row is not known without a forward pass, so its sample takes its place: minus its log-prob.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from embodied_rl.rng import RunStream, philox
from embodied_rl.types import Array, RolloutBatch

UNIFORM_PART = 0.5
"""Part of the probabilities that is equal for all rows, so that no row counts for more than 2 / share: a defensive
mixture (Hesterberg 1995)."""
_MAX_EPOCHS = 2**16


class RowSelection:
    """Takes about `share` of the rows of a batch; with a share of 1 all of them, each counting 1.

    What is taken depends on seed, update, epoch and the rows' own data, so it is the same on every rank.

    Args:
        share: in (0, 1].
        seed: of the run.

    Example:
        >>> index, factor = RowSelection(0.5, seed=0).take(batch, iteration=3, epoch=0, by_group=False)
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share = share
        self._seed = seed

    def take(self, batch: RolloutBatch, iteration: int, epoch: int, *, by_group: bool) -> tuple[Tensor, Tensor]:
        """The rows to learn from, at least one of each draw.

        Args:
            batch: after `OnPolicyAlgorithm.prepare`.
            by_group: draw for each group by itself, so that it does not matter which others are in the batch.

        Returns:
            (index, factor): int64 [r] in ascending order; float32 [B], by which the weight of each row is multiplied
            (0 where it is not taken).
        """
        if self.share == 1.0:
            return torch.arange(len(batch)), torch.ones(len(batch))
        assert batch.advantage is not None, "prepare() first"
        score = row_scores(batch).numpy()
        factor = np.zeros(len(batch))
        for group, rows in _parts(batch, by_group):
            probability = inclusion_probabilities(score[rows], self.share)
            draw = philox(self._seed, RunStream.ROW_SELECTION, iteration * _MAX_EPOCHS + epoch, group).random()
            taken = systematic_sample(probability, float(draw))
            factor[rows.start + taken] = 1.0 / probability[taken]
        return torch.from_numpy(factor.nonzero()[0]), torch.from_numpy(factor).float()


def row_scores(batch: RolloutBatch) -> Tensor:
    """|advantage| times surprise of each row, float64 [B]; only its proportions within a group count.

    Surprise: the mean of minus log-prob over executed terms, above the least one of the row's group as a share of the
    group's mean, plus 1: densities may have any sign.
    """
    assert batch.advantage is not None, "prepare() first"
    terms = torch.where(batch.mask, -batch.log_prob.double(), 0.0).sum(dim=1)
    terms = terms / batch.mask.sum(dim=1).clamp_min(1)  # a person's row has none
    surprise = torch.ones(len(batch), dtype=torch.float64)
    for _, rows in _parts(batch, by_group=True):
        above = terms[rows] - terms[rows].min()
        if above.max() > 0:
            surprise[rows] += above / above.mean()
    return batch.advantage.double().abs() * surprise


def inclusion_probabilities(score: Array, share: float) -> Array:
    """Probabilities in (0, 1] that add up to `share` of the rows, or to 1 if that is more; float64 [n].

    They are in proportion to UNIFORM_PART + (1 - UNIFORM_PART) * score / mean score (float64 [n], not negative), but
    for rows that would have more than 1.
    """
    wanted = max(1.0, share * len(score))
    mean = score.mean()
    weight = UNIFORM_PART + (1.0 - UNIFORM_PART) * score / mean if mean > 0 else np.ones(len(score))
    order = np.argsort(-weight, kind="stable")  # equal weights in the rows' order, whatever the machine
    rest = weight[order][::-1].cumsum()[::-1]  # of this row and those with less
    # The first k rows are certain, where the next one would not be.
    certain = weight[order] * (wanted - np.arange(len(score))) >= rest
    count = len(score) if certain.all() else int(certain.argmin())
    found = np.ones(len(score))
    if count < len(score):
        found[order[count:]] = weight[order[count:]] * (wanted - count) / rest[count]
    return np.minimum(found, 1.0)


def systematic_sample(probability: Array, uniform: float) -> Array:
    """Indices of a sample with these inclusion probabilities (Madow 1949), at least one; int64, ascending.

    Their number is the sum of the probabilities, rounded up or down. uniform: in [0, 1).
    """
    edges = probability.cumsum()
    edges[-1] = max(edges[-1], 1.0)  # a sum that was rounded below 1 would allow an empty sample
    points = uniform + np.arange(np.ceil(edges[-1] - uniform))
    return np.unique(np.searchsorted(edges, points[points < edges[-1]], side="right"))


def _parts(batch: RolloutBatch, by_group: bool) -> list[tuple[int, slice]]:
    """The rows that are drawn from together, with the number of their first group."""
    if not by_group:
        return [(batch.episodes[0].spec.group, slice(0, len(batch)))]
    found, row = [], 0
    for group, members in groupby(batch.episodes, key=lambda episode: episode.spec.group):
        end = row + sum(episode.num_decisions for episode in members)
        found.append((group, slice(row, end)))
        row = end
    return found

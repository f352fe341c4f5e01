"""What a reward model's card says: does it follow time, does it know success, is it fooled by failures?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.types import Array

HIGH = 0.5
"""A probability of success from which a frame counts as rewarded."""


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """A reward model's judgement of the frames of an episode: progress and done, float32 [T]; done lies in [0, 1]."""

    progress: Array
    done: Array
    success: bool


def rank_correlation(values: Array) -> float:
    """Spearman's correlation of `values` [T] with time, in [-1, 1]; 0 where they are all equal."""
    from scipy.stats import rankdata

    ranks = rankdata(values)
    if np.ptp(ranks) == 0:
        return 0.0
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


def auc(positive: Array, negative: Array) -> float:
    """The chance that a value of `positive` [n] lies above one of `negative` [m], ties by half.

    The area under the ROC curve (Hanley and McNeil 1982).
    """
    from scipy.stats import rankdata

    if not len(positive) or not len(negative):
        raise ValueError("an AUC needs values of both kinds")
    ranks = rankdata(np.concatenate([positive, negative]))[: len(positive)]
    return float((ranks.sum() - len(positive) * (len(positive) + 1) / 2) / (len(positive) * len(negative)))


def time_correlations(episodes: Sequence[JudgedEpisode]) -> Array:
    """float64 [E]: how well each episode's progress follows time."""
    return np.array([rank_correlation(episode.progress) for episode in episodes])


def rewarded_failures(episodes: Sequence[JudgedEpisode]) -> tuple[int, int]:
    """Of the failed episodes, how many have a frame that is judged a success; and how many failed."""
    failed = [episode for episode in episodes if not episode.success]
    return sum(bool((episode.done >= HIGH).any()) for episode in failed), len(failed)

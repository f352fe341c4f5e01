"""What a reward model's card says: does it follow time, does it know success, is it fooled by failures?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from embodied_rl.rewards.judge import Judge
from embodied_rl.types import Array

HIGH = 0.5
"""A probability of success from which a frame counts as rewarded."""
_EARLIER = 0.8
"""Share of a demonstration in which it certainly has not succeeded yet."""


@dataclass(frozen=True, slots=True)
class JudgedEpisode:
    """A reward model's judgement of the frames of an episode: progress and done, float32 [T]; done lies in [0, 1]."""

    progress: Array
    done: Array
    success: bool


def judge_episode(judge: Judge, images: Tensor, instruction: list[str], *, success: bool) -> JudgedEpisode:
    """What a model says of the T frames of one episode, uint8 [T, V, H, W, 3], in time order."""
    progress, done = judge.progress(images, instruction), judge.done(images, instruction)
    return JudgedEpisode(progress.numpy(), done.numpy(), success)


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


def demonstration_figures(episodes: Sequence[JudgedEpisode]) -> dict[str, Any]:
    """Rank correlation with time, and the AUC of last frames against those of the first four fifths."""
    correlations = np.array([rank_correlation(episode.progress) for episode in episodes])
    last = np.array([episode.done[-1] for episode in episodes])
    earlier = np.concatenate([episode.done[: int(_EARLIER * len(episode.done))] for episode in episodes])
    return {
        "demonstrations": len(episodes),
        "rank_correlation": float(correlations.mean()),
        "rank_correlation_lowest": float(correlations.min()),
        "auc_earlier_frames": auc(last, earlier),
    }


def rollout_figures(demonstrated: Sequence[JudgedEpisode], rolled: Sequence[JudgedEpisode]) -> dict[str, Any]:
    """AUC of demonstrations' last frames against frames of failed episodes, and of ends; the share that is rewarded."""
    failed = [episode.done for episode in rolled if not episode.success]
    figures: dict[str, Any] = {"episodes": len(rolled), "failed_episodes": len(failed)}
    if not failed:
        return figures
    last = np.array([episode.done[-1] for episode in demonstrated])
    figures["auc_failed_episodes"] = auc(last, np.concatenate(failed))
    won = np.array([episode.done[-1] for episode in rolled if episode.success])
    if len(won):
        figures["auc_ends_of_episodes"] = auc(won, np.array([done[-1] for done in failed]))
        figures["successes_seen"] = float((won >= HIGH).mean())
    return figures | {"failed_episodes_rewarded": sum(bool((done >= HIGH).any()) for done in failed) / len(failed)}

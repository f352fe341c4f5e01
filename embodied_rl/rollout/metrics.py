"""Metrics of a batch's rollout, and the batch of an iteration all of whose groups were filtered out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from embodied_rl.rollout.groups import BatchEnd, GroupStatus
from embodied_rl.types import EpisodeResult, RolloutBatch

STOPPED = "rollout/stopped"
"""Metric: episodes given up because another one of their group breaks the simulator."""


def summarize_rollout(end: BatchEnd, requeued: int) -> dict[str, float]:
    """The rollout's metrics of a batch, for `RolloutBatch.info`. requeued: episodes run again since the run began."""
    accepted = sum(group.status is GroupStatus.ACCEPTED for group in end.groups)
    return (
        end.info
        | _contrast(end)
        | episode_metrics(end.results)
        | {
            "rollout/accepted_groups": float(accepted),
            "rollout/filtered_groups": float(len(end.groups) - end.num_broken - accepted),
            "rollout/incomplete_batch": float(accepted < end.num_wanted),
            "rollout/requeued_total": float(requeued),
        }
        | ({"rollout/broken_groups": float(end.num_broken)} if end.num_broken else {})
    )


def episode_metrics(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """What a batch's episodes came to; there is at least one."""
    count = len(results)
    return (
        _success(results)
        | helped(results, "rollout")
        | {
            "rollout/reward": sum(result.reward for result in results) / count,
            "rollout/steps": sum(result.num_steps for result in results) / count,
            "rollout/decisions": float(sum(result.num_decisions for result in results)),
            "rollout/env_steps": float(sum(result.num_steps for result in results)),
            "rollout/episodes": float(count),
        }
    )


def _contrast(end: BatchEnd) -> dict[str, float]:
    """Share of groups all of whose episodes got the same reward; nothing where a group is one episode.

    Groups that were left out do not count: which of their episodes ended depends on timing.
    """
    groups = [group for group in end.groups if group.size > 1 and group.status is not GroupStatus.BROKEN]
    if not groups:
        return {}
    flat = sum(len({member.result.reward for member in group.members}) == 1 for group in groups)
    return {"rollout/groups_without_contrast": flat / len(groups)}


def _success(results: Sequence[EpisodeResult]) -> dict[str, float]:
    """Of all episodes, and where some are perturbed of those and of the others apart."""
    parts = {"": results}
    if any(result.spec.perturb_seed is not None for result in results):
        parts["_perturbed"] = [result for result in results if result.spec.perturb_seed is not None]
        parts["_unperturbed"] = [result for result in results if result.spec.perturb_seed is None]
    return {
        f"rollout/success{name}": sum(result.success for result in those) / len(those)
        for name, those in parts.items()
        if those
    }


def helped(results: Sequence[EpisodeResult], prefix: str) -> dict[str, float]:
    """What a person's help added; nothing where nobody helped.

    Returns:
        PREFIX/success_with_help: share of the episodes that reached the goal, alone or with help. PREFIX/helped: share
        of those in which a person helped. PREFIX/human_steps: control steps that a person did, of all episodes.
    """
    if not any(result.human_steps for result in results):
        return {}
    return {
        f"{prefix}/success_with_help": sum(result.success or result.helped_success for result in results)
        / len(results),
        f"{prefix}/helped": sum(result.human_steps > 0 for result in results) / len(results),
        f"{prefix}/human_steps": float(sum(result.human_steps for result in results)),
    }


def empty_batch(version: int) -> RolloutBatch:
    """A batch without rows."""
    none = torch.zeros(0)
    return RolloutBatch(
        images=torch.zeros(0, dtype=torch.uint8),
        proprio=none,
        instruction=[],
        replay={},
        log_prob=none[:, None],
        value=None,
        reward=none,
        mask=torch.zeros(0, 1, dtype=torch.bool),
        episode=torch.zeros(0, dtype=torch.int64),
        episodes=[],
        version=version,
    )

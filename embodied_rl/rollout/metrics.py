"""What an iteration's rollout tells the metrics, and the batch of an iteration that kept no group."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from embodied_rl.types import EpisodeResult, RolloutBatch


def summarize_rollout(
    results: Sequence[EpisodeResult], *, accepted: int, filtered: int, wanted: int, requeued: int
) -> dict[str, float]:
    """Flat numbers for `RolloutBatch.info`.

    results: of all finished episodes; kept, dropped, wanted: groups; reissued: episodes run again since the start.
    """
    count = len(results)
    return {
        "rollout/success": sum(result.success for result in results) / count,
        "rollout/reward": sum(result.reward for result in results) / count,
        "rollout/steps": sum(result.num_steps for result in results) / count,
        "rollout/decisions": float(sum(result.num_decisions for result in results)),
        "rollout/env_steps": float(sum(result.num_steps for result in results)),
        "rollout/episodes": float(count),
        "rollout/accepted_groups": float(accepted),
        "rollout/filtered_groups": float(filtered),
        "rollout/incomplete_batch": float(accepted < wanted),
        "rollout/requeued_total": float(requeued),
    }


def empty_batch(version: int) -> RolloutBatch:
    """A batch without rows: no group of the iteration was kept."""
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

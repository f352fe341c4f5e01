"""What a policy makes of the frames of episodes, and of the observations of those that run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import Detector, Sight
from embodied_rl.types import Array, Observation

_ROWS = 32


def summary_of(policy: Any) -> Callable[[torch.Tensor, torch.Tensor, list[str]], torch.Tensor]:
    """`PolicyTraits.summarise`; UserError where a policy has none."""
    found = policy.traits.summarise
    if found is None:
        raise UserError(
            f"{type(policy).__name__} says nothing of an observation but its actions: a detector other than a clock "
            "needs a policy that summarises it, as openvla, openvla_oft, pi0, smolvla and act do."
        )
    return found


def frame_features(policy: Any, data: Demonstrations, rows: Array, on_rows: Callable[[int], None]) -> Array:
    """What the policy makes of frames.

    Args:
        policy: that summarises.
        data: has the frames.
        rows: int64 [N].
        on_rows: told how many more are done.

    Returns:
        float32 [N, W].
    """
    read, parts = summary_of(policy), list[Array]()
    for first in range(0, len(rows), _ROWS):
        part = rows[first : first + _ROWS]
        words = [data.instruction[row] for row in part]
        images, proprio = torch.from_numpy(data.images[part]), torch.from_numpy(data.state[part])
        parts.append(read(images, proprio, words).cpu().numpy())
        on_rows(len(part))
    return np.concatenate(parts)


class Watcher:
    """Watches episodes as they run, with a detector and the policy that calibrated it.

    The policy is asked for one observation at a time, so that what it makes of it depends on nothing else.

    Args:
        detector: says when to raise an alarm.
        policy: that calibrated it; its weights must not change, whatever acts.

    Example:
        >>> env = ExpertTakeover(env, TakeoverRule("detector"), expert, Watcher(detector, policy))
    """

    def __init__(self, detector: Detector, policy: Any) -> None:
        self.chunk_len = detector.chunk_len
        self._detector = detector
        self._read = None if detector.states is None else summary_of(policy)

    def see(self, shown: Observation) -> Sight:
        """What one observation says."""
        if self._read is None:
            return NOTHING
        summary = self._read(shown.images, shown.proprio, shown.instruction)
        return self._detector.see(summary.cpu().numpy()[0], shown.instruction[0])

    def alarm(self, sights: Sequence[Sight], instruction: str) -> bool:
        """Whether the last decision of an episode so far raises an alarm."""
        return self._detector.alarm(sights, instruction)


NOTHING = Sight(0.0, 0.0)
"""What a clock sees."""

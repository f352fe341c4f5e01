"""The data that moves between simulator, policy and learner.

Shape legend, used in every docstring of the project:
    N  envs (or rows) in this call        K  control steps in an action chunk
    A  action dimensions                   L  log-prob terms of a decision (tokens or denoising steps)
    V  cameras                             H, W  image height and width in pixels
    P  proprio dimensions                  R  rows of a batch (one row = one decision)
    E  episodes of a batch                 G  group size (GRPO)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode, fully determined: which env, worker or machine runs it changes nothing.

    `seed` keys every random draw in the episode (see `embodied_rl.rng`). `init_state` is a row of the
    task's initial states. `group` is shared by the G episodes of a GRPO group (same task and init state).
    """

    episode_id: int
    task: str
    init_state: int
    seed: int
    group: int = 0


@dataclass(slots=True)
class Observation:
    """What a policy sees for N envs.

    images: uint8 [N, V, H, W, 3], RGB, row 0 at the top, cameras in the order of `EnvInfo.cameras`.
    proprio: float32 [N, P]; for LIBERO-format suites P = 8: eef position (m, 3), eef axis-angle (rad, 3),
        gripper finger positions (m, 2).
    instruction: N strings.
    """

    images: Array
    proprio: Array
    instruction: list[str]

    def check(self) -> None:
        """Raise ValueError unless layout, dtype and row counts are as documented."""
        n = len(self.instruction)
        if self.images.dtype != np.uint8 or self.images.ndim != 5 or self.images.shape[-1] != 3:
            raise ValueError(f"images must be uint8 [N,V,H,W,3], got {self.images.dtype} {self.images.shape}")
        if self.proprio.dtype != np.float32 or self.proprio.ndim != 2:
            raise ValueError(f"proprio must be float32 [N,P], got {self.proprio.dtype} {self.proprio.shape}")
        if self.images.shape[0] != n or self.proprio.shape[0] != n:
            raise ValueError(
                f"row counts differ: {self.images.shape[0]} images, {self.proprio.shape[0]} proprio, {n} instructions"
            )


@dataclass(slots=True)
class ChunkResult:
    """What happened to N envs in one chunk of up to K control steps; a chunk stops early when its episode ends.

    reward: float32 [N, K], zero after the last executed step. terminated: bool [N], the task ended (do not
    bootstrap). truncated: bool [N], the horizon was reached without termination (bootstrap).
    success: bool [N], the goal held at the end of some executed step. steps_taken: int32 [N], 1..K.
    failed: bool [N], the simulator broke down (diverged physics, dead worker): run the episode again, never count it.
    """

    reward: Array
    terminated: Array
    truncated: Array
    success: Array
    steps_taken: Array
    failed: Array


@dataclass(slots=True)
class ActOutput:
    """One decision for N envs.

    actions: float32 [N, K, A] in [-1, 1], for the simulator. log_prob: float32 [N, L], of what was sampled.
    value: float32 [N], or None without a critic. replay: tensors with leading dimension N from which
    `Policy.evaluate` recomputes log_prob (tokens, or the denoising path of a flow policy).
    """

    actions: Array
    log_prob: torch.Tensor
    value: torch.Tensor | None
    replay: dict[str, torch.Tensor]


@dataclass(slots=True)
class EvalOutput:
    """log_prob and entropy: float32 [N, L], with gradients; value: float32 [N] with gradients, or None."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor | None


@dataclass(slots=True)
class EpisodeResult:
    """A finished episode: its spec, outcome, number of decisions (rows) and of control steps."""

    spec: EpisodeSpec
    success: bool
    terminated: bool
    truncated: bool
    reward: float
    num_decisions: int
    num_steps: int
    final_value: float = 0.0


@dataclass(slots=True)
class RolloutBatch:
    """Rows of finished episodes, one a decision, ragged by episode; rows of an episode are contiguous, in time order.

    images uint8 [R,V,H,W,3]; proprio float32 [R,P]; instruction: R strings; replay: tensors [R,...];
    log_prob float32 [R,L] (behaviour policy); value float32 [R] or None; reward float32 [R] (summed over the chunk);
    mask bool [R,L]: terms that belong to executed control steps; episode int64 [R]: index into `episodes`;
    version: policy version that the batch improves, and that acted; row_version int64 [R]: the version that acted on
    each row, where it may be an older one; advantage, returns float32 [R], filled in by the algorithm; log_importance
    float32 [R,L]: log-prob of policy `version` minus that of the policy that acted, filled in by the learner where rows
    are stale, and then `log_prob` and `value` are those of `version`.
    """

    images: torch.Tensor
    proprio: torch.Tensor
    instruction: list[str]
    replay: dict[str, torch.Tensor]
    log_prob: torch.Tensor
    value: torch.Tensor | None
    reward: torch.Tensor
    mask: torch.Tensor
    episode: torch.Tensor
    episodes: list[EpisodeResult]
    version: int = 0
    row_version: torch.Tensor | None = None
    advantage: torch.Tensor | None = None
    returns: torch.Tensor | None = None
    log_importance: torch.Tensor | None = None
    info: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.reward.shape[0])

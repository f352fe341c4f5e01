"""The policy contract. Algorithms see log-probs, entropies and values, never tokens or denoising paths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Array, EvalOutput, Observation

if TYPE_CHECKING:
    import torch

ActMode = Literal["sample", "greedy"]


class Policy(Protocol):
    """A VLA policy: images + instruction (+ proprio) -> a chunk of K actions.

    `terms_per_step` = L / K: log-prob terms are ordered by control step, so terms of step k are
    [k * terms_per_step, (k + 1) * terms_per_step).
    """

    chunk_len: int
    action_dim: int
    terms_per_step: int

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N envs, without gradients. 'greedy' takes the mode of the distribution.

        What is not finite stays in its row: the rollout runs that row's episode again, and whoever else hands actions
        on refuses them (`action_array`).
        With an attribute `acts_in_parts = True` a policy on a CPU is called from several threads at once, for different
        rows (see `rollout.actor`).
        """
        ...

    def evaluate(
        self, images: torch.Tensor, proprio: torch.Tensor, instruction: list[str], replay: dict[str, torch.Tensor]
    ) -> EvalOutput:
        """Recompute log-probs of recorded decisions, with gradients; same temperature as `act`."""
        ...

    def sft_loss(
        self,
        images: torch.Tensor,
        proprio: torch.Tensor,
        instruction: list[str],
        actions: torch.Tensor,
        drop_action_history: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Scalar imitation loss; actions float32 [N, K, A] in [-1, 1].

        drop_action_history: bool [N], rows of an autoregressive policy that are predicted without their own earlier
        actions."""
        ...


def action_chunks(actions: torch.Tensor) -> torch.Tensor:
    """Return `actions` if float32 [N, K, A], finite or not, else raise ValueError.

    For `act`: one row that is not finite must not take the others with it.
    """
    import torch

    if actions.dtype != torch.float32 or actions.ndim != 3:
        raise ValueError(f"actions must be float32 [N,K,A], got {actions.dtype} {tuple(actions.shape)}")
    return actions


def action_array(actions: torch.Tensor) -> Array:
    """Finite float32 [N, K, A] on any device -> NumPy array, for whatever moves a simulator or robot on the CPU.

    Raises:
        ValueError: for another shape or dtype, or a number that is not finite.
    """
    import numpy as np

    array = action_chunks(actions).cpu().numpy()
    if not np.isfinite(array).all():
        raise ValueError("the policy returned non-finite actions")
    return array

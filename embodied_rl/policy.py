"""The policy contract. Algorithms see log-probs, entropies and values, never tokens or denoising paths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Array, EvalOutput, Observation, RolloutBatch

if TYPE_CHECKING:
    import torch

ActMode = Literal["sample", "greedy"]


@dataclass(frozen=True, slots=True)
class Proposals:
    """M chunks for each of N observations.

    act: N * M rows, observation by observation; the first of each is what `Policy.act` decides. summary: float32 [N,W],
    what the policy makes of an observation, for a critic.
    """

    act: ActOutput
    summary: torch.Tensor


@dataclass(frozen=True)
class PolicyTraits:
    """What a policy can do and how it is set up now; `Policy.traits`.

    Example:
        traits = PolicyTraits(acts_in_parts=True, critic="value_head.")
    """

    acts_in_parts: bool = False
    """On a CPU `act` may run in several threads at once, for different rows (see `rollout.actor`)."""
    compiled: bool = False
    """`act` goes through torch.compile, and so stays in one thread."""
    critic: str | None = None
    """Start of the names of the critic's parameters, such as 'model.value_head.'; None without a critic."""
    fresh_critic: str = ""
    """Why the critic is new, '' where it is its checkpoint's."""
    update_normalizer: Callable[[RolloutBatch], None] | None = None
    """Takes each batch that was learned from, with its returns, into running statistics; the learner calls it after
    the last optimizer step of an update. They must be buffers, which are saved and reach every rank and replica. None
    where a policy has no such statistics."""
    continue_chunk: Callable[..., torch.Tensor] | None = None
    """Decides a chunk that goes on from planned actions (`policies.pi0.continuing`), or None where a policy can't."""
    noisy_imitation: bool = False
    """`sft_loss` draws random numbers, and takes them from its argument `rng` (DecisionRng of N rows) where that is
    given: then a row's loss does not depend on the others."""
    propose: Callable[[Observation, DecisionRng, ActMode, int], Proposals] | None = None
    """Draws so many chunks for each observation, or None where a policy can't. Chunks after the first are drawn: a mode
    that is one chunk is the first one alone."""
    summarise: Callable[[torch.Tensor, torch.Tensor, list[str]], torch.Tensor] | None = None
    """Images, proprio and instructions of N observations -> what the policy makes of them before it decides, as in
    `Proposals`: float32 [N, W] on its device, without gradients, and the same whatever is drawn. None where it has
    none."""
    prefix_cache: Any = None
    """Where `act` leaves what a frozen language model computed (`policies.prefix_cache.PrefixCache`), or None."""


class Policy(Protocol):
    """A VLA policy: images + instruction (+ proprio) -> a chunk of K actions.

    `terms_per_step` = L / K: log-prob terms are ordered by control step, so terms of step k are
    [k * terms_per_step, (k + 1) * terms_per_step).
    """

    chunk_len: int
    action_dim: int
    terms_per_step: int
    with_value: bool
    """Whether `act` and `evaluate` fill `value`; PPO sets it."""

    @property
    def traits(self) -> PolicyTraits:
        """What the policy can do and how it is set up now."""
        ...

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N envs, without gradients. 'greedy' takes the mode of the distribution.

        A row of which a log-prob or a predicted number is not finite has NaN for actions (`void_rows`), and the other
        rows are as without it: the rollout runs that row's episode again, and whoever else hands actions on refuses
        them (`action_array`).
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
        action_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Scalar imitation loss, a mean over the actions that count; actions float32 [N, K, A] in [-1, 1].

        drop_action_history: bool [N], rows of an autoregressive policy that are predicted without their own earlier
        actions. action_mask: bool [N, K], the control steps that count, the first of each row among them; None: all.
        """
        ...


def void_rows(actions: torch.Tensor, *numbers: torch.Tensor) -> torch.Tensor:
    """`actions` [N, K, A] with NaN in each row for which one of `numbers` [N, ...] is not finite.

    Clipping, bins and gripper signs would make a plausible action of NaN or infinity.
    """
    import torch

    sound = torch.stack([values.detach().flatten(1).isfinite().all(dim=1) for values in numbers]).all(dim=0)
    return torch.where(sound.to(actions.device)[:, None, None], actions, torch.nan)


def masked_steps(values: torch.Tensor, action_mask: torch.Tensor | None) -> torch.Tensor:
    """Of `values` [N, L, ...], ordered by control step, those of the steps in `action_mask` bool [N, K]: [n, ...].

    L is K or a multiple of it. Without a mask all of them. For `sft_loss`.
    """
    if action_mask is None:
        return values.flatten(0, 1)
    return values[action_mask.to(values.device).repeat_interleave(values.shape[1] // action_mask.shape[1], dim=1)]


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

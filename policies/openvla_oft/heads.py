"""What OpenVLA-OFT's two heads make of hidden states: how an action is drawn, scored and imitated.

Both work on L = K * A numbers a decision, ordered by control step. A `Draw` is kept in the rollout's `replay`.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.openvla.decode import choose, token_scores
from embodied_rl.policies.openvla_oft.model import OFTModel
from embodied_rl.policies.preprocessing.tokens import decode_tokens, encode_actions
from embodied_rl.policy import masked_steps
from embodied_rl.types import Array


class ActionHead(Protocol):
    """From hidden states [N, L, D] to actions.

    replay_key: name of the drawn numbers in `replay`.
    """

    replay_key: str

    def draw(self, hidden: Tensor, uniform: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
        """What to replay and its log-prob float32, both [N, L]; from uniform float32 [N, L] in [0, 1), or the mode."""
        ...

    def score(self, hidden: Tensor, drawn: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        """log-prob and entropy of `drawn`, float32 [N, L], with gradients."""
        ...

    def normalised(self, drawn: Tensor) -> Array:
        """Normalised actions float32 [N, L] of `drawn`."""
        ...

    def loss(self, hidden: Tensor, actions: Array, action_mask: Tensor | None) -> Tensor:
        """Imitation loss of normalised actions float32 [N, K, A]; of the steps of `action_mask` bool [N, K] only."""
        ...


class TokenHead:
    """A categorical distribution over the 256 action tokens for each number, each independent of the others."""

    replay_key = "tokens"

    def __init__(self, model: OFTModel) -> None:
        self.model = model

    def draw(self, hidden: Tensor, uniform: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
        logits = self.model.action_logits(hidden)
        flat = None if uniform is None else uniform.reshape(-1, 1)
        tokens = choose(logits.flatten(0, 1), flat, temperature).view(hidden.shape[:2])
        return tokens.to(torch.uint8), token_scores(logits, tokens, temperature)[0]

    def score(self, hidden: Tensor, drawn: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        return token_scores(self.model.action_logits(hidden), drawn.long(), temperature)

    def normalised(self, drawn: Tensor) -> Array:
        return decode_tokens(drawn.cpu().numpy())

    def loss(self, hidden: Tensor, actions: Array, action_mask: Tensor | None) -> Tensor:
        tokens = torch.from_numpy(encode_actions(actions)).long().to(hidden.device).flatten(1)
        logits = masked_steps(self.model.action_logits(hidden), action_mask)
        return F.cross_entropy(logits, masked_steps(tokens, action_mask))


class LaplaceHead:
    """A Laplace distribution around the L1 head's action: the one whose negative log-likelihood is the L1 loss.

    Its scale is `l1_scale` times the temperature. Drawn actions are replayed as drawn, before any clipping.
    """

    replay_key = "actions"

    def __init__(self, model: OFTModel) -> None:
        self.model = model

    def draw(self, hidden: Tensor, uniform: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
        drawn = mean = self.model.action_head(hidden)
        scale = self._scale(temperature)
        if uniform is not None:
            centred = uniform - 0.5
            # the inverse CDF; the smallest uniform number would give infinity
            drawn = mean - scale * centred.sign() * torch.log1p(-2.0 * centred.abs()).clamp_min(-20.0)
        return drawn, _laplace_log_prob(drawn, mean, scale)

    def score(self, hidden: Tensor, drawn: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        scale = self._scale(temperature)
        log_prob = _laplace_log_prob(drawn, self.model.action_head(hidden), scale)
        return log_prob, torch.full_like(log_prob, 1.0 + math.log(2.0 * scale))

    def normalised(self, drawn: Tensor) -> Array:
        return drawn.cpu().numpy()

    def loss(self, hidden: Tensor, actions: Array, action_mask: Tensor | None) -> Tensor:
        target = torch.from_numpy(actions).to(hidden.device).flatten(1)
        return masked_steps(self.model.action_head(hidden) - target, action_mask).abs().mean()

    def _scale(self, temperature: float) -> float:
        return self.model.config.l1_scale * temperature


def _laplace_log_prob(x: Tensor, mean: Tensor, scale: float) -> Tensor:
    """-|x - mean| / scale - log(2 scale)."""
    return -(x - mean).abs() / scale - math.log(2.0 * scale)

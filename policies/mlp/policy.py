"""A state policy behind the policy contract: independent Gaussian actions, clipped or squashed into [-1, 1].

One log-prob term a control step and action dimension, of the Gaussian's sample. Squashed ones count the change of
volume of tanh too, which cancels in every probability ratio.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.errors import UserError
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.model import MLPModel
from embodied_rl.policy import ActMode, PolicyTraits, action_chunks, masked_steps, void_rows
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation, RolloutBatch

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class MLPPolicy(nn.Module):
    """A policy of a task's state (see `embodied_rl.policy.Policy`). It reads `proprio` and `state`, and no image.

    `replay` is {'observed': float32 [N, P + S], 'drawn': float32 [N, L]}: the observation as it came, and the
    Gaussian's sample.

    Example:
        >>> policy = MLPPolicy.fresh(MLPModelConfig(observation_dim=3, action_dim=1), seed=0)
        >>> out = policy.act(obs, rng, "sample")
    """

    architecture: ClassVar[str] = "mlp"

    def __init__(self, config: MLPModelConfig, *, initial_std: float = 0.6) -> None:
        super().__init__()
        self.config = config
        self.model = MLPModel(config, initial_std)
        self.with_value = False
        self.chunk_len = config.chunk_len
        self.action_dim = config.action_dim
        self.terms_per_step = config.action_dim
        self.source_files: tuple[Path, ...] = ()

    @classmethod
    def fresh(cls, config: MLPModelConfig, *, seed: int, initial_std: float = 0.6) -> MLPPolicy:
        """A randomly initialised policy; `seed` fixes the weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config, initial_std=initial_std)

    @property
    def traits(self) -> PolicyTraits:
        """See `PolicyTraits`."""
        return PolicyTraits(critic="model.critic.", update_normalizer=self._update_normalizer)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.log_std.device

    @torch.no_grad()
    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N envs: 'sample' draws from the Gaussian, 'greedy' takes its mean."""
        observed = self._observed(obs)
        seen = self.model.normalised(observed)
        mean, log_std = self.model.action(seen)
        drawn = mean
        if mode == "sample":
            noise = torch.from_numpy(rng.normal(self.config.num_terms)).to(self.device)
            drawn = mean + log_std.exp() * noise
        bounded = drawn.tanh() if self.config.squash else drawn.clamp(-1.0, 1.0)
        actions = bounded.reshape(-1, self.chunk_len, self.action_dim)
        log_prob = self._log_prob(mean, log_std, drawn)
        value = self.model.value(seen) if self.with_value else None
        actions = action_chunks(void_rows(actions, drawn, log_prob))
        return ActOutput(actions, log_prob, value, {"observed": observed, "drawn": drawn})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Log-probs and entropies float32 [N, L] of recorded decisions, with gradients."""
        seen = self.model.normalised(replay["observed"].to(self.device))
        mean, log_std = self.model.action(seen)
        entropy = log_std + 0.5 + _HALF_LOG_2PI
        if self.config.squash:
            entropy = entropy + _mean_log_slope(mean, log_std.exp())
        log_prob = self._log_prob(mean, log_std, replay["drawn"].to(self.device))
        return EvalOutput(log_prob, entropy, self.model.value(seen) if self.with_value else None)

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        """Mean squared error of the decided actions; `proprio` must be all that the policy reads.

        Raises:
            UserError: The policy also reads a state, which demonstrations have not.
        """
        if proprio.shape[1] != self.config.observation_dim:
            raise UserError("a policy that reads a simulator's state can't imitate: demonstrations have no state.")
        mean, _ = self.model.action(self.model.normalised(proprio.to(self.device)))
        decided = mean.tanh() if self.config.squash else mean
        return masked_steps(decided - actions.to(self.device).flatten(1), action_mask).square().mean()

    def _observed(self, obs: Observation) -> Tensor:
        parts = [obs.proprio] if obs.state is None else [obs.proprio, obs.state]
        return torch.cat([part.to(self.device) for part in parts], dim=1)

    def _log_prob(self, mean: Tensor, log_std: Tensor, drawn: Tensor) -> Tensor:
        log_prob = -0.5 * ((drawn - mean) / log_std.exp()).square() - log_std - _HALF_LOG_2PI
        return log_prob - _log_slope(drawn) if self.config.squash else log_prob

    def _update_normalizer(self, batch: RolloutBatch) -> None:
        self.model.update_normalizer(batch.replay["observed"].to(self.device), batch.returns)


def _mean_log_slope(mean: Tensor, std: Tensor) -> Tensor:
    """The expectation of `_log_slope` under Gaussians, which has no closed form, by the trapezoid rule on a fixed grid.

    To 1e-6 for every std within `LOG_STD`.
    """
    grid = torch.linspace(-6.5, 6.5, 79, device=mean.device)
    weight = (-0.5 * grid.square()).exp()
    values = _log_slope(mean[..., None] + std[..., None] * grid)
    return (values * (weight / weight.sum())).sum(dim=-1)


def _log_slope(value: Tensor) -> Tensor:
    """log of the derivative of tanh at `value`, without the cancellation of 1 - tanh**2."""
    return 2.0 * (math.log(2.0) - value - F.softplus(-2.0 * value))

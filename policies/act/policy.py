"""ACT behind the policy contract: a regressed chunk is the mean of Gaussian actions, whose deviation is learned.

One log-prob term a control step and action dimension, in the normalised units that the network predicts. Steps of the
horizon that are not executed have no term. Greedy acting takes the mean, or averages overlapping chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.act.config import ACTModelConfig
from embodied_rl.policies.act.ensembling import TemporalEnsembler
from embodied_rl.policies.act.model import ACTModel, Latent, Read
from embodied_rl.policies.checkpoints.adapters import Base
from embodied_rl.policies.flow import log_density, loss_noise, normal_entropy
from embodied_rl.policies.pi0.normalise import Pi0Statistics, Robot
from embodied_rl.policies.steering import Steering
from embodied_rl.policy import ActMode, PolicyTraits, action_chunks, masked_steps, void_rows
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Array, EvalOutput, Observation

_IMAGE_EPS = 1e-8  # LeRobot's


class ACTPolicy(nn.Module):
    """An ACT policy (see `embodied_rl.policy.Policy`). It reads images and proprio, and no instruction.

    `replay` is {'drawn': float32 [N,K,A]}, the normalised actions.

    Args:
        config: of the network.
        robots: statistics by data set.
        unnorm_key: the data set whose statistics apply.

    Attributes:
        with_value: fill `value`.
        fresh_critic: why its value head is new, '' where it is its checkpoint's.
        resized: parameters that began in part at zero, since another robot's did not fit.

    Example:
        >>> policy = ACTPolicy.fresh(nano(), {"default": Robot(statistics)}, seed=0)
        >>> out = policy.act(obs, rng, "sample")
    """

    architecture: ClassVar[str] = "act"
    loss_calls: Tensor

    def __init__(self, config: ACTModelConfig, robots: Mapping[str, Robot], *, unnorm_key: str = "default") -> None:
        super().__init__()
        self.model = ACTModel(config)
        self.robots = dict(robots)
        for robot in self.robots.values():
            check_sizes(robot.statistics, config)
        self.with_value = False
        self.fresh_critic = ""
        self.compiled = False
        self.steering: Steering | None = None
        self.base: Base | None = None
        self.source_files: tuple[Path, ...] = ()
        self.resized: frozenset[str] = frozenset()
        self.action_dim = self.terms_per_step = config.action_dim
        self.register_buffer("loss_calls", torch.zeros((), dtype=torch.int64))
        self.configure(config)
        self.select(unnorm_key)

    @classmethod
    def fresh(
        cls, config: ACTModelConfig, robots: Mapping[str, Robot], *, seed: int, unnorm_key: str = "default"
    ) -> ACTPolicy:
        """A randomly initialised policy; `seed` fixes the weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config, robots, unnorm_key=unnorm_key)

    def configure(self, config: ACTModelConfig) -> None:
        """Act as `config`, of a network of the same sizes, says."""
        self.config = self.model.config = config
        self.chunk_len = config.chunk_len
        coefficient = config.temporal_ensemble_coeff
        self.ensembler = None if coefficient is None else TemporalEnsembler(coefficient)

    def select(self, key: str) -> None:
        """Act for, and learn from, the robot of a data set: its statistics.

        Raises:
            UserError: There are no statistics of such a data set.
        """
        if key not in self.robots:
            raise UserError(f"the policy has no statistics of '{key}'.{suggest(key, self.robots)}")
        self.statistics, self.unnorm_key = self.robots[key].statistics, key

    @property
    def traits(self) -> PolicyTraits:
        """See `PolicyTraits`."""
        return PolicyTraits(
            critic="model.value_head.",
            fresh_critic=self.fresh_critic,
            noisy_imitation=self.config.use_vae,
            summarise=self.summarise,
        )

    @property
    def center_crop(self) -> None:
        """It sees whole images."""
        return None

    @property
    def uses_proprio(self) -> bool:
        """Whether it reads the state."""
        return self.config.proprio_dim > 0

    @property
    def gripper_zero_one(self) -> bool:
        """Its data said -1 = open and 1 = closed."""
        return False

    @property
    def statistics_keys(self) -> list[str]:
        """Data sets whose statistics it has."""
        return sorted(self.robots)

    @property
    def action_range(self) -> tuple[Array, Array]:
        """What the statistics say about the ends of each action dimension, float32 [A] twice."""
        stats = self.statistics.action.stats
        low, high = stats.get("q01"), stats.get("q99")
        if low is None or high is None:
            low, high = stats["mean"] - 2 * stats["std"], stats["mean"] + 2 * stats["std"]
        return np.asarray(low, np.float32), np.asarray(high, np.float32)

    @property
    def efficient_parts(self) -> None:
        """It has no language model to leave parts out of."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @torch.no_grad()
    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N envs: 'sample' draws from the Gaussian of the chunk, 'greedy' takes its mean.

        With temporal ensembling 'greedy' executes the average of this and earlier chunks' means, for which each
        episode's decisions must come in order.
        """
        read = self.read(obs.images, obs.proprio)
        chunk = self.actions(read)
        mean, std = chunk[:, : self.chunk_len], self._std()
        drawn = mean
        if mode == "sample":
            noise = torch.from_numpy(rng.normal(mean[0].numel())).to(self.device)
            drawn = mean + std * noise.view_as(mean)
        elif self.ensembler is not None:
            drawn = self.ensembler.update(rng, chunk)[:, None]
        log_prob = log_density(drawn, mean, std).flatten(1)
        actions = self.statistics.action.unnormalise(drawn)
        bounded = void_rows(self.config.clip(actions), actions, log_prob)
        value = self._value(read) if self.with_value else None
        return ActOutput(action_chunks(bounded), log_prob, value, {"drawn": drawn})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Log-probs and entropies float32 [N, K*A] of recorded decisions, with gradients."""
        read = self.read(images, proprio)
        mean, std = self.actions(read)[:, : self.chunk_len], self._std()
        log_prob = log_density(replay["drawn"].to(self.device), mean, std).flatten(1)
        entropy = normal_entropy(std).expand_as(mean).flatten(1)
        return EvalOutput(log_prob, entropy, self._value(read) if self.with_value else None)

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
        rng: DecisionRng | None = None,
    ) -> Tensor:
        """Mean absolute error of the normalised actions, and `kl_weight` times the latent's KL divergence.

        Args:
            images: as of `act`.
            proprio: as of `act`.
            instruction: is not read.
            actions: float32 [N,H,A], as the data has them.
            drop_action_history: changes nothing, since no action is predicted from another one.
            action_mask: bool [N,H], the steps that count (None: all).
            rng: of the latent's noise; None: in training mode numbers that differ from call to call. In evaluation mode
                without it the latent is 0, as when acting, and there is no KL term.

        Returns:
            A scalar.
        """
        config = self.config
        if actions.shape[1:] != (config.horizon, config.action_dim):
            raise ValueError(f"actions must be [N,{config.horizon},{config.action_dim}], got {tuple(actions.shape)}")
        wanted = self.statistics.action.normalise(actions.to(self.device))
        mask = None if action_mask is None else action_mask.to(self.device)
        if not config.use_vae or not (self.training or rng is not None):
            return self._error(self.read(images, proprio), wanted, mask)
        state = self._state(proprio)
        found = self.model.latent(state, wanted, mask)
        shape = (len(actions), 1, config.latent_dim)
        normal, _ = loss_noise(self.loss_calls if self.training else None, shape, rng)
        latent = found.mean + (0.5 * found.log_var).exp() * normal[:, 0].to(self.device)
        error = self._error(self.read(images, proprio, latent), wanted, mask)
        return error + config.kl_weight * kl_divergence(found)

    def read(self, images: Tensor, proprio: Tensor, latent: Tensor | None = None) -> Read:
        """Raw observations, on any device -> what the decoder reads of them."""
        config = self.config
        size, cameras = config.image_size, config.num_cameras
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (cameras, size, size, 3):
            raise ValueError(
                f"the policy needs uint8 images [N,{cameras},{size},{size},3], got {images.dtype} "
                f"{tuple(images.shape)}: render that many cameras at that size"
            )
        state = self._state(proprio)
        return self.model.read(self._pixels(images.to(self.device)), state, latent)

    def actions(self, read: Read) -> Tensor:
        """The normalised chunk, float32 [N,H,A]."""
        return self.model.actions(read)

    @torch.no_grad()
    def summarise(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        """See `PolicyTraits.summarise`: the mean of the encoder's tokens, float32 [N,D]."""
        return self.read(images, proprio).tokens.mean(dim=1).float()

    def _state(self, proprio: Tensor) -> Tensor:
        """Raw proprio -> normalised, float32 [N,P] on the policy's device."""
        dim = self.config.proprio_dim
        if not dim:
            return torch.zeros((len(proprio), 0), device=self.device)
        if proprio.shape[1] != dim:
            raise ValueError(f"the policy needs proprio [N,{dim}], got {tuple(proprio.shape)}")
        return self.statistics.state.normalise(proprio.to(self.device))

    def _pixels(self, images: Tensor) -> Tensor:
        """uint8 [N,V,S,S,3] -> the frame in the middle, normalised: float32 [N,V,3,h,w]."""
        (height, width), size = self.config.frame, self.config.image_size
        top, left = (size - height) // 2, (size - width) // 2
        pixels = images[:, :, top : top + height, left : left + width].permute(0, 1, 4, 2, 3)
        # not channels last, for which oneDNN's backward of a narrow first convolution writes past its memory
        pixels = pixels.float().contiguous() / 255
        mean, std = (
            torch.tensor(numbers, device=self.device).view(-1, 3, 1, 1) for numbers in self.config.image_statistics
        )
        return (pixels - mean) / (std + _IMAGE_EPS)

    def _std(self) -> Tensor:
        """Standard deviation of the normalised actions that are executed, [K,A]."""
        return self.model.std()[: self.chunk_len]

    def _value(self, read: Read) -> Tensor:
        """float32 [N]; its gradient stops at what the encoder says."""
        return self.model.value(read.tokens.mean(dim=1).detach())

    def _error(self, read: Read, wanted: Tensor, mask: Tensor | None) -> Tensor:
        return masked_steps(self.actions(read) - wanted, mask).abs().mean()


def kl_divergence(latent: Latent) -> Tensor:
    """From a standard normal, summed over the latent's dimensions, a mean over rows (Kingma and Welling 2014)."""
    return -0.5 * (1 + latent.log_var - latent.mean.square() - latent.log_var.exp()).sum(dim=1).mean()


def check_sizes(statistics: Pi0Statistics, config: ACTModelConfig) -> None:
    """UserError unless the statistics are of as many actions and states as the network has."""
    dims, sizes = (statistics.action.dim, statistics.state.dim), (config.action_dim, config.proprio_dim)
    if dims != sizes:
        raise UserError(
            f"statistics are for {dims[0]} action and {dims[1]} state dimensions, the model has {sizes[0]} and "
            f"{sizes[1]}: use the statistics of the data set that it is for"
        )


def executing(config: ACTModelConfig, chunk_len: int) -> ACTModelConfig:
    """`config` that executes so many steps of a chunk, without temporal ensembling; UserError if it has not as many."""
    if not 1 <= chunk_len <= config.horizon:
        raise UserError(
            f"chunk_len must lie in 1..{config.horizon}, the steps that this policy predicts; got {chunk_len}."
        )
    return replace(config, chunk_len=chunk_len, temporal_ensemble_coeff=None)


def ensembling(config: ACTModelConfig, coefficient: float) -> ACTModelConfig:
    """`config` that averages overlapping chunks."""
    return replace(config, chunk_len=1, temporal_ensemble_coeff=coefficient)

"""What the output of a network means: logits of action tokens, the mean of a Gaussian, or a velocity field.

An action head decides, scores recorded decisions and imitates, by calling the methods of the network that its class
names. Shapes: H control steps that the network predicts, of which the first K are executed; A action dimensions;
L = K * A log-prob terms, ordered by control step.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, ClassVar, NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.errors import UserError
from embodied_rl.policies.flow import (
    FlowSettings,
    Transition,
    draw_noise,
    log_density,
    loss_noise,
    normal_entropy,
    ode_step,
    sample_path,
    sde_step,
    step_time,
    training_inputs,
)
from embodied_rl.policies.mlp.config import LOG_STD
from embodied_rl.policies.openvla.decode import choose, token_scores
from embodied_rl.policies.preprocessing.tokens import encode_actions, token_centres
from embodied_rl.policy import masked_steps
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation
from embodied_rl.vec_env import EnvInfo


class Decision(NamedTuple):
    """actions float32 [N, K, A], not yet clipped; log_prob [N, L]; replay; features [N, W], None without them."""

    actions: Tensor
    log_prob: Tensor
    replay: dict[str, Tensor]
    features: Tensor | None


class Score(NamedTuple):
    """log_prob and entropy float32 [N, L] of recorded decisions; features [N, W], None without them."""

    log_prob: Tensor
    entropy: Tensor
    features: Tensor | None


class Sizes(TypedDict):
    """See `ActionHead`."""

    chunk_len: int
    horizon: NotRequired[int]
    features: NotRequired[int]


class ActionHead(nn.Module):
    """What all of them have in common: sizes, and calls of the network whose results are checked.

    Args:
        info: of the env, as in `env.info`: how many numbers actions, proprio and state have, and the actions' bounds.
        chunk_len: K, control steps that are executed before the next decision.
        horizon: H, control steps that the network predicts; None: K.
        features: W, where the network gives PPO's critic something to read: `forward`, or `encode` where the head
            calls that, then returns a pair, its output and float [N, W]. None: the critic reads proprio and state.

    Raises:
        UserError: a size that is not positive, fewer predicted steps than executed ones, or an action without bounds.
    """

    methods: ClassVar[tuple[str, ...]] = ("forward",)
    """What the network must have."""

    def __init__(
        self, info: EnvInfo, *, chunk_len: int, horizon: int | None = None, features: int | None = None
    ) -> None:
        super().__init__()
        self.chunk_len, self.action_dim, self.features = chunk_len, info.action_dim, features
        self.horizon = chunk_len if horizon is None else horizon
        self.critic_dim = info.proprio_dim + info.state_dim if features is None else features
        self.bounds = torch.tensor([info.action_low, info.action_high])
        if not (self.bounds.isfinite().all() and (self.bounds[0] < self.bounds[1]).all()):
            raise UserError(
                f"suite '{info.suite}' has actions without finite bounds, which [-1, 1] could be mapped to."
            )
        if not 1 <= chunk_len <= self.horizon:
            raise UserError(f"chunk_len must lie in 1..horizon ({self.horizon}), got {chunk_len}.")
        if features is not None and features < 1:
            raise UserError(f"features is how many numbers the critic reads, 1 or more; got {features}.")

    def decide(self, network: Any, obs: Observation, rng: DecisionRng, *, greedy: bool) -> Decision:
        """Decide for N envs: sample, or take the mode."""
        raise NotImplementedError

    def score(self, network: Any, obs: Observation, replay: dict[str, Tensor]) -> Score:
        """Log-probs and entropies of recorded decisions, with gradients."""
        raise NotImplementedError

    def loss(self, network: Any, obs: Observation, actions: Tensor, action_mask: Tensor | None) -> Tensor:
        """Scalar imitation loss; actions float32 [N, H, A] in [-1, 1], action_mask bool [N, H] or None."""
        raise NotImplementedError

    def read(self, network: Any, obs: Observation) -> tuple[Any, Tensor | None]:
        """What the network's first method makes of N observations, and its features."""
        method = self.methods[0]
        found = network(obs) if method == "forward" else getattr(network, method)(obs)
        if self.features is None:
            return found, None
        where = f"{type(network).__name__}.{method}"
        if not isinstance(found, tuple) or len(found) != 2:
            raise UserError(f"{where} must return its output and features [N, {self.features}], got {_kind(found)}.")
        return found[0], checked(found[1], (len(obs.instruction), self.features), f"{where}'s features")

    def executed(self, x: Tensor) -> Tensor:
        """[..., H, D] -> [..., K, A]: the steps that are executed and the dimensions that exist."""
        return x[..., : self.chunk_len, : self.action_dim]


class ActionTokens(ActionHead):
    """The output is logits of action tokens, all at once: `forward(obs)` returns [N, H, A, bins].

    `replay` is {'tokens': int [N, L]}.

    Args:
        values: the action in [-1, 1] that each token stands for, float [bins]; None: OpenVLA's 256 tokens.
        temperature: divides the logits, where actions are sampled and where log-probs are computed.
        sizes: see `ActionHead`.

    Example:
        >>> head = erl.ActionTokens(env.info, chunk_len=8, values=torch.linspace(-1, 1, 32))
    """

    values: Tensor

    def __init__(
        self, info: EnvInfo, *, values: Tensor | None = None, temperature: float = 1.0, **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(info, **sizes)
        if not 0 < temperature < math.inf:
            raise UserError(f"the temperature of action tokens must be positive, got {temperature}.")
        if values is not None and not (values.ndim == 1 and len(values) > 1 and (values.abs() <= 1).all()):
            raise UserError("values of action tokens must be 2 or more numbers in [-1, 1], one a token.")
        self.temperature = temperature
        self._openvla = values is None
        known = torch.from_numpy(token_centres()) if values is None else values.detach().float()
        self.register_buffer("values", known.clone())

    def decide(self, network: Any, obs: Observation, rng: DecisionRng, *, greedy: bool) -> Decision:
        """Sample by inverse CDF from one uniform number a token, or take each token's argmax."""
        rows, count = len(obs.instruction), self.chunk_len * self.action_dim
        uniform = None if greedy else torch.from_numpy(rng.uniform(count)).to(self.values.device)
        logits, tokens, features = self._decode(network, obs, uniform, count)
        log_prob, _ = token_scores(logits, tokens, self.temperature)
        actions = self.values[tokens].view(rows, self.chunk_len, self.action_dim)
        small = tokens.to(torch.uint8 if len(self.values) <= 256 else torch.int64)
        return Decision(actions, log_prob, {"tokens": small}, features)

    def score(self, network: Any, obs: Observation, replay: dict[str, Tensor]) -> Score:
        """See `ActionHead`."""
        tokens = replay["tokens"].to(self.values.device).long()
        logits, features = self._logits(network, obs, tokens)
        return Score(*token_scores(logits[:, : tokens.shape[1]], tokens, self.temperature), features)

    def loss(self, network: Any, obs: Observation, actions: Tensor, action_mask: Tensor | None) -> Tensor:
        """Mean cross-entropy (nats a token, temperature 1)."""
        tokens = self.encode(actions)
        logits, _ = self._logits(network, obs, tokens)
        return F.cross_entropy(masked_steps(logits, action_mask), masked_steps(tokens, action_mask))

    def encode(self, actions: Tensor) -> Tensor:
        """Actions [N, H, A] in [-1, 1] -> the tokens of the nearest values, int64 [N, H * A]."""
        if self._openvla:  # two of its tokens have one value
            tokens = encode_actions(actions.flatten(1).cpu().numpy())
            return torch.from_numpy(tokens.astype(np.int64)).to(self.values.device)
        return (actions.to(self.values.device).flatten(1)[..., None] - self.values).abs().argmin(dim=-1)

    def _decode(
        self, network: Any, obs: Observation, uniform: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits [N, L, bins] and the tokens [N, L] that are chosen, and features."""
        logits, features = self._logits(network, obs, None)
        logits = logits[:, :count]
        flat = None if uniform is None else uniform.reshape(-1, 1)
        return logits, choose(logits.flatten(0, 1), flat, self.temperature).view(logits.shape[:2]), features

    def _logits(self, network: Any, obs: Observation, tokens: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Logits [N, H * A, bins], given the `tokens` before each where the network reads them; and features."""
        output, features = self.read(network, obs)
        shape = (len(obs.instruction), self.horizon, self.action_dim, len(self.values))
        return checked(output, shape, f"{type(network).__name__}'s logits").flatten(1, 2), features


class AutoregressiveTokens(ActionTokens):
    """Action tokens one after another, as a language model writes.

    `encode(obs)` returns a context of any kind, once a decision. `next_token(context, tokens)` with the tokens so far,
    int64 [N, t] with t from 0, returns the logits [N, t + 1, bins] of each token given those before it.

    Example:
        >>> head = erl.AutoregressiveTokens(env.info, chunk_len=1)
    """

    methods = ("encode", "next_token")

    def _decode(
        self, network: Any, obs: Observation, uniform: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        context, features = self.read(network, obs)
        tokens = torch.zeros((len(obs.instruction), 0), dtype=torch.int64, device=self.values.device)
        logits: list[Tensor] = []
        for t in range(count):
            logits.append(self._next(network, context, tokens)[:, -1])
            number = None if uniform is None else uniform[:, t : t + 1]
            tokens = torch.cat([tokens, choose(logits[-1], number, self.temperature)[:, None]], dim=1)
        return torch.stack(logits, dim=1), tokens, features

    def _logits(self, network: Any, obs: Observation, tokens: Tensor | None) -> tuple[Tensor, Tensor | None]:
        assert tokens is not None
        context, features = self.read(network, obs)
        return self._next(network, context, tokens[:, :-1]), features

    def _next(self, network: Any, context: Any, tokens: Tensor) -> Tensor:
        shape = (len(tokens), tokens.shape[1] + 1, len(self.values))
        return checked(network.next_token(context, tokens), shape, f"{type(network).__name__}.next_token's logits")


class GaussianActions(ActionHead):
    """The output is the mean of independent Gaussian actions: `forward(obs)` returns [N, H, A].

    Samples are clipped to [-1, 1]; log-probs are those of the samples as drawn. `replay` is {'drawn': float32 [N, L]}.

    Args:
        std: standard deviation at the start, in [-1, 1] units of the actions, 0.00674 to 2.718.
        learn_std: it is learned, one number an executed step and dimension; else it stays.
        sizes: see `ActionHead`.

    Example:
        >>> head = erl.GaussianActions(env.info, chunk_len=8, std=0.3)
    """

    def __init__(self, info: EnvInfo, *, std: float = 0.5, learn_std: bool = True, **sizes: Unpack[Sizes]) -> None:
        super().__init__(info, **sizes)
        low, high = (math.exp(end) for end in LOG_STD)
        if not low <= std <= high:
            raise UserError(f"the std of Gaussian actions must lie in {low:.3g} to {high:.4g}, got {std}.")
        start = torch.full((self.chunk_len, self.action_dim), math.log(std))
        self.log_std = nn.Parameter(start, requires_grad=learn_std)

    def decide(self, network: Any, obs: Observation, rng: DecisionRng, *, greedy: bool) -> Decision:
        """Draw from the Gaussian, or take its mean."""
        mean, std, features = self._gaussian(network, obs)
        drawn = mean
        if not greedy:
            noise = torch.from_numpy(rng.normal(self.chunk_len * self.action_dim)).to(mean.device)
            drawn = mean + std * noise.view_as(mean)
        log_prob = log_density(drawn, mean, std).flatten(1)
        return Decision(drawn, log_prob, {"drawn": drawn.flatten(1)}, features)

    def score(self, network: Any, obs: Observation, replay: dict[str, Tensor]) -> Score:
        """See `ActionHead`."""
        mean, std, features = self._gaussian(network, obs)
        drawn = replay["drawn"].to(mean.device).view_as(mean)
        return Score(log_density(drawn, mean, std).flatten(1), normal_entropy(std).flatten(1), features)

    def loss(self, network: Any, obs: Observation, actions: Tensor, action_mask: Tensor | None) -> Tensor:
        """Mean squared error of the mean."""
        mean, _ = self._mean(network, obs)
        return masked_steps(mean - actions.to(mean.device), action_mask).square().mean()

    def _mean(self, network: Any, obs: Observation) -> tuple[Tensor, Tensor | None]:
        output, features = self.read(network, obs)
        shape = (len(obs.instruction), self.horizon, self.action_dim)
        return checked(output, shape, f"{type(network).__name__}'s means"), features

    def _gaussian(self, network: Any, obs: Observation) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean and standard deviation [N, K, A] of the executed steps, and features."""
        mean, features = self._mean(network, obs)
        mean = self.executed(mean)
        return mean, self.log_std.clamp(*LOG_STD).exp().expand_as(mean), features


class VelocityField(ActionHead):
    """The output is a velocity field (flow matching), which explores by Flow-SDE as pi0 does.

    `encode(obs)` returns a context of any kind, once a decision. `velocity(context, x, time)` with x float32 [N, H, D]
    and time float32 [N] returns [N, H, D]. Time runs from 1 (noise) to 0 (action); the velocity is noise - action.
    `replay` is {'points': float32 [N, 2, H, D], 'step': int64 [N, 1]}, the denoising step that explored.

    Args:
        num_inference_steps: denoising steps a decision.
        noise_level: size of Flow-SDE's noise.
        field_dim: D, of which the first A are executed; None: A.
        sizes: see `ActionHead`.

    Example:
        >>> head = erl.VelocityField(env.info, chunk_len=8, horizon=50, field_dim=32)
    """

    methods = ("encode", "velocity")
    loss_calls: Tensor

    def __init__(
        self,
        info: EnvInfo,
        *,
        num_inference_steps: int = 4,
        noise_level: float = 0.5,
        field_dim: int | None = None,
        **sizes: Unpack[Sizes],
    ) -> None:
        super().__init__(info, **sizes)
        self.flow = FlowSettings(num_inference_steps=num_inference_steps, noise_level=noise_level)
        self.field_dim = self.action_dim if field_dim is None else field_dim
        if self.field_dim < self.action_dim:
            raise UserError(f"field_dim must be {self.action_dim} or more, as an action has numbers; got {field_dim}.")
        # Counts training calls, so that a resumed run goes on with the noise that it would have drawn.
        self.register_buffer("loss_calls", torch.zeros((), dtype=torch.int64))

    def decide(self, network: Any, obs: Observation, rng: DecisionRng, *, greedy: bool) -> Decision:
        """Denoise with one exploring step, or along the ODE from a random start."""
        noise = draw_noise(rng, self.flow, self.horizon, self.field_dim, self.loss_calls.device)
        context, features = self.read(network, obs)
        path = sample_path(partial(self._step, network, context), noise, self.flow, explore=not greedy)
        log_prob = self.executed(path.log_prob).sum(dim=1).flatten(1)
        return Decision(self.executed(path.action), log_prob, {"points": path.points, "step": path.step}, features)

    def score(self, network: Any, obs: Observation, replay: dict[str, Tensor]) -> Score:
        """See `ActionHead`."""
        points, step = (replay[name].to(self.loss_calls.device) for name in ("points", "step"))
        context, features = self.read(network, obs)
        out = self._step(network, context, points[:, :-1], step)
        terms = (log_density(points[:, 1:], out.mean, out.std), normal_entropy(out.std))
        log_prob, entropy = (self.executed(term).sum(dim=1).flatten(1) for term in terms)
        return Score(log_prob, entropy, features)

    def loss(
        self,
        network: Any,
        obs: Observation,
        actions: Tensor,
        action_mask: Tensor | None,
        rng: DecisionRng | None = None,
    ) -> Tensor:
        """Mean squared error of the velocity, over all D dimensions, at one random time a row, by `rng` or its own."""
        wanted = F.pad(actions.to(self.loss_calls.device), (0, self.field_dim - self.action_dim))
        calls = self.loss_calls if self.training else None
        normal, uniform = loss_noise(calls, (len(wanted), 1, *wanted.shape[1:]), rng)
        x, time, target = training_inputs(wanted, normal.to(wanted.device), uniform.to(wanted.device))
        context, _ = self.read(network, obs)
        velocity = self._velocity(network, context, x[:, 0], time[:, 0])
        return F.mse_loss(masked_steps(velocity, action_mask), masked_steps(target[:, 0], action_mask))

    def _step(self, network: Any, context: Any, x: Tensor, step: Tensor) -> Transition:
        """The denoising steps `step` int64 [N, 1] from x [N, 1, H, D]."""
        time = step_time(step, self.flow.num_inference_steps)
        velocity = self._velocity(network, context, x[:, 0], time[:, 0])[:, None]
        mean, std = sde_step(x, velocity, time, self.flow)
        return Transition(mean, std, ode_step(x, velocity, self.flow.num_inference_steps), x.new_zeros(len(x), 1, 0))

    def _velocity(self, network: Any, context: Any, x: Tensor, time: Tensor) -> Tensor:
        return checked(network.velocity(context, x, time), tuple(x.shape), f"{type(network).__name__}.velocity")


def checked(value: Any, shape: tuple[int, ...], what: str) -> Tensor:
    """`value` in float32; UserError unless it is a tensor of `shape`."""
    if not isinstance(value, Tensor) or tuple(value.shape) != shape:
        raise UserError(f"{what} must be a tensor {list(shape)}, got {_kind(value)}.")
    return value.float()


def _kind(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"

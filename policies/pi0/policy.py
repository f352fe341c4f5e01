"""pi0 and pi0.5 behind the policy contract: chunks of continuous actions, denoised by flow matching.

One log-prob term a control step and action dimension, summed over the recorded denoising steps. Steps of the horizon
that are not executed and padded dimensions have no term. The start of a path is standard normal whatever the weights,
and so are Flow-SDE's ODE steps taken as given (pi_RL): neither has a term.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.checkpoints.adapters import Base
from embodied_rl.policies.compile import pad_prompt
from embodied_rl.policies.efficient import DenoiseReuse, EfficientParts
from embodied_rl.policies.flow import (
    FlowSettings,
    Transition,
    draw_noise,
    learned_std,
    log_density,
    loss_noise,
    normal_entropy,
    ode_step,
    sample_path,
    sde_step,
    step_time,
    training_inputs,
)
from embodied_rl.policies.flow import Path as FlowPath
from embodied_rl.policies.pi0.candidates import propose, summarise
from embodied_rl.policies.pi0.compile import compiled_denoising
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.continuing import continue_chunk
from embodied_rl.policies.pi0.model import Pi0Model, Prefix
from embodied_rl.policies.pi0.normalise import Pi0Statistics, Robot, unit
from embodied_rl.policies.pi0.prompt import Pi0Prompt, word_tokenizer
from embodied_rl.policies.prefix_cache import PrefixCache
from embodied_rl.policies.steering import Steering
from embodied_rl.policy import ActMode, PolicyTraits, action_chunks, masked_steps, void_rows
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, Array, EvalOutput, Observation


class Pi0Policy(nn.Module):
    """A pi0 or pi0.5 policy (see `embodied_rl.policy.Policy`).

    flow: how it samples. with_value: fill `value`. detach_critic_input: no gradient of it reaches the rest of the
        policy. fresh_critic: why its value head is new, '' where it is its checkpoint's. mixed_precision: the network
        multiplies in bfloat16 (autocast); the sampler and all densities are float32. kept: where `act` leaves what it
        computed of images and prompt, for `evaluate`; needs `Pi0Model.freeze_language_model`.
    compiled: `act` runs its denoising steps through `torch.compile`, see `policies.compiled`; `evaluate` does not.
    steering: chooses among its chunks, None where it acts by the first one.
    denoise_reuse: only every so many denoising steps run the action expert (see `prune.DenoiseReuse`), for
        evaluation and serving.
    robots: those that it knows, by data set; `select` chooses one. resized: parameters that began, at least in part, at
        zero, since another robot's did not fit.
    `replay` is {'points': float32 [N,M+1,H,D], 'step': int64 [N,M]}, the recorded part of the denoising path.
    """

    architecture: ClassVar[str] = "pi0"
    config_class: ClassVar[type[Pi0ModelConfig]] = Pi0ModelConfig
    model_class: ClassVar[type[Pi0Model]] = Pi0Model
    prompt_class: ClassVar[type[Pi0Prompt]] = Pi0Prompt
    loss_calls: Tensor

    def __init__(
        self,
        config: Pi0ModelConfig,
        prompt: Pi0Prompt,
        statistics: Pi0Statistics,
        flow: FlowSettings,
        *,
        unnorm_key: str = "default",
    ) -> None:
        super().__init__()
        dims = (statistics.action.dim, statistics.state.dim)
        if dims[0] != config.action_dim or (config.state_input != "none" and dims[1] != config.proprio_dim):
            raise UserError(
                f"statistics are for {dims[0]} action and {dims[1]} state dimensions, the model has "
                f"{config.action_dim} and {config.proprio_dim}: use the statistics of the data set that it is for"
            )
        self.config = config
        self.model = self.model_class(config)
        self.prompt = prompt
        self.statistics = statistics
        self.flow = flow
        self.unnorm_key = unnorm_key
        self.robots = {unnorm_key: Robot(statistics, config.cameras, config.clip_actions)}
        self.with_value = False
        self.detach_critic_input = True
        self.fresh_critic = ""
        self.mixed_precision = False
        self.compiled = False
        self.denoise_reuse = 1
        self.steering: Steering | None = None
        self.prefix_cache: PrefixCache | None = None
        self.source_files: tuple[Path, ...] = ()
        self.base: Base | None = None
        self.resized: frozenset[str] = frozenset()
        self.chunk_len = config.chunk_len
        self.action_dim = config.action_dim
        self.terms_per_step = config.action_dim
        # Counts training calls, so that a resumed run goes on with the noise that it would have drawn.
        self.register_buffer("loss_calls", torch.zeros((), dtype=torch.int64))

    @classmethod
    def fresh(
        cls,
        config: Pi0ModelConfig,
        instructions: Iterable[str],
        statistics: Pi0Statistics | None = None,
        flow: FlowSettings | None = None,
        *,
        seed: int = 0,
        unnorm_key: str = "default",
    ) -> Self:
        """A randomly initialised policy whose word tokenizer knows `instructions`; `seed` fixes the weights."""
        rows = config.decoder.vocab_size
        tokenizer = word_tokenizer(instructions, rows, with_state=config.state_input == "prompt")
        statistics = statistics or Pi0Statistics(unit(config.proprio_dim), unit(config.action_dim))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            prompt = cls.prompt_class(tokenizer, rows)
            return cls(config, prompt, statistics, flow or FlowSettings(), unnorm_key=unnorm_key)

    @property
    def traits(self) -> PolicyTraits:
        """See `PolicyTraits`."""
        return PolicyTraits(
            compiled=self.compiled,
            critic="model.value_head.",
            fresh_critic=self.fresh_critic,
            noisy_imitation=True,
            propose=partial(propose, self),
            summarise=partial(summarise, self),
            prefix_cache=self.prefix_cache,
            continue_chunk=partial(continue_chunk, self) if self.steering is None else None,
        )

    @property
    def center_crop(self) -> None:
        """It sees whole images."""
        return None

    @property
    def uses_proprio(self) -> bool:
        """Whether it reads the state, or its critic does."""
        return self.config.state_input != "none" or self.steering is not None

    @property
    def gripper_zero_one(self) -> bool:
        """Its data said -1 = open and 1 = closed."""
        return False

    @property
    def statistics_keys(self) -> list[str]:
        """Data sets whose statistics it has."""
        return sorted(self.robots)

    def select(self, key: str) -> None:
        """Act for, and learn from, the robot of a data set: its statistics, sizes and cameras.

        Raises:
            UserError: There are no statistics of such a data set.
        """
        if key not in self.robots:
            raise UserError(f"the policy has no statistics of '{key}'.{suggest(key, self.robots)}")
        robot = self.robots[key]
        self.statistics, self.unnorm_key = robot.statistics, key
        self.config = replace(
            self.config,
            action_dim=robot.statistics.action.dim,
            proprio_dim=robot.statistics.state.dim,
            num_cameras=len(robot.cameras) or self.config.max_cameras or self.config.num_cameras,
            cameras=robot.cameras,
            clip_actions=robot.clip_actions,
        )
        self.model.config = self.config
        self.action_dim = self.terms_per_step = self.config.action_dim

    @property
    def action_range(self) -> tuple[Array, Array]:
        """What the statistics say about the ends of each action dimension, float32 [A] twice."""
        stats = self.statistics.action.stats
        low, high = stats.get("q01"), stats.get("q99")
        if low is None or high is None:
            low, high = stats["mean"] - 2 * stats["std"], stats["mean"] + 2 * stats["std"]
        relative = np.arange(self.action_dim) < self.config.delta_dims  # the statistics are of differences there
        return np.where(relative, -1.0, low).astype(np.float32), np.where(relative, 1.0, high).astype(np.float32)

    @property
    def efficient_parts(self) -> EfficientParts:
        """See `EfficientParts`."""
        decoders = [self.model.language, self.model.expert]
        return EfficientParts(decoders, 0, self.config.visual_tokens, self.flow.num_inference_steps)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.device

    @torch.no_grad()
    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N envs: 'sample' explores as `flow` says, 'greedy' follows the ODE from a random start."""
        if self.steering is not None:
            return self.steering.act(self, obs, rng, mode)
        config = self.config
        kept = "write" if mode == "sample" else "ignore"
        prefix = self.read_prefix(obs.images, obs.proprio, obs.instruction, 1, kept=kept, compiled=self.compiled)
        if self.denoise_reuse > 1:
            prefix = replace(prefix, expert=DenoiseReuse(self.model.expert, self.denoise_reuse))
        noise = draw_noise(rng, self.flow, config.horizon, config.max_action_dim, self.device)
        step = compiled_denoising(self, prefix) if self.compiled else partial(self.denoise_step, prefix)
        path = sample_path(step, noise, self.flow, explore=mode == "sample")
        value = self._value(prefix, path.summary) if self.with_value else None
        return self.decided(path, obs.proprio, value)

    def decided(self, path: FlowPath, proprio: Tensor, value: Tensor | None = None) -> ActOutput:
        """What the paths of N rows, of raw proprio [N,P], come to."""
        actions = self.statistics.action.unnormalise(self._executed(path.action))
        if self.config.delta_dims:
            actions = actions + self.state_offset(proprio)
        log_prob = self._executed(path.log_prob).sum(dim=1).flatten(1)
        bounded = void_rows(self.config.clip(actions), actions, log_prob)
        return ActOutput(action_chunks(bounded), log_prob, value, {"points": path.points, "step": path.step})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Log-probs and entropies float32 [N, K*A] of recorded paths, with gradients.

        The prefix is computed once for all recorded steps, and these in one pass; or `kept` has it. RuntimeError with
        `denoise_reuse`: a recorded path lacks the steps whose features were used again.
        """
        if self.denoise_reuse > 1:
            raise RuntimeError("log-probs cannot be recomputed with denoise_reuse: it is for acting only")
        points, step = replay["points"].to(self.device), replay["step"].to(self.device)
        prefix = self.read_prefix(images, proprio, instruction, step.shape[1], kept="read")
        out = self.denoise_step(prefix, points[:, :-1], step)
        log_prob = log_density(points[:, 1:], out.mean, out.std)
        log_prob, entropy = (
            self._executed(terms).sum(dim=1).flatten(1) for terms in (log_prob, normal_entropy(out.std))
        )
        value = self._value(prefix, out.summary) if self.with_value else None
        return EvalOutput(log_prob, entropy, value)

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
        """Mean squared error of the velocity, over all D dimensions; actions float32 [N, H, A] in [-1, 1].

        `flow.loss_samples` noise draws a row share the row's prefix: those of `rng`, or without it numbers that differ
        from call to call in training mode and are always the same in evaluation mode.
        drop_action_history: changes nothing, since a denoised action never sees the actions before it. action_mask:
        bool [N, H], the steps that count (None: all); these still attend to the noisy actions of the others.
        """
        config, samples = self.config, self.flow.loss_samples
        if actions.shape[1:] != (config.horizon, config.action_dim):
            raise ValueError(f"actions must be [N,{config.horizon},{config.action_dim}], got {tuple(actions.shape)}")
        wanted = actions.to(self.device)
        if config.delta_dims:
            wanted = wanted - self.state_offset(proprio)
        wanted = self.statistics.action.normalise(wanted)
        wanted = F.pad(wanted, (0, config.max_action_dim - config.action_dim))
        normal, uniform = self._loss_noise(len(actions), samples, rng)
        x, time, target = training_inputs(wanted, normal, uniform)
        prefix = self.read_prefix(images, proprio, instruction, samples)
        with self.precision():
            velocity, _ = self.model.velocity(prefix, x, time)
        if action_mask is not None:
            velocity, target = (masked_steps(part.transpose(1, 2), action_mask) for part in (velocity, target))
        return F.mse_loss(velocity, target)

    def read_prefix(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        suffixes: int,
        *,
        kept: Literal["ignore", "write", "read"] = "ignore",
        compiled: bool = False,
        summarise: bool = False,
    ) -> Prefix:
        """Raw observations, on any device -> what `suffixes` denoising steps at a time read.

        kept: whether the store is to keep the part that does not train, to be asked for it, or left alone.
        compiled: whether compiled denoising steps will read it. summarise: fill its `summary`, critic or not.
        """
        config = self.config
        size, cameras = config.image_size, config.num_cameras
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (cameras, size, size, 3):
            raise ValueError(
                f"the policy needs uint8 images [N,{cameras},{size},{size},3], got {images.dtype} "
                f"{tuple(images.shape)}: render that many cameras at that size"
            )
        state = None
        if config.state_input != "none":
            if proprio.shape[1] != config.proprio_dim:
                raise ValueError(f"the policy needs proprio [N,{config.proprio_dim}], got {tuple(proprio.shape)}")
            state = self.statistics.state.normalise(proprio)
        words = state.cpu().numpy() if state is not None and config.state_input == "prompt" else None
        padded, lengths = self.prompt.batch(instruction, words)
        ids = torch.from_numpy(padded).to(self.device)
        if compiled:
            ids = pad_prompt(ids)
        token = None
        if state is not None and config.state_input == "token":
            token = F.pad(state, (0, config.max_state_dim - config.proprio_dim)).to(self.device)
        summarise = summarise or (self.with_value and config.critic_input == "prefix")
        with self.precision():
            attach = not self.detach_critic_input
            read = partial(self.model.read_language, suffixes=suffixes, summarise=summarise, attach=attach)
            if self.prefix_cache is None or kept == "ignore":
                part = read(images.to(self.device), ids, lengths)
            else:
                self.prefix_cache.check(self.model.prefix_parameters(), (self.mixed_precision, summarise))
                part = (self.prefix_cache.write if kept == "write" else self.prefix_cache.read)(
                    read, images, ids, lengths
                )
            return self.model.finish_prefix(part, token)

    def denoise_step(self, prefix: Prefix, x: Tensor, step: Tensor) -> Transition:
        """Where x [N,M,H,D] goes in denoising steps `step` int64 [N,M]: the primitive of sampling and of densities."""
        return self.denoise(prefix, x, step_time(step, self.flow.num_inference_steps))

    def denoise(self, prefix: Prefix, x: Tensor, time: Tensor) -> Transition:
        """`denoise_step`, where the steps begin at `time` float32 [N,M]."""
        steps = self.flow.num_inference_steps
        with self.precision():
            velocity, hidden = self.model.velocity(prefix, x, time)
            raw_std = self.model.raw_std(hidden) if self.flow.exploration == "flow_noise" else None
        ode = ode_step(x, velocity, steps)
        if raw_std is None:
            mean, std = sde_step(x, velocity, time, self.flow)
        else:
            mean, std = ode, learned_std(raw_std, self.flow)
        return Transition(mean, std, ode, hidden.mean(dim=2))

    def precision(self) -> AbstractContextManager[Any]:
        """The context in which the network computes."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.mixed_precision else nullcontext()

    def state_offset(self, proprio: Tensor) -> Tensor:
        """[N,1,A]: what `delta_dims` adds to an action, from the raw state float32 [N,P]."""
        dims = self.config.delta_dims
        return F.pad(proprio.to(self.device)[:, None, :dims], (0, self.action_dim - dims))

    def _executed(self, x: Tensor) -> Tensor:
        """[...,H,D] -> [...,K,A]: the steps that are executed and the dimensions that exist."""
        return x[..., : self.chunk_len, : self.action_dim]

    def _value(self, prefix: Prefix, summary: Tensor) -> Tensor:
        """float32 [N]; over action tokens, the mean of the recorded steps' values."""
        read = summary if prefix.summary is None else prefix.summary
        value = self.model.value(read.detach() if self.detach_critic_input else read)
        return value.mean(dim=1) if prefix.summary is None else value

    def _loss_noise(self, rows: int, samples: int, rng: DecisionRng | None = None) -> tuple[Tensor, Tensor]:
        """Normal [rows,samples,H,D] and uniform [rows,samples] numbers of this call of the loss."""
        shape = (rows, samples, self.config.horizon, self.config.max_action_dim)
        normal, uniform = loss_noise(self.loss_calls if self.training else None, shape, rng)
        return normal.to(self.device), uniform.to(self.device)


AnyPi0 = TypeVar("AnyPi0", bound=Pi0Policy)

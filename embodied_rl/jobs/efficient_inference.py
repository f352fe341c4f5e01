"""Options of `eval` that make a trained policy decide faster, and what they made of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embodied_rl.errors import UserError
from embodied_rl.factory.backends import observes
from embodied_rl.telemetry.info import EfficientInfo
from embodied_rl.types import EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.policies.efficient import EfficientParts

CALIBRATION_EPISODES = 16


@dataclass(frozen=True, kw_only=True)
class EfficientConfig:
    """Decide faster, at some cost in success, with a policy that is left as it is (EfficientVLA). All off by default; a
    score always says what was on."""

    drop_layers: int = 0
    """Leave out so many of the language model's layers, those that change their input least in the first observations
    of the first 16 episodes. pi0's action expert loses the same layers."""
    visual_tokens: int | None = None
    """Let the language model read only so many image patches, of all cameras together (None: all of them): half of them
    those that the prompt looks at most, half the most different ones."""
    denoise_reuse: int = 1
    """pi0: run the action expert's layers only in every N-th denoising step, and let the steps between reuse what they
    added (1: run them in every step)."""
    compile: bool = False
    """Act through torch.compile: nothing is left out, but the first decisions wait for the compiler, and numbers round
    differently. On a GPU CUDA graphs."""

    def __post_init__(self) -> None:
        least = {"drop_layers": 0, "visual_tokens": 1, "denoise_reuse": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise UserError(f"--efficient.{name.replace('_', '-')} must be at least {bound}, got {value}.")


def make_efficient(
    policy: AnyPolicy,
    config: EfficientConfig,
    open_envs: Callable[[], AbstractContextManager[VecEnv]],
    specs: Sequence[EpisodeSpec],
) -> EfficientInfo | None:
    """Change `policy` as `config` asks, for good; UserError for what does not apply to it. None for a state policy.

    open_envs, specs: where the evaluation runs and its episodes; opened only where layers are to be dropped.
    """
    from embodied_rl.policies.compile import need_compiler
    from embodied_rl.policies.efficient import VisualPruner, drop_layers, layer_importance, least_important
    from embodied_rl.policies.steering import refuse_steered

    if observes(policy) != "images" or policy.efficient_parts is None:
        if config != EfficientConfig():
            raise UserError(f"--efficient does not apply to this policy ({policy.architecture}): leave it out.")
        return None
    parts = policy.efficient_parts
    layers = len(parts.decoders[0].layers)
    _check(policy, config, layers, parts)
    importance: Sequence[float] = ()
    dropped: Sequence[int] = ()
    if config.drop_layers:
        decisions = _decisions(policy, first_observations(open_envs, specs))
        importance = layer_importance(parts.decoders, lambda: [policy.evaluate(*decision) for decision in decisions])
        dropped = least_important(importance, config.drop_layers)
        drop_layers(parts.decoders, dropped)
    if config.visual_tokens is not None and config.visual_tokens < parts.visual:
        network: Any = policy.model
        network.pruner = VisualPruner(parts.decoders[0], parts.start, parts.visual, config.visual_tokens)
    if config.denoise_reuse > 1:
        denoising: Any = policy  # as `_check` found
        denoising.denoise_reuse = config.denoise_reuse
    if config.compile:
        refuse_steered(policy, "--efficient.compile compiles one chunk a decision", "leave it out")
        need_compiler(policy.device.type)
        policy.compiled = True
    return EfficientInfo(
        dropped_layers=tuple(dropped),
        layers=layers,
        importance=tuple(importance),
        visual_tokens=config.visual_tokens or parts.visual,
        visual_tokens_in_all=parts.visual,
        denoise_reuse=config.denoise_reuse,
        compiled=config.compile,
    )


def first_observations(
    open_envs: Callable[[], AbstractContextManager[VecEnv]], specs: Sequence[EpisodeSpec]
) -> list[Observation]:
    """One row each: what is seen first in 16 of the episodes `specs`, spread over the tasks. Nothing is scored."""
    from embodied_rl.evaluation.benchmark import interleaved

    chosen = interleaved(specs)[:CALIBRATION_EPISODES]
    found = []
    with open_envs() as env:
        for spec in chosen:
            env.reset([0], [spec])
            seen = env.new_observation(1)
            env.observe([0], seen)
            found.append(seen)
    return found


def _check(policy: AnyPolicy, config: EfficientConfig, layers: int, parts: EfficientParts) -> None:
    if config.drop_layers >= layers:
        raise UserError(f"--efficient.drop-layers {config.drop_layers}: the policy has {layers} layers; one must stay.")
    if config.visual_tokens is not None and config.visual_tokens > parts.visual:
        raise UserError(f"--efficient.visual-tokens {config.visual_tokens}: the policy has {parts.visual} of them.")
    if config.denoise_reuse > 1 and not parts.num_inference_steps:
        raise UserError(f"--efficient.denoise-reuse does not apply to {policy.architecture}, which does not denoise.")
    if config.denoise_reuse > max(1, parts.num_inference_steps):
        raise UserError(
            f"--efficient.denoise-reuse {config.denoise_reuse}: the policy has "
            f"{parts.num_inference_steps} denoising steps."
        )
    if config.compile and config.denoise_reuse > 1:
        raise UserError(
            "--efficient.compile compiles one denoising step, and --efficient.denoise-reuse makes them differ: "
            "choose one of them."
        )


def _decisions(policy: AnyPolicy, observations: Sequence[Observation]) -> list[tuple[Any, ...]]:
    """What the policy decides about each observation, as arguments of `evaluate`."""
    import numpy as np

    from embodied_rl.rng import DecisionRng

    zero = np.zeros(1, np.int64)
    return [
        (obs.images, obs.proprio, obs.instruction, policy.act(obs, DecisionRng(zero + row, zero), "greedy").replay)
        for row, obs in enumerate(observations)
    ]

"""From a policy's options to the policy: what is said about its checkpoint, how it is to train, and how it is saved.

The one place that knows which kinds there are.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.config.policies import (
    SHIPPED,
    FlowPolicyConfig,
    OpenVLAOFTConfig,
    Pi0Config,
    PolicyConfig,
    SmolVLAConfig,
    TokenPolicyConfig,
)
from embodied_rl.config.train import kind_of
from embodied_rl.errors import UserError

if TYPE_CHECKING:
    from embodied_rl.policies.openvla.description import LoadOptions
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy
    from embodied_rl.policies.pi0.load import Pi0Options
    from embodied_rl.policies.pi0.policy import Pi0Policy
    from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions

    AnyPolicy = OpenVLAPolicy | Pi0Policy
    AnyOptions = LoadOptions | Pi0Options | SmolVLAOptions

# Options of PublishedOptions that apply to some kinds only.
_TOKEN_OPTIONS = ("unnorm_key", "variant", "center_crop")
_FLOW_OPTIONS, _PI0_OPTIONS = ("tokenizer", "statistics"), ("preset", "normalisation")
_VARIANT_FLAGS = ("head", "keep_stop", "num_cameras", "use_proprio", "film", "chunk_len")


@dataclass(frozen=True, kw_only=True)
class PublishedOptions:
    """What the files of published checkpoints do not say about their policies."""

    unnorm_key: str | None = None
    """Data set whose action statistics apply (None: the one that the checkpoint names; published ones name none)."""
    variant: str | None = None
    """How a published OpenVLA-OFT was trained: official, simplevla or rlinf."""
    center_crop: float | None = None
    """Share of each image's area that is cut out of its middle (None: as the checkpoint says)."""
    preset: str | None = None
    """Size of a published pi0: pi0_base, pi05_base or pi05_libero."""
    tokenizer: str | None = None
    """The language model's tokenizer.json: PaliGemma's for a published pi0, SmolVLM2's for a SmolVLA (None: the one
    beside its weights)."""
    statistics: str | None = None
    """Statistics for a published pi0 or SmolVLA (None: the only ones beside its weights)."""
    normalisation: Literal["mean_std", "quantiles"] | None = None
    """What a published pi0 normalises by."""

    def __post_init__(self) -> None:
        if self.center_crop is not None and not 0 < self.center_crop <= 1:
            raise UserError(f"--center-crop must lie in (0, 1], got {self.center_crop}.")

    def options_for(self, folder: Path, kind: str | None) -> AnyOptions:
        """What it says about the checkpoint in `folder`; UserError for what does not apply to it."""
        from embodied_rl.policies.openvla.description import LoadOptions
        from embodied_rl.policies.openvla_oft.config import variant
        from embodied_rl.policies.pi0.load import Pi0Options, is_pi0
        from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions, is_smolvla

        if is_smolvla(folder):
            _agree(kind, "smolvla", folder)
            self._refuse((*_TOKEN_OPTIONS, *_PI0_OPTIONS), folder)
            return SmolVLAOptions(tokenizer=self.tokenizer, statistics=self.statistics)
        if is_pi0(folder):
            _agree(kind, "pi0", folder)
            self._refuse(_TOKEN_OPTIONS, folder)
            return Pi0Options(
                preset=self.preset,
                tokenizer=self.tokenizer,
                statistics=self.statistics,
                normalisation=self.normalisation,
            )
        self._refuse((*_PI0_OPTIONS, *_FLOW_OPTIONS), folder)
        return LoadOptions(
            architecture=kind,
            unnorm_key=self.unnorm_key,
            center_crop=self.center_crop,
            variant=None if self.variant is None else variant(self.variant),
        )

    def _refuse(self, names: tuple[str, ...], folder: Path) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} does not apply to the policy in {folder}.")


def _agree(kind: str | None, holds: str, folder: Path) -> None:
    """UserError if another kind of policy was asked for than `folder` holds."""
    if kind not in (None, holds):
        raise UserError(f"{folder} holds architecture '{holds}', not '{kind}': choose the matching --policy")


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(PublishedOptions):
    """Which policy a command opens. Checkpoints of `sft` and `train` need their folder only."""

    checkpoint: str = SHIPPED
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] of a published one on the Hugging Face hub; 'shipped' is
    the small policy in the package."""
    policy: str | None = None
    """Kind of a published checkpoint: openvla or openvla_oft (None: as the checkpoint says)."""

    def load_options(self, folder: Path) -> AnyOptions:
        """What it says about the checkpoint in `folder`; UserError for what does not apply to it."""
        return self.options_for(folder, self.policy)


def load_options(config: PolicyConfig) -> AnyOptions:
    """What a run's options say about its checkpoint; UserError where flags are given without a variant."""
    if isinstance(config, Pi0Config):
        from embodied_rl.policies.pi0.load import Pi0Options

        return Pi0Options(
            preset=config.preset,
            tokenizer=config.tokenizer,
            statistics=config.statistics,
            normalisation=config.normalisation,
            chunk_len=config.chunk_len,
        )
    if isinstance(config, SmolVLAConfig):
        from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions

        return SmolVLAOptions(tokenizer=config.tokenizer, statistics=config.statistics, chunk_len=config.chunk_len)
    from embodied_rl.policies.openvla.description import LoadOptions
    from embodied_rl.policies.openvla_oft.config import variant

    chosen = None
    if isinstance(config, OpenVLAOFTConfig):
        flags: dict[str, Any] = {name: getattr(config, name) for name in _VARIANT_FLAGS}
        given = {name: value for name, value in flags.items() if value is not None}
        if given and config.variant is None:
            name = next(iter(given)).replace("_", "-")
            raise UserError(f"--policy.{name} changes a published variant: choose that too, with --policy.variant.")
        chosen = None if config.variant is None else dataclasses.replace(variant(config.variant), **given)
    return LoadOptions(
        architecture=kind_of("policy", config),
        unnorm_key=config.unnorm_key,
        variant=chosen,
        center_crop=config.center_crop,
    )


def load_policy(folder: Path, options: AnyOptions | None = None) -> AnyPolicy:
    """The policy in `folder`, on the CPU. Without options the folder must say everything itself, as ours do."""
    from embodied_rl.policies.openvla import checkpoint
    from embodied_rl.policies.pi0 import load as pi0
    from embodied_rl.policies.smolvla import checkpoint as smolvla

    if options is None and smolvla.is_smolvla(folder):
        options = smolvla.SmolVLAOptions()
    elif options is None and pi0.is_pi0(folder):
        options = pi0.Pi0Options()
    if isinstance(options, smolvla.SmolVLAOptions):
        return smolvla.load_any(folder, options)
    if isinstance(options, pi0.Pi0Options):
        return pi0.load_any(folder, options)
    return checkpoint.load_policy(folder, options)


def own_crop(policy: AnyPolicy) -> float | None:
    """Share of each image's area that the policy itself cuts out of the middle; None when it sees the whole image."""
    from embodied_rl.policies.pi0.policy import Pi0Policy

    return None if isinstance(policy, Pi0Policy) else policy.config.center_crop


def save_policy(policy: AnyPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder` in our own layout, all or nothing."""
    from embodied_rl.policies.openvla import checkpoint
    from embodied_rl.policies.pi0 import checkpoint as pi0_checkpoint
    from embodied_rl.policies.pi0.policy import Pi0Policy

    if isinstance(policy, Pi0Policy):
        pi0_checkpoint.save_policy(policy, folder, provenance)
    else:
        checkpoint.save_policy(policy, folder, provenance)


def prepare_policy(policy: AnyPolicy, config: PolicyConfig, folder: Path) -> None:
    """Make `policy`, which was loaded from `folder`, ready to train: what trains, formats, how it explores."""
    from embodied_rl.policies.compile import need_compiler
    from embodied_rl.policies.nn.lora import set_training
    from embodied_rl.policies.pi0.policy import Pi0Policy

    if isinstance(config, FlowPolicyConfig):
        assert isinstance(policy, Pi0Policy), "load_options chose the kind"
        _prepare_flow(policy, config)
    else:
        assert not isinstance(policy, Pi0Policy), "load_options chose the kind"
        _prepare_tokens(policy, config, folder)
    set_training(policy, config.dtype, recompute=config.gradient_checkpointing)
    if config.compile:
        need_compiler(policy.device.type)
        policy.compiled = True


def _prepare_tokens(policy: OpenVLAPolicy, config: TokenPolicyConfig, folder: Path) -> None:
    from embodied_rl.policies.openvla.checkpoint import adapt_policy

    if config.lora_rank and policy.base is None:
        adapt_policy(policy, folder, config.lora_rank)
    policy.temperature = config.temperature


def _prepare_flow(policy: Pi0Policy, config: FlowPolicyConfig) -> None:
    from embodied_rl.policies.prefix_cache import GIB, PrefixCache

    if config.train_expert_only:
        policy.model.freeze_language_model()
    policy.prefix_cache = PrefixCache(int(config.prefix_cache_gib * GIB)) if config.prefix_cache_gib else None
    policy.flow = dataclasses.replace(
        policy.flow,
        exploration=config.exploration,
        num_inference_steps=config.num_inference_steps,
        noise_level=config.noise_level,
        noise_range=config.noise_range,
    )

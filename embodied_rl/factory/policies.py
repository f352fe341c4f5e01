"""The policy families, and what every command does with a policy: find, load, describe, prepare, save, export it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.config.policies import CUSTOM, CUSTOM_BEFORE, SHIPPED, ACTConfig, CustomPolicyConfig, PolicyConfig
from embodied_rl.errors import UserError, suggest
from embodied_rl.policies import act, mlp, openvla, openvla_oft, pi0, smolvla
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.policies.checkpoints.shipped import is_shipped, shipped_folder
from embodied_rl.policies.family import ExportRequest, PolicyFamily
from embodied_rl.telemetry.info import PolicyInfo

if TYPE_CHECKING:
    from embodied_rl.policies.act.policy import ACTPolicy
    from embodied_rl.policies.mlp.policy import MLPPolicy
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy
    from embodied_rl.policies.pi0.policy import Pi0Policy

    AnyPolicy = OpenVLAPolicy | Pi0Policy | ACTPolicy  # of images
    KnownPolicy = AnyPolicy | MLPPolicy


@dataclass(frozen=True, kw_only=True)
class _CustomFamily(PolicyFamily):
    """All policies that users registered, as far as commands know them."""

    def _module(self, name: str) -> Any:
        return import_module("embodied_rl.factory.custom")


_CUSTOM = _CustomFamily(
    name=CUSTOM, config=CustomPolicyConfig, given=(), holds=lambda config: config.get("architecture") == CUSTOM_BEFORE
)
FAMILIES: dict[str, PolicyFamily] = {
    family.name: family
    for family in (openvla.FAMILY, openvla_oft.FAMILY, pi0.FAMILY, smolvla.FAMILY, act.FAMILY, mlp.FAMILY, _CUSTOM)
}
UNSTEERED = "begin with the checkpoint that it was trained from"  # where a steered policy is no start
_OURS = "embodied_rl"  # the section that our exports add to a published config.json
_OF_CHECKPOINTS = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "*.pt",
    "lora_adapter",
    "dataset_statistics.json",
    "provenance.json",
    "checksums.json",
)
"""What a folder may have that was a checkpoint, or a part of one."""


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
    horizon: int | None = None
    """Control steps that a published pi0 predicts (None: as its preset)."""
    extra_delta_transform: bool | None = None
    """A published pi0 predicts actions minus the state, all but the gripper, as openpi's pi0_libero (None: as the
    checkpoint says)."""
    tokenizer: str | None = None
    """The language model's tokenizer.json: PaliGemma's for a published pi0, SmolVLM2's for a SmolVLA (None: the one
    beside its weights)."""
    statistics: str | None = None
    """Statistics for a published pi0, SmolVLA or ACT (None: the only ones among or beside its weights)."""
    normalisation: Literal["mean_std", "quantiles"] | None = None
    """What a published pi0 normalises by."""
    chunk_len: int | None = None
    """Control steps that an ACT executes before the next decision, without temporal ensembling (None: as the checkpoint
    says)."""
    temporal_ensemble_coeff: float | None = None
    """Let an ACT decide at every step and average what its chunks so far say of it: the i-th one counts exp(-i times
    this number), the oldest being 0; the paper's is 0.01 (None: as the checkpoint says)."""

    def __post_init__(self) -> None:
        if self.center_crop is not None and not 0 < self.center_crop <= 1:
            raise UserError(f"--center-crop must lie in (0, 1], got {self.center_crop}.")
        if self.horizon is not None and self.horizon < 1:
            raise UserError(f"--horizon must be at least 1, got {self.horizon}.")
        if self.chunk_len is not None and self.chunk_len < 1:
            raise UserError(f"--chunk-len must be at least 1, got {self.chunk_len}.")
        if self.temporal_ensemble_coeff is not None and not math.isfinite(self.temporal_ensemble_coeff):
            raise UserError(f"--temporal-ensemble-coeff must be a number, got {self.temporal_ensemble_coeff}.")

    def options_for(self, folder: Path, kind: str | None) -> LoadRequest:
        """How to load the checkpoint in `folder`; UserError for an option that does not apply to it."""
        family = family_of(folder, kind)
        for name in PublishedOptions.__dataclass_fields__:
            if getattr(self, name) is not None and name not in family.given:
                raise UserError(f"--{name.replace('_', '-')} does not apply to the policy in {folder}.")
        return LoadRequest(family, self)


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(PublishedOptions):
    """Which policy a command opens. Checkpoints of `sft` and `train` need their folder only."""

    checkpoint: str = SHIPPED
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] of a published one on the Hugging Face hub; 'shipped' is
    the small policy in the package."""
    policy: str | None = None
    """Kind of a published checkpoint: openvla or openvla_oft (None: as the checkpoint says)."""

    def load_options(self, folder: Path) -> LoadRequest:
        """How to load the checkpoint in `folder`; UserError for an option that does not apply to it."""
        return self.options_for(folder, self.policy)


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A family, and what the user says about a checkpoint of it (training options or `PublishedOptions`)."""

    family: PolicyFamily
    given: Any


def family_of(folder: Path, kind: str | None = None) -> PolicyFamily:
    """The family of the checkpoint in `folder`.

    Args:
        kind: the family that the user named, which must be the folder's; None for whatever it holds.

    Raises:
        UserError: another kind was named than the folder holds, or none and the folder does not say; or there is
            nothing of a checkpoint in it.
    """
    from embodied_rl.policies.checkpoints.folder import read_json

    if kind is not None and kind not in FAMILIES:
        raise UserError(f"unknown policy '{kind}'.{suggest(kind, FAMILIES)}")
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    section = config.get(_OURS)
    said = config.get("architecture") or (section.get("architecture") if isinstance(section, dict) else None)
    holding = [said] if said in FAMILIES else [name for name, family in FAMILIES.items() if family.holds(config)]
    if not holding:
        _require_checkpoint(folder)
        return FAMILIES[kind or "openvla"]  # whose loader says what is wrong with the folder
    if kind is None and len(holding) > 1:
        raise UserError(
            f"{folder} is a published checkpoint that does not say how it decodes: name its --policy, "
            f"{' or '.join(holding)}"
        )
    if kind not in (None, *holding):
        raise UserError(f"{folder} holds architecture '{holding[0]}', not '{kind}': choose the matching --policy")
    return FAMILIES[kind or holding[0]]


def _require_checkpoint(folder: Path) -> None:
    """UserError for a folder without a file of a checkpoint; one that lacks some is its loader's to judge."""
    if not folder.is_dir() or any(any(folder.glob(pattern)) for pattern in _OF_CHECKPOINTS):
        return
    if (folder / "run.json").is_file():
        raise UserError(f"{folder} is a run's folder that has no checkpoint yet: name another one")
    raise UserError(f"{folder} is neither a checkpoint nor a run folder: name the folder that sft or train wrote")


def family_named(policy: KnownPolicy) -> PolicyFamily:
    """The family of a loaded policy."""
    return FAMILIES[policy.architecture]


def load_options(config: PolicyConfig) -> LoadRequest:
    """What a run's options say about its checkpoint; UserError where flags are given without a variant."""
    if isinstance(config, CustomPolicyConfig):
        return LoadRequest(_CUSTOM, config)
    family = next(family for family in FAMILIES.values() if family.config is type(config))
    family.load_options(config)  # raises before a checkpoint is looked for
    return LoadRequest(family, config)


def load_policy(folder: Path, request: LoadRequest | None = None) -> AnyPolicy:
    """The policy in `folder`, on the CPU; `source_files` are the files that it was read from.

    Args:
        request: None where the folder must say everything itself, as ours do.

    Raises:
        UserError: a file is missing, damaged, not finite or other than the checkpoint's SHA-256 says, or does not fit.
    """
    from embodied_rl.policies.checkpoints.folder import verify_checksums
    from embodied_rl.policies.checkpoints.integrity import recorded_files
    from embodied_rl.policies.steering import is_steered, load_steering

    verify_checksums(folder)
    family = family_of(folder, None if request is None else request.family.name)
    steered = is_steered(folder)  # outside: a digest is of what decides the actions
    with recorded_files() as files:
        policy = family.load(folder, family.load_options(PublishedOptions() if request is None else request.given))
        if steered:
            load_steering(folder, policy)
    policy.source_files = tuple(files)
    return policy


def load_weights(folder: Path, request: LoadRequest) -> AnyPolicy:
    """As `load_policy`, of a policy that `PolicyFamily.refit` makes one of another robot: nothing about its own is
    asked."""
    from embodied_rl.policies.checkpoints.folder import verify_checksums
    from embodied_rl.policies.checkpoints.integrity import recorded_files
    from embodied_rl.policies.steering import is_steered

    verify_checksums(folder)
    if is_steered(folder):
        raise UserError(f"{folder} is steered by a critic (best of N), which would be lost: {UNSTEERED}.")
    with recorded_files() as files:
        policy = request.family.weights(folder, request.family.load_options(request.given))
    policy.source_files = tuple(files)
    return policy


def save_policy(policy: KnownPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder` in our own layout, all or nothing."""
    family_named(policy).save(policy, folder, provenance)


def export_policy(policy: AnyPolicy, request: ExportRequest) -> None:
    """Write `policy` in the published layout of its family, or in ours; UserError where that has no place for it."""
    from embodied_rl.policies.steering import refuse_steered

    if request.layout != "native":
        refuse_steered(policy, "a published layout has no place for a critic", "--layout native keeps both")
    family_named(policy).export(policy, request)


def prepare_policy(policy: AnyPolicy, config: Any, folder: Path) -> None:
    """Make `policy`, which was loaded from `folder`, ready to train: what trains, formats, how it explores."""
    from embodied_rl.policies.compile import need_compiler
    from embodied_rl.policies.nn.lora import set_training

    family_named(policy).prepare(policy, config, folder)
    if config.observes != "images" or isinstance(config, ACTConfig):
        return
    set_training(policy, config.dtype, recompute=config.gradient_checkpointing)
    if config.compile:
        need_compiler(policy.device.type)
        policy.compiled = True


def policy_folder(checkpoint: str, *, weights: bool = True) -> Path:
    """The folder with a policy's config.json: `checkpoint` itself, the newest of a run's folder or of the `checkpoints`
    in it, a published one in the hub's cache (downloaded first if need be), or a shipped one.

    weights: False where it is enough what a published one says of itself.
    """
    if is_shipped(checkpoint):
        return shipped_folder(checkpoint)
    from embodied_rl.learner.checkpoint import POLICY, Checkpoints

    folder = resolve(checkpoint, weights=weights)
    for checkpoints in (folder / "checkpoints", folder):
        newest = Checkpoints(checkpoints, 1).find()
        if newest is not None:
            return newest / POLICY
    if (folder / "policy" / "config.json").is_file():
        return folder / "policy"
    return folder


def open_policy(checkpoint: str, device: str, options: LoadRequest | None = None) -> AnyPolicy:
    """Load a policy onto `device` ('cpu' or 'cuda'); UserError when the checkpoint does not fit or is damaged."""
    policy = load_policy(policy_folder(checkpoint), options)
    policy.to(device)
    return policy


def policy_info(policy: Any, checkpoint: str, seed: int = 0) -> PolicyInfo:
    """What a policy is, as fields.

    Args:
        policy: of any family.
        checkpoint: where it comes from; '' for random weights.
        seed: of random weights.
    """
    from embodied_rl.policies.checkpoints.integrity import files_digest

    numbers = [(parameter.numel(), parameter.requires_grad) for parameter in policy.parameters()]
    common: dict[str, Any] = {
        "family": policy.made_for.name if policy.architecture == CUSTOM else policy.architecture,
        "parameters": sum(count for count, _ in numbers),
        "trained_parameters": sum(count for count, trained in numbers if trained),
        "chunk_len": policy.chunk_len,
        "checkpoint": checkpoint or None,
        "seed": None if checkpoint else seed,
        "digest": files_digest(policy.source_files, policy_folder(checkpoint))[:_DIGITS] if checkpoint else None,
    }
    if policy.architecture == CUSTOM:
        return PolicyInfo(**common)
    if policy.architecture == "mlp":
        return PolicyInfo(**common, hidden=tuple(policy.config.hidden), squashed=policy.config.squash)
    cache, parts = policy.traits.prefix_cache, policy.efficient_parts
    return PolicyInfo(
        **common,
        best_of=None if policy.steering is None else policy.steering.candidates,
        temporal_ensemble_coeff=getattr(policy.config, "temporal_ensemble_coeff", None),
        denoising_steps=None if parts is None else parts.num_inference_steps or None,
        unnorm_key=policy.unnorm_key,
        compiled=policy.traits.compiled,
        fresh_critic=policy.traits.fresh_critic or None,
        prefix_cache_bytes=None if cache is None else cache.max_bytes,
    )


_DIGITS = 16
"""Of a SHA-256: enough to tell two checkpoints apart."""


def statistics_owner(key: str) -> str | None:
    """The suite whose action statistics go by `key`; None where no suite of ours has such a name."""
    from embodied_rl.factory.tasks import LIBERO_SUITES
    from embodied_rl.sim import tabletop

    known = (*tabletop.suites(), *LIBERO_SUITES)
    return next((name for name in known if key in (name, f"{name}_no_noops")), None)

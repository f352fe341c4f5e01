"""pi0 (Black et al. 2024) and pi0.5: chunks of continuous actions, denoised by flow matching."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.errors import UserError
from embodied_rl.policies.family import ExportRequest, FreshRequest, PolicyFamily, TrainingMode, pick

if TYPE_CHECKING:
    from embodied_rl.policies.memory import Footprint
    from embodied_rl.policies.pi0.checkpoint import Pi0Options
    from embodied_rl.policies.pi0.config import Pi0ModelConfig
    from embodied_rl.policies.pi0.policy import Pi0Policy


@dataclass(frozen=True, kw_only=True)
class FlowPolicyConfig:
    """What the policies have in common that denoise chunks of continuous actions."""

    checkpoint: str = ""
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] on the Hugging Face hub."""
    tokenizer: str | None = None
    """For published checkpoints: the language model's tokenizer.json."""
    statistics: str | None = None
    """For published checkpoints: file or folder of the data set's statistics (None: the only ones beside the
    weights)."""
    chunk_len: int | None = None
    """Control steps executed before the next decision (None: as the checkpoint says)."""
    exploration: Literal["flow_sde", "flow_noise"] = "flow_sde"
    """How sampled actions explore (pi_RL): one denoising step of each decision follows the stochastic equation, or
    every step adds noise of a learned size. Greedy evaluation does neither."""
    num_inference_steps: int = 4
    """Denoising steps a decision, also in evaluation."""
    noise_level: float = 0.5
    """Size of Flow-SDE's noise."""
    noise_range: tuple[float, float] = (0.08, 0.16)
    """Smallest and largest standard deviation of a step of Flow-Noise, in normalised action units."""
    train_expert_only: bool = False
    """Freeze vision tower and language model; train the action expert and the heads."""
    prefix_cache_gib: float = 0.0
    """With train_expert_only: host memory in GiB in which the rollout leaves what vision tower and language model
    computed, so that no epoch of the update computes it again; 0 keeps nothing. `embodied-rl plan` says what a
    decision takes."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format: bfloat16 holds frozen parameters and multiplies in it; what trains, and densities, stay
    float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: much less memory, about a third
    slower."""
    compile: bool = False
    """Act through torch.compile: the first decisions wait for the compiler, and numbers round differently. On a GPU
    CUDA graphs."""

    def __post_init__(self) -> None:
        low, high = self.noise_range
        if self.num_inference_steps < 2:
            raise UserError(f"--policy.num-inference-steps must be at least 2, got {self.num_inference_steps}.")
        if self.noise_level <= 0 or not 0 < low <= high:
            raise UserError("--policy.noise-level and --policy.noise-range must be positive, and the range in order.")
        if self.prefix_cache_gib < 0:
            raise UserError(f"--policy.prefix-cache-gib must not be negative, got {self.prefix_cache_gib}.")
        if self.prefix_cache_gib and not self.train_expert_only:
            raise UserError(
                "--policy.prefix-cache-gib keeps what a frozen language model computed, and this one "
                "trains: add --policy.train-expert-only, or leave it out."
            )
        if self.chunk_len is not None and self.chunk_len < 1:
            raise UserError(f"--policy.chunk-len must be at least 1, got {self.chunk_len}.")


@dataclass(frozen=True, kw_only=True)
class Pi0Config(FlowPolicyConfig):
    """The pi0 and pi0.5 policies."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy pi0 makes one), or a published one of openpi or LeRobot:
    its folder, or OWNER/NAME[@REVISION] on the Hugging Face hub. None ships with the package."""
    tokenizer: str | None = None
    """For published checkpoints: PaliGemma's tokenizer.json."""
    preset: str | None = None
    """For published checkpoints: pi0_base, pi05_base or pi05_libero."""
    normalisation: Literal["mean_std", "quantiles"] | None = None
    """For published checkpoints: what their states and actions were normalised by (openpi: pi0 mean_std, pi0.5
    quantiles)."""
    horizon: int | None = None
    """For published checkpoints: control steps that it predicts (None: as the preset)."""
    extra_delta_transform: bool | None = None
    """For published checkpoints: it predicts actions minus the state, all but the gripper, as openpi's pi0_libero
    (None: as the checkpoint says)."""


def load(folder: Path, options: Pi0Options) -> Pi0Policy:
    """See `checkpoint.load_any`."""
    from embodied_rl.policies.pi0 import checkpoint

    return checkpoint.load_any(folder, options)


def save(policy: Pi0Policy, folder: Path, provenance: dict[str, Any]) -> None:
    """See `checkpoint.save_policy`."""
    from embodied_rl.policies.pi0 import checkpoint

    checkpoint.save_policy(policy, folder, provenance)


def export(policy: Pi0Policy, request: ExportRequest) -> None:
    """See `hf_format.save_published`."""
    from embodied_rl.policies.pi0.hf_format import save_published

    if request.layout == "native":
        export_native(policy, request)
        return
    layout = request.layout or "openpi"
    save_published(policy, request.out, layout, request.cameras, request.provenance, request.dtype)


def export_native(policy: Pi0Policy, request: ExportRequest) -> None:
    """Write our own layout in the wanted number format."""
    if request.cameras:
        raise UserError("--cameras are LeRobot's names, and the native layout has none: leave them out")
    if request.dtype is not None:
        policy.model.to(request.dtype)
    save(policy, request.out, request.provenance)


def prepare(policy: Pi0Policy, config: FlowPolicyConfig, folder: Path) -> None:
    """Freeze what does not train, and let `policy` explore as `config` says."""
    from embodied_rl.policies.prefix_cache import GIB, PrefixCache

    if config.train_expert_only:
        policy.model.freeze_language_model()
    policy.prefix_cache = PrefixCache(int(config.prefix_cache_gib * GIB)) if config.prefix_cache_gib else None
    policy.flow = replace(
        policy.flow,
        exploration=config.exploration,
        num_inference_steps=config.num_inference_steps,
        noise_level=config.noise_level,
        noise_range=config.noise_range,
    )


def fresh(request: FreshRequest) -> Pi0Policy:
    """See `policy.fresh_for`."""
    from embodied_rl.policies.pi0.config import preset
    from embodied_rl.policies.pi0.policy import Pi0Policy, fresh_for

    return fresh_for(Pi0Policy, preset(request.preset), request)


def _load_options(given: Any) -> Pi0Options:
    from embodied_rl.policies.pi0.checkpoint import Pi0Options

    return pick(Pi0Options, given)


def _preset(name: str, variant: str) -> Pi0ModelConfig:
    from embodied_rl.policies.pi0.config import preset

    return preset(name)


def measure(config: Pi0ModelConfig, mode: TrainingMode) -> Footprint:
    """See `memory.measure`."""
    from embodied_rl.policies.pi0 import memory
    from embodied_rl.policies.pi0.policy import Pi0Policy

    return memory.measure(config, mode, Pi0Policy)


def cache_bytes(config: Pi0ModelConfig, element_bytes: int) -> int:
    """See `memory.cache_bytes`."""
    from embodied_rl.policies.pi0 import memory

    return memory.cache_bytes(config, element_bytes)


def prefix_bytes(config: Pi0ModelConfig, element_bytes: int) -> int:
    """See `memory.kept_bytes`."""
    from embodied_rl.policies.pi0 import memory

    return memory.kept_bytes(config, element_bytes)


FAMILY = PolicyFamily(
    name="pi0",
    config=Pi0Config,
    given=("preset", "tokenizer", "statistics", "normalisation", "horizon", "extra_delta_transform"),
    holds=lambda config: "paligemma_variant" in config or config.get("type") in ("pi0", "pi05"),
    load_options=_load_options,
    load=load,
    save=save,
    export=export,
    prepare=prepare,
    fresh=fresh,
    preset=_preset,
    measure=measure,
    cache_bytes=cache_bytes,
    prefix_bytes=prefix_bytes,
)

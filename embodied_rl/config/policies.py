"""Options of the policies: which checkpoint, how its actions are drawn, what of it trains in which number format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from embodied_rl.errors import UserError

SHIPPED = "shipped"


@dataclass(frozen=True, kw_only=True)
class OpenVLAConfig:
    """The OpenVLA policy."""

    checkpoint: str = SHIPPED
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] of a published one on the Hugging Face hub; 'shipped' is
    the small one in the package."""
    unnorm_key: str | None = None
    """Data set whose action statistics apply (None: the one that the checkpoint names; published ones name none)."""
    center_crop: float | None = None
    """Share of each image's area that is cut out of its middle, 0.9 for models trained on random crops (None: as the
    checkpoint says; a published OpenVLA sees the whole image)."""
    temperature: float = 1.0
    """Widens (or below 1 narrows) the distribution that actions are sampled from; greedy evaluation does not use it."""
    lora_rank: int = 0
    """Train LoRA adapters of this rank and small heads, and freeze the rest; 0 trains every parameter."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format: bfloat16 holds frozen parameters and multiplies in it; what trains, and logits, stay float32."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third slower."""
    compile: bool = False
    """Act through torch.compile: the first decisions wait for the compiler, and numbers round differently. On a GPU
    CUDA graphs."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UserError(f"--policy.temperature must be positive, got {self.temperature}.")
        if self.lora_rank < 0:
            raise UserError(f"--policy.lora-rank must not be negative, got {self.lora_rank}.")
        if self.center_crop is not None and not 0 < self.center_crop <= 1:
            raise UserError(f"--policy.center-crop must lie in (0, 1], got {self.center_crop}.")


@dataclass(frozen=True, kw_only=True)
class OpenVLAOFTConfig(OpenVLAConfig):
    """The OpenVLA-OFT policy: OpenVLA that decides a whole chunk in one pass."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy openvla_oft makes one), or OWNER/NAME[@REVISION] of a
    published one on the Hugging Face hub. None ships with the package."""
    variant: Literal["official", "simplevla", "rlinf"] | None = None
    """For published checkpoints, which do not say how they decode: openvla-oft's own, SimpleVLA-RL's or RLinf's."""
    head: Literal["tokens", "l1"] | None = None
    """What reads the action envs (None: as the variant)."""
    keep_stop: bool | None = None
    """Keep the stop token after the action envs (None: as the variant)."""
    num_cameras: int | None = None
    """Images in the input (None: as the variant)."""
    use_proprio: bool | None = None
    """One token from the proprio (None: as the variant)."""
    film: bool | None = None
    """The instruction modulates the vision towers (None: as the variant)."""
    chunk_len: int | None = None
    """Control steps decided at once (None: 8)."""


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


@dataclass(frozen=True, kw_only=True)
class SmolVLAConfig(FlowPolicyConfig):
    """The SmolVLA policy."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy smolvla makes one), or a published one of LeRobot: its
    folder, or OWNER/NAME[@REVISION] on the Hugging Face hub. None ships with the package."""
    tokenizer: str | None = None
    """For published checkpoints: SmolVLM2's tokenizer.json (None: the one beside the weights)."""


TokenPolicyConfig = OpenVLAConfig | OpenVLAOFTConfig
PolicyConfig = TokenPolicyConfig | Pi0Config | SmolVLAConfig

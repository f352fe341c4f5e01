"""pi0 (Black et al. 2024) and pi0.5: chunks of continuous actions, denoised by flow matching."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from embodied_rl.errors import UserError
from embodied_rl.policies.family import Observes, PolicyFamily
from embodied_rl.utils.options import Expert

CriticInput = Literal["action_tokens", "prefix"]


@dataclass(frozen=True, kw_only=True)
class FlowPolicyConfig:
    """What the policies have in common that denoise chunks of continuous actions."""

    observes: ClassVar[Observes] = "images"
    checkpoint: str = ""
    """Folder of a run or checkpoint, or OWNER/NAME[@REVISION] on the Hugging Face hub."""
    tokenizer: Expert[str | None] = None
    """For published checkpoints: the language model's tokenizer.json."""
    statistics: Expert[str | None] = None
    """For published checkpoints: file or folder of the data set's statistics (None: the only ones beside the
    weights)."""
    unnorm_key: Expert[str | None] = None
    """Data set for whose robot it acts, of a checkpoint that was trained on several (None: the first)."""
    chunk_len: Expert[int | None] = None
    """Control steps executed before the next decision (None: as the checkpoint says)."""
    exploration: Literal["flow_sde", "flow_noise"] = "flow_sde"
    """How sampled actions explore (pi_RL): one denoising step of each decision follows the stochastic equation, or
    every step adds noise of a learned size. Greedy evaluation does neither."""
    num_inference_steps: int = 4
    """Denoising steps a decision, also in evaluation."""
    noise_level: Expert[float] = 0.5
    """Size of Flow-SDE's noise."""
    train_expert_only: bool = False
    """Freeze vision tower and language model; train the action expert and the heads."""
    lora_rank: int = 0
    """Train LoRA adapters of this rank, the projections of states and actions and the heads, and freeze the rest; with
    train_expert_only, adapters of the action expert only. 0 has no adapters."""
    prefix_cache_gib: Expert[float] = 0.0
    """With train_expert_only: host memory in GiB in which the rollout leaves what vision tower and language model
    computed, so that no epoch of the update computes it again; 0 keeps nothing. `embodied-rl plan` says what a
    decision takes."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format: bfloat16 holds frozen parameters and multiplies in it; what trains, and densities, stay
    float32."""
    critic_input: Expert[CriticInput | None] = None
    """What PPO's critic reads: the mean hidden state of action_tokens in the denoising steps whose density counts,
    or of images and prompt (prefix); None: as the checkpoint says."""
    detach_critic_input: Expert[bool] = True
    """No gradient of PPO's critic reaches what it reads; off: it teaches the network too."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: much less memory, about a third
    slower."""
    compile: bool = False
    """Act through torch.compile: the first decisions wait for the compiler, and numbers round differently. On a GPU
    CUDA graphs."""

    def __post_init__(self) -> None:
        if self.num_inference_steps < 2:
            raise UserError(f"--policy.num-inference-steps must be at least 2, got {self.num_inference_steps}.")
        if self.noise_level <= 0:
            raise UserError(f"--policy.noise-level must be positive, got {self.noise_level}.")
        if self.lora_rank < 0:
            raise UserError(f"--policy.lora-rank must not be negative, got {self.lora_rank}.")
        if self.prefix_cache_gib < 0:
            raise UserError(f"--policy.prefix-cache-gib must not be negative, got {self.prefix_cache_gib}.")
        if self.prefix_cache_gib and not self.train_expert_only:
            raise UserError(
                "--policy.prefix-cache-gib keeps what a frozen language model computed, and this one "
                "trains: add --policy.train-expert-only, or leave it out."
            )
        self.check_critic(self.critic_input)
        if self.chunk_len is not None and self.chunk_len < 1:
            raise UserError(f"--policy.chunk-len must be at least 1, got {self.chunk_len}.")

    def check_critic(self, critic_input: CriticInput | None) -> None:
        """UserError if a critic on `critic_input` has nothing to teach and is asked to teach it."""
        if critic_input == "prefix" and self.train_expert_only and not self.detach_critic_input:
            raise UserError(
                "--policy.no-detach-critic-input does nothing with critic input prefix: a frozen language model "
                "computes it (--policy.train-expert-only). Leave it out, or take --policy.critic-input action_tokens."
            )


@dataclass(frozen=True, kw_only=True)
class Pi0Config(FlowPolicyConfig):
    """The pi0 and pi0.5 policies."""

    checkpoint: str = ""
    """Folder of a run or checkpoint (embodied-rl sft --policy pi0 makes one), or a published one of openpi or LeRobot:
    its folder, or OWNER/NAME[@REVISION] on the Hugging Face hub. None ships with the package."""
    tokenizer: Expert[str | None] = None
    """For published checkpoints: PaliGemma's tokenizer.json."""
    preset: Expert[str | None] = None
    """For published checkpoints: pi0_base, pi05_base or pi05_libero. For random weights, where a suite allows them:
    nano, tiny, nano_pi05 or tiny_pi05 (None: nano)."""
    normalisation: Expert[Literal["mean_std", "quantiles"] | None] = None
    """For published checkpoints: what their states and actions were normalised by (openpi: pi0 mean_std, pi0.5
    quantiles)."""
    horizon: Expert[int | None] = None
    """For published checkpoints: control steps that it predicts (None: as the preset)."""
    extra_delta_transform: Expert[bool | None] = None
    """For published checkpoints: it predicts actions minus the state, all but the gripper, as openpi's pi0_libero
    (None: as the checkpoint says)."""


FAMILY = PolicyFamily(
    name="pi0",
    config=Pi0Config,
    given=("unnorm_key", "preset", "tokenizer", "statistics", "normalisation", "horizon", "extra_delta_transform"),
    holds=lambda config: "paligemma_variant" in config or config.get("type") in ("pi0", "pi05"),
)

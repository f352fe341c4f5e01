"""How much memory OpenVLA and OpenVLA-OFT need: what `embodied-rl plan` measures."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from embodied_rl.policies.family import TrainingMode
from embodied_rl.policies.memory import Footprint, Rows, footprint, kv_bytes
from embodied_rl.policies.nn import lora
from embodied_rl.policies.openvla.config import OpenVLAModelConfig
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.openvla_oft.config import OFTModelConfig
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy

# As many tokens as Llama's tokenizer makes of OpenVLA's prompt with one of LIBERO's longer instructions.
_PROMPT_TOKENS = 40


INSTRUCTION = " ".join(f"word{number}" for number in range(_PROMPT_TOKENS - 2))
"""Makes a prompt of so many tokens with the tokenizer of `trainable`."""


def trainable(
    config: OpenVLAModelConfig, mode: TrainingMode, instructions: Sequence[str] = (INSTRUCTION,)
) -> OpenVLAPolicy:
    """A fresh policy with a critic as it is trained, which knows `instructions`; lora_rank 0 trains every parameter.

    For the meta device: where tensors have storage, the weights of large ones would take it twice.
    """
    kind = OpenVLAOFTPolicy if isinstance(config, OFTModelConfig) else OpenVLAPolicy
    policy = kind.fresh(config, instructions)
    policy.with_value = True
    if mode.lora_rank:
        lora.add_lora(policy.model, mode.lora_rank)
    lora.set_training(policy, mode.dtype, recompute=mode.gradient_checkpointing)
    return policy


def measure(config: OpenVLAModelConfig, mode: TrainingMode) -> Footprint:
    """The footprint of training with a critic; lora_rank 0 trains every parameter that runs."""
    drawn = isinstance(config, OFTModelConfig) and config.head == "l1"

    def make() -> OpenVLAPolicy:
        return trainable(config, mode)

    def rows(count: int) -> Rows:
        size, terms = config.image_size, (count, config.num_tokens)
        replay = {"actions": torch.zeros(terms)} if drawn else {"tokens": torch.zeros(terms, dtype=torch.uint8)}
        images = torch.zeros(count, config.num_cameras, size, size, 3, dtype=torch.uint8)
        return Rows(images, torch.zeros(count, config.proprio_dim), [INSTRUCTION] * count, replay)

    return footprint(make, rows)


def cache_bytes(config: OpenVLAModelConfig, element_bytes: int) -> int:
    """Key-value cache of one row while it is decoded; parallel decoding has none."""
    if isinstance(config, OFTModelConfig):
        return 0
    decoder = config.decoder
    slots = config.text_offset + _PROMPT_TOKENS + config.num_tokens - 1
    return kv_bytes(decoder, slots, element_bytes)


def prefix_bytes(config: OpenVLAModelConfig, element_bytes: int) -> int:
    """0: OpenVLA has no prefix cache."""
    return 0

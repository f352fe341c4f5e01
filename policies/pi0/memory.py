"""How much memory pi0 and its kin need: what `embodied-rl plan` measures."""

from __future__ import annotations

from dataclasses import replace

import torch

from embodied_rl.policies.family import TrainingMode
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.memory import Footprint, Rows, footprint, kv_bytes
from embodied_rl.policies.nn.lora import add_lora, set_training
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.policy import Pi0Policy

# As many tokens as PaliGemma's tokenizer makes of one of LIBERO's longer instructions, and of a state of 8 numbers with
# the words around it: it cuts a number into its digits.
_PROMPT_TOKENS, _STATE_TOKENS = 24, 44


def measure(config: Pi0ModelConfig, mode: TrainingMode) -> Footprint:
    """The footprint of training with a critic under Flow-SDE."""
    return measure_kind(config, mode, Pi0Policy)


def measure_kind(config: Pi0ModelConfig, mode: TrainingMode, kind: type[Pi0Policy]) -> Footprint:
    """The footprint of training a policy of `kind` with a critic under Flow-SDE."""
    # a made-up state cannot be written in words: the prompt is as long without it
    shape = replace(config, state_input="none") if config.state_input == "prompt" else config
    # a word tokenizer makes one token of each word, and none of the line's end
    instruction = " ".join(f"word{number}" for number in range(prompt_tokens(config) - 1))

    def make() -> Pi0Policy:
        policy = kind.fresh(shape, [instruction], flow=FlowSettings())
        policy.with_value = True
        if mode.train_expert_only:
            policy.model.freeze_language_model()
        if mode.lora_rank:
            add_lora(policy.model, mode.lora_rank)
        set_training(policy, mode.dtype, recompute=mode.gradient_checkpointing)
        return policy

    def rows(count: int) -> Rows:
        size, path = config.image_size, (count, 2, config.horizon, config.max_action_dim)
        images = torch.zeros(count, config.num_cameras, size, size, 3, dtype=torch.uint8)
        replay = {"points": torch.zeros(path), "step": torch.zeros(count, 1, dtype=torch.int64)}
        return Rows(images, torch.zeros(count, config.proprio_dim), [instruction] * count, replay)

    found = footprint(make, rows)
    # `evaluate` fills the cache that `act` fills; a plan counts it by itself
    cache = cache_bytes(config, 2 if mode.dtype == "bfloat16" else 4)
    return replace(found, rollout_per_row=found.rollout_per_row - cache)


def prompt_tokens(config: Pi0ModelConfig) -> int:
    """Tokens of a long prompt."""
    return _PROMPT_TOKENS + (_STATE_TOKENS if config.state_input == "prompt" else 0)


def cache_bytes(config: Pi0ModelConfig, element_bytes: int) -> int:
    """Keys and values of one row while it is decided for: prefix, state token and actions."""
    return kv_bytes(config.decoder, _prefix_slots(config) + 1 + config.horizon, element_bytes)


def prefix_bytes(config: Pi0ModelConfig, element_bytes: int) -> int:
    """What `PrefixCache` holds of one decision."""
    return kv_bytes(config.decoder, _prefix_slots(config), element_bytes)


def _prefix_slots(config: Pi0ModelConfig) -> int:
    return config.visual_tokens + prompt_tokens(config)

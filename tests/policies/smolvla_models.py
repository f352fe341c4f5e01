"""Very small SmolVLA policies: that of the golden file, with LeRobot's configuration and weights, and random ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.config import siglip
from embodied_rl.policies.preprocessing.text import build_word_tokenizer
from embodied_rl.policies.smolvla.checkpoint import SmolVLAOptions, load
from embodied_rl.policies.smolvla.config import SmolVLAModelConfig, expert_of, llama, smolvla_base
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy
from embodied_rl.types import Observation
from tests.policies.make_smolvla_golden import OUT, weight
from tests.policies.pi0_models import INSTRUCTIONS, randomise

FRAME = 16


def golden() -> dict[str, Any]:
    """The arrays of the golden file as tensors, its texts as Python objects."""
    with np.load(OUT) as file:
        found = dict(file)
    return {
        name: json.loads(str(value)) if value.dtype.kind == "U" else torch.from_numpy(value)
        for name, value in found.items()
    }


def tiny_vlm() -> SmolVLAModelConfig:
    """What `smolvla_base` would be with the golden file's language model; its expert and horizon are still to come."""
    decoder = llama(64, 24, 6, 4, 2, 8, 40)
    return SmolVLAModelConfig(
        vision=siglip(32, 8, 16, 2, 2, 24),
        shuffle=2,
        frame_size=FRAME,
        decoder=decoder,
        expert=expert_of(decoder, 0.5),
        horizon=50,
        chunk_len=50,
        value_hidden=(8, 4),
        noise_hidden=(8, 4),
        vlm=smolvla_base().vlm,
    )


def lerobot_folder(folder: Path) -> Path:
    """A checkpoint as LeRobot leaves it, with the golden file's configuration, weights and statistics."""
    found = golden()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(found["config"]))
    state = {name: torch.from_numpy(weight(name, tuple(shape))) for name, shape in found["shapes"].items()}
    save_file(state, folder / "model.safetensors")
    vectors = (("observation.state", "state"), ("action", "action"))
    stats = {f"{key}.{part}": found[f"{name}_{part}"] for key, name in vectors for part in ("mean", "std")}
    save_file(stats, folder / "policy_preprocessor_step_5_normalizer_processor.safetensors")
    build_word_tokenizer(INSTRUCTIONS, 64, fixed=()).save(str(folder / "tokenizer.json"))
    return folder


def golden_policy(folder: Path) -> SmolVLAPolicy:
    """`lerobot_folder`, loaded; the caller puts `tiny_vlm` in the place of the published preset."""
    return load(lerobot_folder(folder), SmolVLAOptions())


def tiny_policy(flow: FlowSettings | None = None, seed: int = 0) -> SmolVLAPolicy:
    """Random weights that all matter; the horizon is longer than a chunk, actions are padded, frames are enlarged."""
    decoder = llama(320, 24, 4, 4, 2, 8, 40)
    config = SmolVLAModelConfig(
        vision=siglip(32, 8, 16, 2, 2, 24),
        shuffle=2,
        frame_size=FRAME,
        decoder=decoder,
        expert=expert_of(decoder, 0.75),
        horizon=5,
        chunk_len=3,
        max_action_dim=4,
        max_state_dim=5,
        action_dim=3,
        proprio_dim=2,
        value_hidden=(8, 4),
        noise_hidden=(8, 4),
        lm_head_rows=320,
        vlm="tiny",
    )
    policy = SmolVLAPolicy.fresh(config, INSTRUCTIONS, flow=flow or FlowSettings(num_inference_steps=4), seed=seed)
    randomise(policy, seed)
    return policy


def observation(rows: int, seed: int = 0) -> Observation:
    """Random images and states; instructions of different lengths."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (rows, 2, FRAME, FRAME, 3), dtype=np.uint8)
    proprio = draw.normal(size=(rows, 2)).astype(np.float32)
    return Observation.from_numpy(images, proprio, [INSTRUCTIONS[row % 3] for row in range(rows)])


def tensors(obs: Observation) -> tuple[Tensor, Tensor, list[str]]:
    """An observation as `evaluate` and `sft_loss` take it."""
    return obs.images, obs.proprio, obs.instruction

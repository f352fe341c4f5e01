"""Our exported pi0 in transformers' own implementation: does it go where ours goes?"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.flow import PathNoise, sample_path
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.types import Observation


@torch.no_grad()
def transformers_difference(policy: Pi0Policy, folder: Path, obs: Observation) -> float:
    """Largest difference between the denoised actions of `policy` and of transformers' PI0, from the same noise.

    Args:
        policy: whose state is a token, as pi0's; transformers has no pi0.5.
        folder: its export in LeRobot's layout, which transformers reads with its own map of keys.
        obs: any observations.

    Returns:
        Absolute, of normalised actions over the whole horizon.
    """
    config, rows = policy.config, len(obs.instruction)
    start = torch.randn(rows, config.horizon, config.max_action_dim, generator=torch.Generator().manual_seed(0))
    noise = PathNoise(start, torch.zeros_like(start)[:, None], torch.zeros(rows, dtype=torch.int64))
    prefix = policy.read_prefix(obs.images, obs.proprio, obs.instruction, 1)
    ours = sample_path(lambda x, i: policy.denoise_step(prefix, x, i), noise, policy.flow, explore=False).action
    state = policy.statistics.state.normalise(obs.proprio)
    ids, lengths = policy.prompt.batch(obs.instruction, None)
    words, count = torch.from_numpy(ids), torch.tensor(lengths)
    patches = torch.full((rows, config.visual_tokens), config.decoder.vocab_size)
    valid = torch.arange(words.shape[1]) < count[:, None]
    theirs: Tensor = _load(config, folder).sample_actions(
        state=F.pad(state, (0, config.max_state_dim - config.proprio_dim)),
        input_ids=torch.cat([patches, words], dim=1),
        pixel_values=obs.images.permute(0, 1, 4, 2, 3).float() / 127.5 - 1.0,
        noise=start,
        attention_mask=torch.cat([torch.ones_like(patches, dtype=torch.bool), valid], dim=1),
        pixel_attention_mask=torch.ones(rows, config.num_cameras, dtype=torch.bool),
        num_steps=policy.flow.num_inference_steps,
    )
    return float((theirs - ours).abs().max())


def _load(config: Pi0ModelConfig, folder: Path) -> Any:
    """transformers' PI0 with the weights in `folder`, float32."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="embodied-rl-verify-") as place:
        for path in folder.glob("*.safetensors*"):  # without LeRobot's config.json, which transformers can't read
            (Path(place) / path.name).symlink_to(path.absolute())
        loaded = transformers.PI0ForConditionalGeneration.from_pretrained(
            place, config=_config(config), dtype=torch.float32
        )
    return loaded.eval()


def _config(config: Pi0ModelConfig) -> Any:
    import transformers

    vlm, expert, vision = config.decoder, config.expert, config.vision
    heads = {
        "num_attention_heads": vlm.heads,
        "num_key_value_heads": vlm.kv_heads,
        "head_dim": vlm.head_dim,
        "num_hidden_layers": vlm.layers,
    }
    text = {
        "model_type": "gemma",
        "vocab_size": vlm.vocab_size,
        "hidden_size": vlm.dim,
        "intermediate_size": vlm.mlp_dim,
    }
    tower = {
        "model_type": "siglip_vision_model",
        "hidden_size": vision.dim,
        "intermediate_size": vision.mlp_dim,
        "num_hidden_layers": vision.depth,
        "num_attention_heads": vision.heads,
        "patch_size": vision.patch_size,
        "image_size": vision.image_size,
        "vision_use_head": False,
    }
    dit = {
        "model_type": "gemma",
        "hidden_size": expert.dim,
        "intermediate_size": expert.mlp_dim,
        "vocab_size": config.expert_head_rows,
    }
    return transformers.PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": text | heads,
            "vision_config": tower,
            "projection_dim": vlm.dim,
            "image_token_id": vlm.vocab_size,
        },
        dit_config=dit | heads,
        chunk_size=config.horizon,
        max_state_dim=config.max_state_dim,
        max_action_dim=config.max_action_dim,
    )

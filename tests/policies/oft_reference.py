"""OpenVLA-OFT as its paper describes it, one row at a time and without this project's decoder or masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor

from embodied_rl.policies.openvla_oft.model import OFTModel
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.types import Observation


def llama(model: OFTModel) -> Any:
    """transformers' Llama with the weights of `model`."""
    config = model.config.decoder
    reference = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.mlp_dim,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=False,
            rope_theta=config.rope_theta,  # pyright: ignore[reportCallIssue] (taken among the keyword arguments)
        )
    ).eval()
    reference.set_attn_implementation("eager")
    reference.load_state_dict(model.language_model.state_dict())
    return reference


def both_ways(tokens: int) -> Tensor:
    """Additive mask [1, 1, tokens, tokens] that hides nothing."""
    return torch.zeros(1, 1, tokens, tokens)


def film_tower(tower: Any, image: Tensor, language: Tensor) -> Tensor:
    """Patch features [patches, dim] of one normalised image [3, H, W], block by block."""
    config = tower.config
    prefix = [tower.cls_token] if config.class_token else []
    prefix += [tower.reg_token] if config.register_tokens else []
    x = torch.cat([*prefix, tower.patch_embed(image[None]) + tower.pos_embed], dim=1)
    for block in tower.blocks[: config.depth - config.unused_blocks]:
        x = x + block.ls1(block.attn(block.norm1(x)))
        gamma, beta = block.scale(language), block.shift(language)
        x = torch.stack([token * (1 + gamma) + beta for token in x[0]])[None]
        x = x + block.ls2(block.mlp(block.norm2(x)))
    return x[0, -config.num_patches :]


def patches(policy: OpenVLAOFTPolicy, image: np.ndarray, language: Tensor) -> Tensor:
    """Projected patches [patches, D] of one camera's uint8 image."""
    backbone = policy.model.vision_backbone
    features = []
    for tower in (backbone.featurizer, backbone.fused_featurizer):
        config = tower.config
        pixels = (torch.from_numpy(image).float() / 255 - torch.tensor(config.mean)) / torch.tensor(config.std)
        planes = pixels.permute(2, 0, 1)
        features.append(film_tower(tower, planes, language) if policy.config.film else tower(planes[None])[0])
    return policy.model.projector(torch.cat(features, dim=-1))


def sequence(policy: OpenVLAOFTPolicy, obs: Observation, row: int) -> tuple[Tensor, int]:
    """Embeddings [T, D] of one row and the place of its last prompt token."""
    config, model = policy.config, policy.model
    table = model.language_model.model.embed_tokens.weight
    ids = policy.tokenizer.ids(obs.instruction[row])
    stop = [] if config.stop_token is None else [config.stop_token]
    language = torch.stack([table[i] for i in [policy.tokenizer.bos_id, *ids, *stop]]).mean(dim=0)
    parts = [table[policy.tokenizer.bos_id][None]]
    parts += [patches(policy, image, language) for image in obs.images[row].numpy()]
    if config.use_proprio:
        low, high = policy.statistics.proprio_bounds  # type: ignore[misc]
        unit = np.clip(2 * (obs.proprio[row].numpy() - low) / (high - low + 1e-8) - 1, -1, 1).astype(np.float32)
        parts.append(model.proprio_projector(torch.from_numpy(unit))[None])
    parts.append(torch.stack([table[i] for i in ids]))
    last = sum(len(part) for part in parts) - 1
    parts.append(torch.zeros(config.num_tokens, config.decoder.dim))
    parts += [table[i][None] for i in stop]
    return torch.cat(parts), last


def hidden_states(policy: OpenVLAOFTPolicy, obs: Observation) -> Tensor:
    """[N, L, D]: what each action is read from; the first at the last prompt token, the next one place further."""
    reference = llama(policy.model)
    rows = []
    for row in range(len(obs.instruction)):
        x, last = sequence(policy, obs, row)
        out = reference.model(inputs_embeds=x[None], attention_mask=both_ways(len(x))).last_hidden_state[0]
        rows.append(torch.stack([out[last + i] for i in range(policy.config.num_tokens)]))
    return torch.stack(rows)


def l1_head(policy: OpenVLAOFTPolicy, hidden: Tensor) -> Tensor:
    """Normalised actions [N, L]: per control step an MLP with two residual blocks over its slots, side by side."""
    size = policy.config.action_dim
    mlp: Any = policy.model.action_head.model
    out = []
    for row in hidden:
        for step in range(policy.chunk_len):
            x = torch.cat(list(row[step * size : (step + 1) * size]))
            x = torch.relu(mlp.fc1(mlp.layer_norm1(x)))
            for block in mlp.mlp_resnet_blocks:
                norm, linear, _ = block.ffn
                x = x + torch.relu(linear(norm(x)))
            out.append(mlp.fc2(mlp.layer_norm2(x)))
    return torch.stack(out).view(len(hidden), -1)

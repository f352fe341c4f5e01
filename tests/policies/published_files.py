"""Tiny checkpoints in OpenVLA's published layout, made from transformers' own models and written by hand.

Vision towers come from transformers' DINOv2 (with registers) and SigLIP and get timm's names, the decoder from its
Llama. So a loaded policy can be held against independent implementations of every part.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from embodied_rl.policies.openvla.config import OpenVLAModelConfig, openvla_7b
from embodied_rl.policies.preprocessing.text import build_word_tokenizer

SIZE, PATCH, DIM, VOCAB = 28, 14, 48, 384
INSTRUCTIONS = ["turn on the stove", "pick up the black bowl and place it on the plate", "open it"]
STATISTICS: dict[str, Any] = {
    key: {
        "action": {
            "mask": [True] * 6 + [False],
            "q01": [-0.5 - shift] * 6 + [0.0],
            "q99": [0.7 + shift] * 6 + [1.0],
            "mean": [0.1] * 7,
            "std": [0.2] * 7,
            "min": [-1.0] * 7,
            "max": [1.0] * 7,
        },
        "proprio": {
            "q01": [-1.0 - shift] * 8,
            "q99": [1.5] * 8,
            "mean": [0.0] * 8,
            "std": [0.0] * 8,
            "min": [-2.0] * 8,
            "max": [2.0] * 8,
        },
        "num_transitions": 52970,
        "num_trajectories": 432,
    }
    for key, shift in (("libero_spatial_no_noops", 0.0), ("libero_goal_no_noops", 0.2))
}


def tiny_7b() -> OpenVLAModelConfig:
    """The published architecture, every width small. Both towers have 16 heads, as published."""
    base = openvla_7b()
    dino = replace(base.featurizer, image_size=SIZE, dim=32, depth=3, mlp_dim=64)
    siglip = replace(base.fused_featurizer, image_size=SIZE, dim=32, depth=3, mlp_dim=80)
    return replace(base, featurizer=dino, fused_featurizer=siglip, append_token=7)


@dataclass
class Originals:
    """transformers' models behind a published checkpoint."""

    dino: Any
    siglip: Any
    llama: Any
    projector: nn.Sequential


def originals(seed: int = 0) -> Originals:
    """Random models whose every parameter matters."""
    torch.manual_seed(seed)
    dino = transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=16,
            mlp_ratio=2,
            image_size=SIZE,
            patch_size=PATCH,
            num_register_tokens=4,
            hidden_act="gelu",
            layer_norm_eps=1e-6,
        )
    ).eval()
    siglip = transformers.SiglipVisionModel(
        transformers.SiglipVisionConfig(
            hidden_size=32,
            intermediate_size=80,
            num_hidden_layers=3,
            num_attention_heads=16,
            image_size=SIZE,
            patch_size=PATCH,
            hidden_act="gelu",
            layer_norm_eps=1e-6,
        )
    ).eval()
    llama = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCAB + 64,
            hidden_size=DIM,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=12,
            intermediate_size=72,
            rms_norm_eps=1e-6,
            tie_word_embeddings=False,
            rope_theta=10000.0,  # pyright: ignore[reportCallIssue] (taken among the keyword arguments)
        )
    ).eval()
    projector = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, DIM), nn.GELU(), nn.Linear(DIM, DIM))
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for module in (dino, siglip, llama, projector):
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        dino.embeddings.position_embeddings[:, 0] = 0.0  # timm's registers model has no position for the class token
    return Originals(dino, siglip, llama, projector)


def published_state(models: Originals) -> dict[str, Tensor]:
    """All parameters under their published names."""
    state = {f"vision_backbone.featurizer.{name}": tensor for name, tensor in _dino(models.dino).items()}
    state |= {f"vision_backbone.fused_featurizer.{name}": tensor for name, tensor in _siglip(models.siglip).items()}
    for index, layer in enumerate((0, 2, 4), start=1):
        for kind in ("weight", "bias"):
            state[f"projector.fc{index}.{kind}"] = getattr(models.projector[layer], kind)
    state |= {f"language_model.{name}": tensor for name, tensor in models.llama.state_dict().items()}
    return {name: tensor.detach().clone().contiguous() for name, tensor in state.items()}


def write_folder(folder: Path, state: dict[str, Tensor], *, shards: int = 2) -> None:
    """A checkpoint folder as transformers' `save_pretrained` and OpenVLA's fine-tuning leave it."""
    folder.mkdir(parents=True)
    names = sorted(state)
    files = [f"model-{part + 1:05d}-of-{shards:05d}.safetensors" for part in range(shards)]
    places = {name: files[number * shards // len(names)] for number, name in enumerate(names)}
    for file in files:
        save_file(
            {name: state[name] for name, place in places.items() if place == file},
            folder / file,
            metadata={"format": "pt"},
        )
    size = sum(tensor.nbytes for tensor in state.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": places})
    write_json(
        folder / "config.json",
        {
            "model_type": "openvla",
            "architectures": ["OpenVLAForActionPrediction"],
            "vision_backbone_id": "dinosiglip-vit-so-224px",
            "arch_specifier": "no-align+fused-gelu-mlp",
            "image_resize_strategy": "resize-naive",
            "n_action_bins": 256,
            "pad_to_multiple_of": 64,
            "norm_stats": {"bridge_orig": STATISTICS["libero_goal_no_noops"]},
            "text_config": {
                "model_type": "llama",
                "vocab_size": VOCAB + 64,
                "hidden_size": DIM,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 72,
                "pad_token_id": 0,
            },
            "torch_dtype": "bfloat16",
            "transformers_version": "4.40.1",
        },
    )
    write_json(folder / "dataset_statistics.json", STATISTICS)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer"})
    build_word_tokenizer(INSTRUCTIONS, VOCAB - 256).save(str(folder / "tokenizer.json"))


def oft_head() -> dict[str, Tensor]:
    """openvla-oft's L1 head, named as its code names it."""
    wide, generator = 7 * DIM, torch.Generator().manual_seed(5)
    shapes: dict[str, tuple[int, ...]] = {
        "model.layer_norm1.weight": (wide,),
        "model.layer_norm1.bias": (wide,),
        "model.fc1.weight": (DIM, wide),
        "model.fc1.bias": (DIM,),
        "model.layer_norm2.weight": (DIM,),
        "model.layer_norm2.bias": (DIM,),
        "model.fc2.weight": (7, DIM),
        "model.fc2.bias": (7,),
    }
    for block in (0, 1):
        stem = f"model.mlp_resnet_blocks.{block}.ffn"
        shapes |= {
            f"{stem}.0.weight": (DIM,),
            f"{stem}.0.bias": (DIM,),
            f"{stem}.1.weight": (DIM, DIM),
            f"{stem}.1.bias": (DIM,),
        }
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def oft_proprio() -> dict[str, Tensor]:
    """openvla-oft's projection of the state."""
    generator = torch.Generator().manual_seed(6)
    shapes = {"fc1.weight": (DIM, 8), "fc1.bias": (DIM,), "fc2.weight": (DIM, DIM), "fc2.bias": (DIM,)}
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def write_oft_folder(folder: Path, parts: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """A checkpoint of OpenVLA-OFT: OpenVLA's with files beside it; returns the tensors of the former."""
    state = published_state(originals())
    write_folder(folder, state)
    for part, tensors in parts.items():
        torch.save(tensors, folder / f"{part}--150000_checkpoint.pt")
    return state


def write_json(path: Path, data: Any) -> None:
    """Compact, as others may write it."""
    path.write_text(json.dumps(data))


def _dino(model: Any) -> dict[str, Tensor]:
    """transformers' Dinov2WithRegisters under timm's names, LayerScale under OpenVLA's."""
    state = model.state_dict()
    out = {
        "cls_token": state["embeddings.cls_token"],
        "reg_token": state["embeddings.register_tokens"],
        "pos_embed": state["embeddings.position_embeddings"][:, 1:],
        "norm.weight": state["layernorm.weight"],
        "norm.bias": state["layernorm.bias"],
    }
    for kind in ("weight", "bias"):
        out[f"patch_embed.proj.{kind}"] = state[f"embeddings.patch_embeddings.projection.{kind}"]
    for i in range(3):
        theirs, ours = f"encoder.layer.{i}.", f"blocks.{i}."
        for kind in ("weight", "bias"):
            parts = [state[f"{theirs}attention.{part}_proj.{kind}"] for part in "qkv"]
            out[f"{ours}attn.qkv.{kind}"] = torch.cat(parts)
            out[f"{ours}attn.proj.{kind}"] = state[f"{theirs}attention.o_proj.{kind}"]
            for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                out[f"{ours}{name}.{kind}"] = state[f"{theirs}{name}.{kind}"]
        for index in (1, 2):
            out[f"{ours}ls{index}.scale_factor"] = state[f"{theirs}layer_scale{index}.lambda1"]
    return out


def _siglip(model: Any) -> dict[str, Tensor]:
    """transformers' SigLIP under timm's names."""
    state = {name.removeprefix("vision_model."): tensor for name, tensor in model.state_dict().items()}
    out = {
        "pos_embed": state["embeddings.position_embedding.weight"][None],
        "attn_pool.latent": state["head.probe"],
        "attn_pool.q.weight": state["head.attention.in_proj_weight"][:32],
        "attn_pool.q.bias": state["head.attention.in_proj_bias"][:32],
        "attn_pool.kv.weight": state["head.attention.in_proj_weight"][32:],
        "attn_pool.kv.bias": state["head.attention.in_proj_bias"][32:],
    }
    for kind in ("weight", "bias"):
        out[f"patch_embed.proj.{kind}"] = state[f"embeddings.patch_embedding.{kind}"]
        out[f"norm.{kind}"] = state[f"post_layernorm.{kind}"]
        out[f"attn_pool.proj.{kind}"] = state[f"head.attention.out_proj.{kind}"]
        out[f"attn_pool.norm.{kind}"] = state[f"head.layernorm.{kind}"]
        for name in ("fc1", "fc2"):
            out[f"attn_pool.mlp.{name}.{kind}"] = state[f"head.mlp.{name}.{kind}"]
    for i in range(3):
        theirs, ours = f"encoder.layers.{i}.", f"blocks.{i}."
        for kind in ("weight", "bias"):
            parts = [state[f"{theirs}self_attn.{part}_proj.{kind}"] for part in "qkv"]
            out[f"{ours}attn.qkv.{kind}"] = torch.cat(parts)
            out[f"{ours}attn.proj.{kind}"] = state[f"{theirs}self_attn.out_proj.{kind}"]
            for index in (1, 2):
                out[f"{ours}norm{index}.{kind}"] = state[f"{theirs}layer_norm{index}.{kind}"]
                out[f"{ours}mlp.fc{index}.{kind}"] = state[f"{theirs}mlp.fc{index}.{kind}"]
    return out

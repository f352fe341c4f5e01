"""Our parameters of pi0, pi0.5 and their kin under the names of the published files.

`PI0` are openpi's; LeRobot prefixes them 'model.'.

Ours alone, and in no published file: value head, noise head, learned positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import check_keys

OURS_ALONE = ("value_head.", "noise_head.", "camera_embed", "step_embed")
LEROBOT_PREFIX = "model."
EXPERT_HEAD = "paligemma_with_expert.gemma_expert.lm_head.weight"
_GEMMA = "paligemma_with_expert.paligemma."
_TOWER = _GEMMA + "model.vision_tower.vision_model."
# The tied input embedding: the files hold it as the output head, some also or only as the input.
_EMBEDDING, _EMBEDDING_TWIN = _GEMMA + "lm_head.weight", _GEMMA + "model.language_model.embed_tokens.weight"


@dataclass(frozen=True)
class Names:
    """Where parameters are. tower: prefix of the SigLIP tower; prefixes: of the others by ours, the first that fits."""

    tower: str
    prefixes: Mapping[str, str]


PI0 = Names(
    _TOWER,
    {
        "language.embed_tokens.weight": _EMBEDDING,
        "projector.": _GEMMA + "model.multi_modal_projector.linear.",
        "language.": _GEMMA + "model.language_model.",
        "expert.": "paligemma_with_expert.gemma_expert.model.",
        "expert_head.": "paligemma_with_expert.gemma_expert.lm_head.",
    },
)
_TOWER_PARTS = {"vision.patch_embed.proj.": "embeddings.patch_embedding.", "vision.norm.": "post_layernorm."}
_BLOCK_PARTS = {
    "norm1": ("layer_norm1",),
    "norm2": ("layer_norm2",),
    "mlp.fc1": ("mlp.fc1",),
    "mlp.fc2": ("mlp.fc2",),
    "attn.proj": ("self_attn.out_proj",),
    "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
}


def published_names(name: str, names: Names = PI0) -> tuple[str, ...]:
    """The published names of one of our parameters; several where ours is their concatenation along dimension 0."""
    if name == "vision.pos_embed":
        return (names.tower + "embeddings.position_embedding.weight",)
    if name.startswith("vision.blocks."):
        index, part = name.removeprefix("vision.blocks.").split(".", 1)
        part, kind = part.rsplit(".", 1)
        return tuple(f"{names.tower}encoder.layers.{index}.{theirs}.{kind}" for theirs in _BLOCK_PARTS[part])
    towers = {ours: names.tower + theirs for ours, theirs in _TOWER_PARTS.items()}
    for ours, theirs in (towers | dict(names.prefixes)).items():
        if name.startswith(ours):
            return (theirs + name.removeprefix(ours),)
    return (name,)


def to_published(state: Mapping[str, Tensor], layout: Names = PI0) -> dict[str, Tensor]:
    """Our state dict under published names, without what is ours alone."""
    out: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name.startswith(OURS_ALONE):
            continue
        names = published_names(name, layout)
        whole = tensor[0] if name == "vision.pos_embed" else tensor
        out |= dict(zip(names, whole.chunk(len(names)), strict=True))
    return out


def from_published(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: Path, layout: Names = PI0
) -> dict[str, Tensor]:
    """Published parameters (of pi0: `canonical` ones) under our names; `expected` is our state dict, of any device.

    What is ours alone is not in the result. UserError names every missing, unexpected and mis-shaped parameter.
    """
    check_keys(to_published(expected, layout), found, source)
    out: dict[str, Tensor] = {}
    for name in expected:
        if name.startswith(OURS_ALONE):
            continue
        parts = [found[theirs] for theirs in published_names(name, layout)]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        out[name] = whole[None] if name == "vision.pos_embed" else whole
    return out


def canonical(found: dict[str, Tensor], source: Path) -> dict[str, Tensor]:
    """openpi's names for the parameters of an openpi or LeRobot file, the tied embedding once."""
    if all(name.startswith(LEROBOT_PREFIX) for name in found):
        found = {name.removeprefix(LEROBOT_PREFIX): tensor for name, tensor in found.items()}
    found = dict(found)
    twin = found.pop(_EMBEDDING_TWIN, None)
    if twin is None:
        return found
    if not torch.equal(found.setdefault(_EMBEDDING, twin), twin):
        raise UserError(f"{source}: {_EMBEDDING} and {_EMBEDDING_TWIN} differ, but pi0 ties them: restore the file")
    return found

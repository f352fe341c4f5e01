"""openvla-oft's files beside the Hugging Face weights: NAME--STEP_checkpoint.pt with a state dict each.

action_head: the L1 head. proprio_projector. vision_backbone: both towers with FiLM, their linear layers wrapped by
peft, as openvla-oft's own loader expects them. Keys may carry the `module.` of DistributedDataParallel.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import File
from embodied_rl.policies.checkpoints.integrity import record, require_finite
from embodied_rl.policies.openvla_oft.config import OFTModelConfig

PARTS = ("action_head", "proprio_projector", "vision_backbone")
_LORA_RANK = 32
_BLOCK = re.compile(r"(featurizer\.blocks\.\d+\.)block\.")
_WRAPPED = re.compile(r"\.(attn\.(qkv|proj)|mlp\.fc[12]|attn_pool\.(q|kv|proj))\.(weight|bias)$")
_FILM = re.compile(r"blocks\.\d+\.(scale|shift)\.")


def wanted_parts(config: OFTModelConfig) -> set[str]:
    """The parts that a checkpoint of `config` has."""
    flags = (config.head == "l1", config.use_proprio, config.film)
    return {part for part, flag in zip(PARTS, flags, strict=True) if flag}


def find_parts(folder: Path) -> dict[str, Path]:
    """The .pt file of each part that is there; UserError when there are several of one."""
    found: dict[str, Path] = {}
    for part in PARTS:
        files = sorted(folder.glob(f"{part}--*checkpoint.pt"))
        if len(files) > 1:
            raise UserError(f"{folder} has {len(files)} files {part}--*_checkpoint.pt: keep the one that is meant")
        if files:
            found[part] = files[0]
    return found


def check_parts(config: OFTModelConfig, found: dict[str, Path], folder: Path) -> None:
    """UserError unless the files are exactly those that `config` needs."""
    wanted = wanted_parts(config)
    missing, unused = sorted(wanted - found.keys()), sorted(found.keys() - wanted)
    if missing:
        raise UserError(
            f"{folder} has no {missing[0]}--*_checkpoint.pt, which this variant needs: choose the variant (or its "
            "proprio and film) that the checkpoint was trained as"
        )
    if unused:
        raise UserError(
            f"{folder} has {found[unused[0]].name}, which this variant does not use: choose the variant (or its "
            "proprio and film) that the checkpoint was trained as"
        )


def read_parts(found: dict[str, Path]) -> dict[str, Tensor]:
    """The tensors of all parts under our parameter names, LoRA merged."""
    state: dict[str, Tensor] = {}
    for part, path in found.items():
        tensors = {name.removeprefix("module."): tensor for name, tensor in _read(path).items()}
        if part == "vision_backbone":
            tensors = {_BLOCK.sub(r"\1", name): tensor for name, tensor in _merge(tensors).items()}
        else:
            tensors = {f"{part}.{name}": tensor for name, tensor in tensors.items()}
        state |= tensors
    return state


def split_parts(config: OFTModelConfig, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, File]]:
    """(tensors for the safetensors files, the .pt files) of our parameters `state`."""
    main: dict[str, Tensor] = {}
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in wanted_parts(config)}
    for name, tensor in state.items():
        part, _, rest = name.partition(".")
        if part == "vision_backbone" and config.film:
            parts[part] |= _wrapped(name, tensor)
        if part in ("action_head", "proprio_projector"):
            parts[part][rest] = tensor
        elif not _FILM.search(name):
            main[name] = tensor
    return main, {f"{part}--latest_checkpoint.pt": partial(_save, tensors) for part, tensors in parts.items()}


def _read(path: Path) -> dict[str, Tensor]:
    record(path)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, UnpicklingError, EOFError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path} cannot be read ({reason}): restore it from the checkpoint's source") from error
    if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise UserError(f"{path} holds no state dict: restore it from the checkpoint's source")
    require_finite(state, path)
    return state


def _merge(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fold peft's adapters in: W + alpha / r * B A, with openvla-oft's alpha = min(r, 16)."""
    merged: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".lora_" in name:
            continue
        plain = name.replace(".base_layer.", ".")
        merged[plain] = tensor
        stem = name.removesuffix("base_layer.weight")
        down, up = tensors.get(f"{stem}lora_A.default.weight"), tensors.get(f"{stem}lora_B.default.weight")
        if stem != name and down is not None and up is not None:
            rank = down.shape[0]
            delta = up.float() @ down.float() * (min(rank, 16) / rank)
            if delta.any():
                merged[plain] = (tensor.float() + delta).to(tensor.dtype)
    return merged


def _wrapped(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """One tensor of a tower as FiLM's and peft's wrappers name it, with adapters that change nothing."""
    inner = re.sub(r"(featurizer\.blocks\.\d+\.)(?!scale|shift)", r"\1block.", name)
    match = _WRAPPED.search(name)
    if match is None:
        return {inner: tensor}
    kind = match.group(4)
    stem = inner.removesuffix(kind)
    named = {f"{stem}base_layer.{kind}": tensor}
    if kind == "weight":
        out, into = tensor.shape
        noise = torch.randn(_LORA_RANK, into, generator=torch.Generator().manual_seed(0)) / _LORA_RANK
        named[f"{stem}lora_A.default.weight"] = noise.to(tensor.dtype)
        named[f"{stem}lora_B.default.weight"] = tensor.new_zeros(out, _LORA_RANK)
    return named


def _save(tensors: dict[str, Tensor], path: Path) -> None:
    with open(path, "wb") as file:  # torch reports a full disk as OSError only through a handle
        torch.save(tensors, file)

"""Weights in one or several safetensors files, as Hugging Face lays them out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import File, read_json, read_weights, to_json
from embodied_rl.policies.checkpoints.integrity import file_sha256

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000


def _places(folder: Path) -> dict[str, str]:
    """The file of each tensor, by an index; UserError if that is unusable."""
    places = read_json(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{folder / INDEX} has no 'weight_map': restore the file from the checkpoint's source")
    for file in places.values():
        if not isinstance(file, str) or Path(file).is_absolute() or ".." in Path(file).parts:
            raise UserError(f"{folder / INDEX} names {file}, outside its folder: restore the file from its source")
    return places


def weight_files(folder: Path) -> list[Path]:
    """The files that `read_sharded` reads: those of the index where there is one, else model.safetensors."""
    if not (folder / INDEX).is_file():
        return [folder / SINGLE]
    return [folder / file for file in sorted(set(_places(folder).values()))]


def read_sharded(folder: Path) -> dict[str, Tensor]:
    """All tensors of model.safetensors, or of the files that its index names; UserError when the two disagree."""
    if not (folder / INDEX).is_file():
        return read_weights(folder / SINGLE)
    places = _places(folder)
    state: dict[str, Tensor] = {}
    problems: list[str] = []
    for file in sorted(set(places.values())):
        shard = read_weights(folder / file)
        listed = {name for name, place in places.items() if place == file}
        problems += [f"{file} lacks {name}" for name in sorted(listed - shard.keys())]
        problems += [f"{file} has {name}, unknown to the index" for name in sorted(shard.keys() - listed)]
        state |= shard
    if problems:
        raise UserError(f"{folder / INDEX} does not fit its files, download them again: {'; '.join(problems)}")
    return state


def single_file(tensors: dict[str, Tensor]) -> File:
    """A safetensors file of `tensors` for `write_folder`."""
    return partial(save_file, tensors, metadata={"format": "pt"})


def sharded_files(state: dict[str, Tensor], max_bytes: int = MAX_SHARD_BYTES) -> dict[str, File]:
    """The files of `state` for `write_folder`: one, or with an index several of up to `max_bytes`, filled in order."""
    parts: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in state.items():
        if parts[-1] and used + tensor.nbytes > max_bytes:
            parts.append({})
            used = 0
        parts[-1][name] = tensor
        used += tensor.nbytes
    if len(parts) == 1:
        return {SINGLE: single_file(parts[0])}
    names = [f"model-{number:05d}-of-{len(parts):05d}.safetensors" for number in range(1, len(parts) + 1)]
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in state.values())},
        "weight_map": {name: file for file, part in zip(names, parts, strict=True) for name in part},
    }
    return {INDEX: to_json(index)} | {file: single_file(part) for file, part in zip(names, parts, strict=True)}


def weights_digest(files: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of weight files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        digest.update(path.name.encode() + bytes.fromhex(file_sha256(path)))
    return digest.hexdigest()

"""Checkpoints without the weights that LoRA adapts: adapters, what trains whole, and where the base is.

lora_adapter/ holds peft's files, trained.safetensors what trains beside the adapters; config.json says under `lora`
where the base is and the SHA-256 of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from safetensors.torch import save_file
from torch import nn

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import File, check_keys, read_weights
from embodied_rl.policies.checkpoints.hub import resolve, source_name
from embodied_rl.policies.checkpoints.shards import weights_digest
from embodied_rl.policies.nn import lora

_FOLDER, _TRAINED = "lora_adapter", "trained.safetensors"
WeightFiles = Callable[[Path], list[Path]]
"""The files of a folder that hold weights."""


@dataclass(frozen=True, slots=True)
class Base:
    """The weights that a policy's LoRA adapters of `rank` adapt: where they are, and the SHA-256 of their files."""

    source: str
    sha256: str
    rank: int


class Adaptable(Protocol):
    """A policy whose `model` may carry adapters; base: what they adapt, None without adapters."""

    model: Any
    base: Base | None


def adapt(policy: Adaptable, folder: Path, files: WeightFiles, rank: int, *, whole: Collection[str] = ()) -> None:
    """Give `policy`, which was loaded from `folder`, LoRA adapters of `rank`; whole: as for `lora.add_lora`."""
    lora.add_lora(policy.model, rank, whole=whole)
    policy.base = Base(source_name(folder), weights_digest(files(folder)), rank)


def prepare_adapters(policy: Adaptable, folder: Path, files: WeightFiles, rank: int) -> None:
    """Give `policy`, which was loaded from `folder`, adapters of `rank`, 0 for none, unless it has just these.

    Raises:
        UserError: It has adapters of another rank.
    """
    if policy.base is None and rank:
        adapt(policy, folder, files, rank)
    elif policy.base is not None and policy.base.rank != rank:
        raise UserError(
            f"{folder} has LoRA adapters of rank {policy.base.rank}, and --policy.lora-rank is {rank}: "
            f"give {policy.base.rank}, or merge the adapters first with `embodied-rl export`"
        )


def merge_adapters(policy: Adaptable) -> None:
    """Fold LoRA adapters, if there are any, into the weights, in place."""
    if policy.base is not None:
        lora.merge_lora(policy.model)
        policy.base = None


def describe_base(base: Base) -> dict[str, Any]:
    """What config.json says under `lora`."""
    return {"rank": base.rank, "base": base.source, "base_sha256": base.sha256}


def adapter_files(network: nn.Module, base: Base) -> dict[str, File]:
    """The files in place of the whole weights."""
    adapters = lora.lora_files(network, base.rank)
    files: dict[str, File] = {f"{_FOLDER}/{name}": content for name, content in adapters.items()}
    return files | {_TRAINED: partial(save_file, lora.trained_whole(network))}


def base_folder(settings: Mapping[str, Any], folder: Path, files: WeightFiles) -> Path:
    """Where the weights are that the adapters in `folder` adapt.

    Raises:
        UserError: They are not the ones that the adapters were trained on, or cannot be found.
    """
    try:
        base = resolve(settings["base"])
    except UserError as error:
        raise UserError(f"{folder} adapts weights that cannot be found: {error}") from error
    if not base.is_dir():
        raise UserError(f"{folder} adapts weights that cannot be found: there is no folder {base}; put it back.")
    if weights_digest(files(base)) != settings["base_sha256"]:
        raise UserError(f"{folder} adapts other weights than those in {base}, which have changed: restore them")
    return base


def load_adapters(policy: Adaptable, folder: Path, settings: Mapping[str, Any]) -> None:
    """Put the adapters in `folder` onto `policy`, which has the base's weights; what the folder holds trains."""
    trained = read_weights(folder / _TRAINED)
    own = policy.model.state_dict()
    check_keys({name: own[name] for name in trained if name in own}, trained, folder / _TRAINED)
    lora.load_lora(policy.model, folder / _FOLDER, settings["rank"], whole=trained.keys())
    policy.model.load_state_dict(trained, strict=False)
    policy.base = Base(settings["base"], settings["base_sha256"], settings["rank"])

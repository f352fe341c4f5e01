"""Read and write an ACT policy as a folder, all or nothing; read one from any folder, ours or LeRobot's.

Ours: config.json (architecture, model config, unnorm_key), model.safetensors, dataset_statistics.json (keyed by
unnorm_key), provenance.json. LeRobot's files are those of `embodied_rl.policies.act.hf_format`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.act import ACTConfig
from embodied_rl.policies.act.config import ACTModelConfig
from embodied_rl.policies.act.hf_format import load_published, save_published
from embodied_rl.policies.act.policy import ACTPolicy, ensembling, executing
from embodied_rl.policies.checkpoints.folder import (
    check_keys,
    read_config,
    read_json,
    read_weights,
    to_json,
    write_folder,
)
from embodied_rl.policies.checkpoints.shards import SINGLE, single_file
from embodied_rl.policies.family import ExportRequest, pick
from embodied_rl.policies.pi0.normalise import robots_from_json, robots_to_json
from embodied_rl.utils.dataclass_io import read_dataclass

_FORMAT = 1


@dataclass(frozen=True)
class ACTOptions:
    """What the user says about a checkpoint.

    statistics: file or folder of them, None for those among or beside the weights; refused for our own folders.
    chunk_len: control steps executed a decision, without temporal ensembling; temporal_ensemble_coeff: with it; None
    for what the folder says. initial_std: standard deviation that sampled actions begin with, None for what the folder
    has learned. unnorm_key: the data set of ours whose statistics apply, None for the first.
    """

    statistics: str | None = None
    chunk_len: int | None = None
    temporal_ensemble_coeff: float | None = None
    initial_std: float | None = None
    unnorm_key: str | None = None


def load_options(given: Any) -> ACTOptions:
    """ACT's part of `given` (training options or `PublishedOptions`)."""
    options: ACTOptions = pick(ACTOptions, given)
    if options.chunk_len is not None and options.temporal_ensemble_coeff is not None:
        raise UserError(
            "temporal ensembling executes one step a decision: leave --chunk-len or --temporal-ensemble-coeff out."
        )
    return options


def save_policy(policy: ACTPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder`, all or nothing; UserError when it cannot be written (see `write_folder`)."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.state_dict().items()}
    config = {
        "architecture": policy.architecture,
        "format": _FORMAT,
        "model": asdict(policy.config),
        "unnorm_key": policy.unnorm_key,
    }
    files = {
        "config.json": to_json(config),
        SINGLE: single_file(state),
        "dataset_statistics.json": to_json(robots_to_json(policy.robots)),
        "provenance.json": to_json(provenance),
    }
    write_folder(Path(folder), files, checksums=True)


def is_published(folder: Path) -> bool:
    """Whether `folder` is an ACT of LeRobot."""
    return (folder / "config.json").is_file() and read_json(folder / "config.json").get("type") == "act"


def load(folder: Path, options: ACTOptions) -> ACTPolicy:
    """The policy in `folder`, on the CPU; UserError names whatever is missing, superfluous or does not fit."""
    if is_published(folder):
        if options.unnorm_key is not None:
            raise UserError(f"{folder} has the statistics of one data set: leave the option unnorm-key out")
        policy = load_published(folder, None if options.statistics is None else Path(options.statistics))
    else:
        policy = _load_ours(folder, options)
    if options.chunk_len is not None:
        policy.configure(executing(policy.config, options.chunk_len))
    if options.temporal_ensemble_coeff is not None:
        policy.configure(ensembling(policy.config, options.temporal_ensemble_coeff))
    if options.initial_std is not None:
        with torch.no_grad():
            policy.model.log_std.fill_(math.log(options.initial_std))
    return policy


def weights(folder: Path, options: ACTOptions) -> ACTPolicy:
    """The policy in `folder` for `start.refit`, whoever its robot is."""
    return load(folder, options)


def _load_ours(folder: Path, options: ACTOptions) -> ACTPolicy:
    if options.statistics is not None:
        raise UserError(f"{folder} is no published ACT and says everything itself: leave the option statistics out")
    config = read_config(folder, ACTPolicy.architecture, _FORMAT, ("model", "unnorm_key"))
    model = read_dataclass(ACTModelConfig, config["model"], where="model", source="config.json")
    robots = robots_from_json(read_json(folder / "dataset_statistics.json"), clip_actions=model.clip_actions)
    key = options.unnorm_key or config["unnorm_key"]
    if key not in robots:
        raise UserError(f"dataset_statistics.json has no entry '{key}'.{suggest(str(key), robots)}")
    state = read_weights(folder / SINGLE)
    policy = ACTPolicy.fresh(model, robots, seed=0, unnorm_key=key)
    check_keys(policy.model.state_dict(), state, folder / SINGLE)
    policy.model.load_state_dict(state, assign=True)
    return policy


def prepare(policy: ACTPolicy, config: ACTConfig, folder: Path) -> None:
    """Refuse a policy whose acting has no log-prob; all of its weights train, as they are.

    Raises:
        UserError: It averages overlapping chunks.
    """
    if policy.config.temporal_ensemble_coeff is not None:
        raise UserError(
            f"{folder} averages overlapping chunks (temporal ensembling), which has no log-prob: say by "
            "--policy.chunk-len how many steps of a chunk a decision executes."
        )


def export(policy: ACTPolicy, request: ExportRequest) -> None:
    """Write LeRobot's layout, or ours."""
    if request.dtype is not None and request.dtype != torch.float32:
        raise UserError("--dtype: LeRobot computes an ACT in float32: leave it out.")
    if request.layout == "openpi":
        raise UserError("--layout openpi is for pi0, and this policy is act")
    if request.layout != "native":
        save_published(policy, request.out, request.cameras, request.provenance)
        return
    if request.cameras:
        raise UserError("--cameras are LeRobot's names, and the native layout has none: leave them out")
    save_policy(policy, request.out, request.provenance)

"""A state policy as a folder: config.json, model.safetensors with its running statistics, provenance.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import check_keys, read_config, read_weights, to_json, write_folder
from embodied_rl.policies.checkpoints.shards import SINGLE, single_file
from embodied_rl.policies.family import ExportRequest, pick
from embodied_rl.policies.mlp import MLPConfig
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.utils.dataclass_io import read_dataclass

_FORMAT = 1


@dataclass(frozen=True)
class MLPOptions:
    """What the user says about a checkpoint: None, or what it must have."""

    hidden: tuple[int, ...] | None = None
    chunk_len: int | None = None
    squash: bool | None = None
    initial_std: float | None = None


def load_options(given: Any) -> MLPOptions:
    """The state policy's part of `given`."""
    return pick(MLPOptions, given)


def save_policy(policy: MLPPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder`, all or nothing; UserError when it cannot be written (see `write_folder`)."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.state_dict().items()}
    config = {"architecture": policy.architecture, "format": _FORMAT, "model": asdict(policy.config)}
    files = {"config.json": to_json(config), SINGLE: single_file(state), "provenance.json": to_json(provenance)}
    write_folder(Path(folder), files, checksums=True)


def load(folder: Path, options: MLPOptions) -> MLPPolicy:
    """The policy in `folder`, on the CPU; UserError names what is missing, damaged or other than `options` say."""
    folder = Path(folder)
    config = read_config(folder, MLPPolicy.architecture, _FORMAT, ("model",))
    model = read_dataclass(MLPModelConfig, config["model"], where="model", source="config.json")
    for name in ("hidden", "chunk_len", "squash"):
        wanted, found = getattr(options, name), getattr(model, name)
        if wanted not in (None, found):
            flag = f"--policy.{name.replace('_', '-')}"
            raise UserError(f"{folder} has {name} {found}, not {wanted}: leave {flag} out, or --policy.checkpoint.")
    if options.initial_std is not None:
        raise UserError(f"--policy.initial-std is for a new policy, and {folder} has learned its own: leave it out.")
    state = read_weights(folder / SINGLE)
    policy = MLPPolicy(model)
    check_keys(policy.model.state_dict(), state, folder / SINGLE)
    policy.model.load_state_dict(state)
    return policy


def fresh(config: MLPConfig, observation_dim: int, action_dim: int, seed: int) -> MLPPolicy:
    """A new policy for a task of these sizes, as `config` says."""
    sizes = {"hidden": config.hidden, "chunk_len": config.chunk_len, "squash": config.squash}
    given = {name: value for name, value in sizes.items() if value is not None}
    model = MLPModelConfig(observation_dim=observation_dim, action_dim=action_dim, **given)
    std = {} if config.initial_std is None else {"initial_std": config.initial_std}
    return MLPPolicy.fresh(model, seed=seed, **std)


def prepare(policy: MLPPolicy, config: MLPConfig, folder: Path) -> None:
    """All of its weights train, as they are."""


def export(policy: MLPPolicy, request: ExportRequest) -> None:
    """Write our own layout; UserError for another one, since no other project has a format for this policy."""
    if request.layout != "native":
        raise UserError("a state policy (mlp) has no published layout: its checkpoint's folder is the export.")
    save_policy(policy, request.out, request.provenance)

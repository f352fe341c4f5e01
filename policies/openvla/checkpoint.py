"""Read and write an OpenVLA policy as a folder, all or nothing.

config.json (architecture, model config, temperature, unnorm_key), model.safetensors, tokenizer.json,
dataset_statistics.json (keyed by unnorm_key), provenance.json (what the writer records: command, seed, suite, ...).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.openvla.config import config_from_json, config_to_json
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.text import PromptTokenizer, load_tokenizer
from embodied_rl.policies.tokens import statistics_from_json, statistics_to_json

_ARCHITECTURE = "openvla"
_FORMAT = 1


def save_policy(policy: OpenVLAPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder`, replacing what was there only once the new files are safely on disk.

    A full disk leaves the previous checkpoint untouched. A kill leaves it whole: in `folder`, or, between the two last
    renames, beside it under a name that the error of `load_policy` gives. UserError when the folder cannot be written.
    """
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.state_dict().items()}
    config = {
        "architecture": _ARCHITECTURE, "format": _FORMAT, "model": config_to_json(policy.config),
        "temperature": policy.temperature, "unnorm_key": policy.unnorm_key,
    }
    files = {
        "config.json": _json(config),
        "model.safetensors": save(state),
        "tokenizer.json": policy.tokenizer.tokenizer.to_str(pretty=True).encode(),
        "dataset_statistics.json": _json({policy.unnorm_key: statistics_to_json(policy.statistics)}),
        "provenance.json": _json(provenance),
    }
    folder = Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _replace_folder(folder, files)
    except OSError as error:
        raise UserError(
            f"cannot write checkpoint {folder} ({error.strerror}): free space or choose another folder; "
            "the previous checkpoint, if any, is intact"
        ) from error


def load_policy(folder: Path) -> OpenVLAPolicy:
    """Read a policy written by `save_policy`, on the CPU in the stored dtype. UserError names whatever does not fit."""
    folder = Path(folder)
    if not folder.is_dir():
        for retired in folder.parent.glob(f".{folder.name}.*.old"):
            raise UserError(f"a save to {folder} was interrupted, the one before is whole: mv {retired} {folder}")
        raise UserError(f"no checkpoint folder at {folder}: give the one that holds config.json and model.safetensors")
    config = _read_json(folder / "config.json")
    if config.get("architecture") != _ARCHITECTURE:
        raise UserError(
            f"{folder} holds architecture {config.get('architecture')!r}, not '{_ARCHITECTURE}': "
            "choose the matching --policy"
        )
    if config.get("format") != _FORMAT:
        raise UserError(
            f"{folder} has format {config.get('format')!r}, this version reads {_FORMAT}: update embodied-rl"
        )
    for key in ("model", "temperature", "unnorm_key"):
        if key not in config:
            raise UserError(f"{folder / 'config.json'} lacks '{key}': restore the file from the checkpoint's source")
    model_config = config_from_json(config["model"])
    tokenizer = PromptTokenizer(load_tokenizer(folder / "tokenizer.json"), model_config.append_token)
    statistics = statistics_from_json(_read_json(folder / "dataset_statistics.json"), config["unnorm_key"])
    state = _read_weights(folder / "model.safetensors")
    with torch.device("meta"):
        policy = OpenVLAPolicy(
            model_config, tokenizer, statistics, unnorm_key=config["unnorm_key"], temperature=config["temperature"]
        )
    check_keys(policy.model.state_dict(), state, folder / "model.safetensors")
    policy.model.load_state_dict(state, assign=True)
    return policy


def read_provenance(folder: Path) -> dict[str, Any]:
    """What the writer of the checkpoint recorded about it."""
    return _read_json(Path(folder) / "provenance.json")


def check_keys(expected: dict[str, Tensor], found: dict[str, Tensor], source: Path) -> None:
    """UserError naming every missing, unexpected and mis-shaped parameter of `found`."""
    problems = [f"missing {name}" for name in expected if name not in found]
    problems += [f"unexpected {name}" for name in found if name not in expected]
    problems += [
        f"{name} is {list(found[name].shape)}, expected {list(expected[name].shape)}"
        for name in expected
        if name in found and found[name].shape != expected[name].shape
    ]
    if problems:
        raise UserError(
            f"{source} does not fit the model in config.json, use the pair that belongs together: {'; '.join(problems)}"
        )


def _json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True) + "\n").encode()


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it from the checkpoint's source")
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): restore it from the checkpoint's source") from error
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a JSON object: restore it from the checkpoint's source")
    return data


def _read_weights(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise UserError(f"{path} is missing: restore it from the checkpoint's source")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is corrupt ({error}): restore it from a copy or train again") from error


def _replace_folder(folder: Path, files: dict[str, bytes]) -> None:
    """Write `files` beside `folder`, flush them to disk, then swap the folders by renaming."""
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, data in files.items():
            with open(staging / name, "wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
        staging.chmod(0o755)
        retired = None
        if folder.exists():
            retired = folder.parent / f"{staging.name}.old"
            folder.rename(retired)
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync_folder(folder.parent)
    if retired is not None:
        shutil.rmtree(retired)


def _sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Read and write an OpenVLA policy as a folder, all or nothing.

config.json (architecture, model config, temperature, unnorm_key), model.safetensors, tokenizer.json,
dataset_statistics.json (keyed by unnorm_key), provenance.json (what the writer records: command, seed, suite, ...).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from embodied_rl.policies.folder import check_keys, read_config, read_json, read_weights, to_json, write_folder
from embodied_rl.policies.openvla.config import config_from_json, config_to_json
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.text import PromptTokenizer, load_tokenizer
from embodied_rl.policies.tokens import statistics_from_json, statistics_to_json

_ARCHITECTURE = "openvla"
_FORMAT = 1


def save_policy(policy: OpenVLAPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder`, all or nothing; UserError when it cannot be written (see `write_folder`)."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.state_dict().items()}
    config = {
        "architecture": _ARCHITECTURE, "format": _FORMAT, "model": config_to_json(policy.config),
        "temperature": policy.temperature, "unnorm_key": policy.unnorm_key,
    }
    write_folder(Path(folder), {
        "config.json": to_json(config),
        "model.safetensors": save(state),
        "tokenizer.json": policy.tokenizer.tokenizer.to_str(pretty=True).encode(),
        "dataset_statistics.json": to_json({policy.unnorm_key: statistics_to_json(policy.statistics)}),
        "provenance.json": to_json(provenance),
    })


def load_policy(folder: Path) -> OpenVLAPolicy:
    """Read a policy written by `save_policy`, on the CPU in the stored dtype. UserError names whatever does not fit."""
    folder = Path(folder)
    config = read_config(folder, _ARCHITECTURE, _FORMAT, ("model", "temperature", "unnorm_key"))
    model_config = config_from_json(config["model"])
    tokenizer = PromptTokenizer(load_tokenizer(folder / "tokenizer.json"), model_config.append_token)
    statistics = statistics_from_json(read_json(folder / "dataset_statistics.json"), config["unnorm_key"])
    state = read_weights(folder / "model.safetensors")
    with torch.device("meta"):
        policy = OpenVLAPolicy(
            model_config, tokenizer, statistics, unnorm_key=config["unnorm_key"], temperature=config["temperature"]
        )
    check_keys(policy.model.state_dict(), state, folder / "model.safetensors")
    policy.model.load_state_dict(state, assign=True)
    return policy

"""Read and write a pi0 policy, or one of its kin, as a folder, all or nothing.

config.json (architecture, model config, flow settings, unnorm_key), model.safetensors, tokenizer.json,
dataset_statistics.json (keyed by unnorm_key), provenance.json (what the writer records: command, seed, suite, ...).
The files of openpi and LeRobot are those of `embodied_rl.policies.pi0.hf_format`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

from embodied_rl.policies.checkpoints.folder import (
    check_keys,
    read_config,
    read_json,
    read_weights,
    to_json,
    write_folder,
)
from embodied_rl.policies.checkpoints.shards import SINGLE, single_file
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.normalise import Pi0Statistics, statistics_from_json, statistics_to_json
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.pi0.prompt import Pi0Prompt
from embodied_rl.policies.preprocessing.text import load_tokenizer
from embodied_rl.utils.dataclass_io import read_dataclass

_FORMAT = 1
AnyPi0 = TypeVar("AnyPi0", bound=Pi0Policy)


def save_policy(policy: Pi0Policy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder`, all or nothing; UserError when it cannot be written (see `write_folder`)."""
    state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.state_dict().items()}
    config = {
        "architecture": policy.architecture,
        "format": _FORMAT,
        "model": asdict(policy.config),
        "flow": asdict(policy.flow),
        "unnorm_key": policy.unnorm_key,
    }
    write_folder(
        Path(folder),
        {
            "config.json": to_json(config),
            SINGLE: single_file(state),
            "tokenizer.json": policy.prompt.tokenizer.to_str(pretty=True).encode(),
            "dataset_statistics.json": to_json({policy.unnorm_key: statistics_to_json(policy.statistics)}),
            "provenance.json": to_json(provenance),
        },
    )


def load_policy(folder: Path, kind: type[AnyPi0] = Pi0Policy) -> AnyPi0:
    """Read a policy of `kind` written by `save_policy`, on the CPU in the stored dtype.

    UserError names whatever does not fit.
    """
    folder = Path(folder)
    config = read_config(folder, kind.architecture, _FORMAT, ("model", "flow", "unnorm_key"))
    model_config = read_dataclass(kind.config_class, config["model"], where="model", source="config.json")
    flow = read_dataclass(FlowSettings, config["flow"], where="flow", source="config.json")
    key = config["unnorm_key"]
    prompt = kind.prompt_class(load_tokenizer(folder / "tokenizer.json"), model_config.decoder.vocab_size)
    statistics = statistics_from_json(read_json(folder / "dataset_statistics.json"), key)
    state = read_weights(folder / SINGLE)
    policy = empty_policy(model_config, prompt, statistics, flow, unnorm_key=key, kind=kind)
    check_keys(policy.model.state_dict(), state, folder / SINGLE)
    policy.model.load_state_dict(state, assign=True)
    return policy


def empty_policy(
    config: Pi0ModelConfig,
    prompt: Pi0Prompt,
    statistics: Pi0Statistics,
    flow: FlowSettings,
    *,
    unnorm_key: str,
    kind: type[AnyPi0] = Pi0Policy,
) -> AnyPi0:
    """A policy whose weights take no memory, to be assigned."""
    with torch.device("meta"):
        policy = kind(config, prompt, statistics, flow, unnorm_key=unnorm_key)
    policy.loss_calls = torch.zeros((), dtype=torch.int64)
    return policy

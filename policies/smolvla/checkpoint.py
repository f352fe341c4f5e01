"""A SmolVLA policy from any folder: our own, which says everything itself, or one of LeRobot."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.adapters import merge_adapters
from embodied_rl.policies.checkpoints.folder import read_json
from embodied_rl.policies.family import ExportRequest, pick
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.checkpoint import (
    checked_chunk_len,
    choose,
    export_native,
    load_policy,
    prepare,
    refuse_given,
    save_policy,
    unknown_statistics,
)
from embodied_rl.policies.pi0.hf_format import check_normalisation, read_statistics
from embodied_rl.policies.smolvla.config import preset
from embodied_rl.policies.smolvla.hf_format import (
    LEROBOT_EPS,
    described,
    load_published,
    published_state,
    save_published,
)
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy

__all__ = ["export", "load", "load_options", "prepare", "save_policy", "weights"]

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class SmolVLAOptions:
    """What the user says about a checkpoint.

    tokenizer: SmolVLM2's tokenizer.json, None for the one beside LeRobot's weights. statistics: file or folder of them,
    None for those beside the weights. Both are refused for our own folders. chunk_len: control steps executed a
    decision, None for what the folder says.
    """

    tokenizer: str | None = None
    statistics: str | None = None
    chunk_len: int | None = None
    unnorm_key: str | None = None


def is_published(folder: Path) -> bool:
    """Whether `folder` is a SmolVLA of LeRobot."""
    return (folder / "config.json").is_file() and read_json(folder / "config.json").get("type") == "smolvla"


def load(folder: Path, options: SmolVLAOptions) -> SmolVLAPolicy:
    """The policy in `folder`, on the CPU; UserError names whatever is missing, superfluous or does not fit."""
    if is_published(folder):
        return _published(folder, options)
    refuse_given(options, folder, "SmolVLA")
    policy = load_policy(folder, SmolVLAPolicy, published_state)
    choose(policy, options)
    return policy


def weights(folder: Path, options: SmolVLAOptions) -> SmolVLAPolicy:
    """The policy in `folder` for `start.refit`: of a published one nothing about its robot is asked."""
    if not is_published(folder):
        return load(folder, options)
    config, mode, steps = described(read_json(folder / "config.json"), preset("smolvla_base"))
    statistics = unknown_statistics(mode, config.proprio_dim, config.action_dim)
    flow = FlowSettings(num_inference_steps=steps)
    return load_published(folder, config, statistics, _tokenizer(folder, options), flow=flow)


def _tokenizer(folder: Path, options: SmolVLAOptions) -> Path:
    if options.tokenizer is None and not (folder / TOKENIZER).is_file():
        raise UserError(f"{folder} is LeRobot's and has no {TOKENIZER}: name SmolVLM2's with the option tokenizer")
    return Path(options.tokenizer or folder / TOKENIZER)


def _published(folder: Path, options: SmolVLAOptions) -> SmolVLAPolicy:
    if options.unnorm_key is not None:
        raise UserError(f"{folder} has the statistics of one data set: leave the option unnorm-key out")
    tokenizer = _tokenizer(folder, options)
    published = read_json(folder / "config.json")
    config, mode, steps = described(published, preset("smolvla_base"))
    check_normalisation(published, mode, folder)
    if options.chunk_len is not None:
        config = replace(config, chunk_len=checked_chunk_len(options.chunk_len, config.horizon))
    statistics = read_statistics(Path(options.statistics or folder), mode, config, eps=LEROBOT_EPS)
    return load_published(folder, config, statistics, tokenizer, flow=FlowSettings(num_inference_steps=steps))


def load_options(given: Any) -> SmolVLAOptions:
    """SmolVLA's part of `given` (training options or `PublishedOptions`)."""
    return pick(SmolVLAOptions, given)


def export(policy: SmolVLAPolicy, request: ExportRequest) -> None:
    """Write LeRobot's layout, or ours."""
    if request.layout == "native":
        export_native(policy, request)
    elif request.layout == "openpi":
        raise UserError("--layout openpi is for pi0, and this policy is smolvla")
    else:
        merge_adapters(policy)
        save_published(policy, request.out, request.cameras, request.provenance, request.dtype)

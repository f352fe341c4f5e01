"""Read and write a pi0 policy, or one of its family, as a folder, all or nothing; read one from any folder.

config.json (architecture, model config, flow settings, unnorm_key), model.safetensors, tokenizer.json,
dataset_statistics.json (keyed by unnorm_key), provenance.json (what the writer records: command, seed, suite, ...).
With LoRA, in place of model.safetensors what `embodied_rl.policies.checkpoints.adapters` says.
The files of openpi and LeRobot are those of `embodied_rl.policies.pi0.hf_format`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.checkpoints.adapters import (
    adapter_files,
    base_folder,
    describe_base,
    load_adapters,
    merge_adapters,
    prepare_adapters,
)
from embodied_rl.policies.checkpoints.folder import (
    File,
    check_keys,
    read_config,
    read_json,
    read_weights,
    to_json,
    write_folder,
)
from embodied_rl.policies.checkpoints.resize import resized
from embodied_rl.policies.checkpoints.shards import SINGLE, single_file, weight_files
from embodied_rl.policies.family import ExportRequest, pick
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0 import FlowPolicyConfig, hf_format
from embodied_rl.policies.pi0.config import preset
from embodied_rl.policies.pi0.normalise import Normaliser, NormMode, Pi0Statistics, robots_from_json, robots_to_json
from embodied_rl.policies.pi0.policy import AnyPi0, Pi0Policy
from embodied_rl.policies.pi0.start import empty_policy
from embodied_rl.policies.prefix_cache import GIB, PrefixCache
from embodied_rl.policies.preprocessing.text import load_tokenizer
from embodied_rl.policies.steering import steering_files
from embodied_rl.utils.dataclass_io import read_dataclass

_FORMAT = 1
PublishedState = Callable[[Path, Mapping[str, Tensor]], dict[str, Tensor]]
"""The parameters in a published folder under our names; the second argument is our state dict, of any device."""


def save_policy(policy: Pi0Policy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder`, all or nothing; UserError when it cannot be written (see `write_folder`)."""
    config = {
        "architecture": policy.architecture,
        "format": _FORMAT,
        "model": asdict(policy.config),
        "flow": asdict(policy.flow),
        "unnorm_key": policy.unnorm_key,
    }
    steered, more = steering_files(policy.steering)
    config |= steered
    weights: dict[str, File]
    if policy.base is None:
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.state_dict().items()}
        weights = {SINGLE: single_file(state)}
    else:
        config["lora"] = describe_base(policy.base)
        weights = adapter_files(policy.model, policy.base)
    write_folder(
        Path(folder),
        {
            "config.json": to_json(config),
            **weights,
            **more,
            "tokenizer.json": policy.prompt.tokenizer.to_str(pretty=True).encode(),
            "dataset_statistics.json": to_json(robots_to_json(policy.robots)),
            "provenance.json": to_json(provenance),
        },
        checksums=True,
    )


def load_policy(
    folder: Path, kind: type[AnyPi0] = Pi0Policy, published_state: PublishedState = hf_format.published_state
) -> AnyPi0:
    """Read a policy of `kind` written by `save_policy`, on the CPU in the stored dtype.

    published_state: reads a published folder whose weights adapters may adapt. UserError names whatever does not fit.
    """
    folder = Path(folder)
    config = read_config(folder, kind.architecture, _FORMAT, ("model", "flow", "unnorm_key"))
    model = config["model"]
    if isinstance(model, dict) and model.get("critic_input") == "suffix":  # as earlier versions wrote it
        model = model | {"critic_input": "action_tokens"}
    model_config = read_dataclass(kind.config_class, model, where="model", source="config.json")
    flow = read_dataclass(FlowSettings, config["flow"], where="flow", source="config.json")
    key = config["unnorm_key"]
    prompt = kind.prompt_class(load_tokenizer(folder / "tokenizer.json"), model_config.decoder.vocab_size)
    robots = robots_from_json(read_json(folder / "dataset_statistics.json"), clip_actions=model_config.clip_actions)
    if key not in robots:
        raise UserError(f"dataset_statistics.json has no entry '{key}'.{suggest(key, robots)}")
    policy = empty_policy(model_config, prompt, robots[key].statistics, flow, unnorm_key=key, kind=kind)
    policy.robots = robots
    settings = config.get("lora")
    home = base_folder(settings, folder, weight_files) if settings else folder
    if settings and "architecture" not in read_json(home / "config.json"):
        hf_format.assign_published(policy, published_state(home, policy.model.state_dict()), torch.float32)
    else:
        state, expected = read_weights(home / SINGLE), policy.model.state_dict()
        if settings:
            state = resized(state, expected, home / SINGLE)  # the base may have been another robot's
        check_keys(expected, state, home / SINGLE)
        policy.model.load_state_dict(state, assign=True)
    if settings:
        load_adapters(policy, folder, settings)
    return policy


@dataclass(frozen=True)
class Pi0Options:
    """What the user says about a checkpoint.

    preset, tokenizer (PaliGemma's tokenizer.json), normalisation: needed for a published one, and refused for ours,
    as are horizon (control steps that it predicts, None for the preset's) and extra_delta_transform (whether it
    predicts actions minus the state, None for what the folder says). statistics: file or folder of them, None for the
    only ones in the published folder. chunk_len: control steps executed a decision, None for what the folder or the
    preset says. unnorm_key: the data set of ours whose robot it acts for, None for the first.
    """

    preset: str | None = None
    tokenizer: str | None = None
    statistics: str | None = None
    normalisation: NormMode | None = None
    horizon: int | None = None
    extra_delta_transform: bool | None = None
    chunk_len: int | None = None
    unnorm_key: str | None = None


def is_published(folder: Path) -> bool:
    """Whether `folder` is a pi0 of openpi or LeRobot."""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return "paligemma_variant" in config or config.get("type") in hf_format.LEROBOT_TYPES


def load(folder: Path, options: Pi0Options) -> Pi0Policy:
    """The policy in `folder`, on the CPU; UserError names whatever is missing, superfluous or does not fit."""
    if is_published(folder):
        return _load_published(folder, options)
    refuse_given(options, folder, "pi0")
    policy = load_policy(folder)
    choose(policy, options)
    return policy


def choose(policy: Pi0Policy, options: Any) -> None:
    """Let `policy`, which is ours, act for the data set and execute as many steps as the user says."""
    if options.unnorm_key is not None:
        policy.select(options.unnorm_key)
    if options.chunk_len is not None:
        execute(policy, options.chunk_len)


def weights(folder: Path, options: Pi0Options) -> Pi0Policy:
    """The policy in `folder` for `start.refit`: of a published one nothing about its robot is asked."""
    if not is_published(folder):
        refuse_given(options, folder, "pi0")
        return load_policy(folder)
    if options.preset is None or options.tokenizer is None:
        raise UserError(
            f"{folder} is a published pi0: name its --preset (pi0_base, pi05_base, pi05_libero) and, with --tokenizer, "
            "PaliGemma's tokenizer.json"
        )
    config = hf_format.network(read_json(folder / "config.json"), preset(options.preset))
    mode = options.normalisation or ("quantiles" if config.adaptive else "mean_std")
    statistics = unknown_statistics(mode, config.proprio_dim, config.action_dim)
    return hf_format.load_published(folder, config, statistics, Path(options.tokenizer))


def unknown_statistics(mode: NormMode, states: int, actions: int) -> Pi0Statistics:
    """Statistics in the place of those that nobody needs."""
    names = ("mean", "std") if mode == "mean_std" else ("q01", "q99")
    low = 0.0 if mode == "mean_std" else -1.0
    state, action = (
        Normaliser(mode, {names[0]: np.full(dim, low, np.float32), names[1]: np.ones(dim, np.float32)})
        for dim in (states, actions)
    )
    return Pi0Statistics(state, action)


def _load_published(folder: Path, options: Pi0Options) -> Pi0Policy:
    if options.unnorm_key is not None:
        raise UserError(f"{folder} has the statistics of one data set: leave the option unnorm-key out")
    preset_name, tokenizer, mode = options.preset, options.tokenizer, options.normalisation
    if preset_name is None or tokenizer is None or mode is None:
        missing = next(name for name in ("preset", "tokenizer", "normalisation") if getattr(options, name) is None)
        raise UserError(
            f"{folder} is a published pi0, which does not say its {missing}: name its preset (pi0_base, pi05_base, "
            "pi05_libero), PaliGemma's tokenizer.json and the normalisation (mean_std or quantiles)"
        )
    config = preset(preset_name)
    if options.horizon is not None:
        config = replace(config, horizon=options.horizon, chunk_len=min(config.chunk_len, options.horizon))
    published = read_json(folder / "config.json")
    config, steps = hf_format.agree(published, config, mode, folder)
    typed = options.extra_delta_transform
    config = replace(config, delta_dims=hf_format.delta_dims(published, config, typed, preset_name))
    if options.chunk_len is not None:
        config = replace(config, chunk_len=checked_chunk_len(options.chunk_len, config.horizon))
    statistics = hf_format.read_statistics(Path(options.statistics or folder), mode, config)
    flow = FlowSettings() if steps is None else FlowSettings(num_inference_steps=steps)
    return hf_format.load_published(folder, config, statistics, Path(tokenizer), flow=flow)


def refuse_given(options: Any, folder: Path, name: str) -> None:
    """UserError for options about a published checkpoint, which `folder` is not."""
    for option, value in vars(options).items():
        if value is not None and option not in ("chunk_len", "unnorm_key"):
            word = option.replace("_", "-")
            raise UserError(f"{folder} is no published {name} and says everything itself: leave the option {word} out")


def execute(policy: Pi0Policy, chunk_len: int) -> None:
    """Let `policy` execute so many control steps a decision; UserError if it does not predict as many."""
    policy.config = replace(policy.config, chunk_len=checked_chunk_len(chunk_len, policy.config.horizon))
    policy.chunk_len = chunk_len


def checked_chunk_len(chunk_len: int, horizon: int) -> int:
    """`chunk_len`, or UserError."""
    if not 1 <= chunk_len <= horizon:
        raise UserError(f"chunk_len must lie in 1..{horizon}, the steps that this policy predicts; got {chunk_len}.")
    return chunk_len


def load_options(given: Any) -> Pi0Options:
    """pi0's part of `given` (training options or `PublishedOptions`)."""
    return pick(Pi0Options, given)


def prepare(policy: Pi0Policy, config: FlowPolicyConfig, folder: Path) -> None:
    """Freeze what does not train, and let `policy` explore as `config` says."""
    if config.train_expert_only:
        policy.model.freeze_language_model()
    prepare_adapters(policy, folder, weight_files, config.lora_rank)
    policy.detach_critic_input = config.detach_critic_input
    policy.prefix_cache = PrefixCache(int(config.prefix_cache_gib * GIB)) if config.prefix_cache_gib else None
    policy.flow = replace(
        policy.flow,
        exploration=config.exploration,
        num_inference_steps=config.num_inference_steps,
        noise_level=config.noise_level,
    )


def export(policy: Pi0Policy, request: ExportRequest) -> None:
    """Write openpi's or LeRobot's layout, or ours; adapters are merged, in place."""
    merge_adapters(policy)
    if request.layout == "native":
        export_native(policy, request)
    else:
        layout = request.layout or "openpi"
        hf_format.save_published(policy, request.out, layout, request.cameras, request.provenance, request.dtype)


def export_native(policy: Pi0Policy, request: ExportRequest) -> None:
    """Write our own layout in the wanted number format."""
    if request.cameras:
        raise UserError("--cameras are LeRobot's names, and the native layout has none: leave them out")
    merge_adapters(policy)
    if request.dtype is not None:
        policy.model.to(request.dtype)
    save_policy(policy, request.out, request.provenance)

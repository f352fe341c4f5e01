"""Read and write OpenVLA and OpenVLA-OFT policies as folders, all or nothing.

config.json (architecture, model config, temperature, unnorm_key), model.safetensors, tokenizer.json,
dataset_statistics.json (keyed by unnorm_key), provenance.json (what the writer records: command, seed, suite, ...), and
public/ with the small files of the published checkpoint that the policy came from, if any.

A policy with LoRA is saved without the weights that it adapts: lora_adapter/ (peft's files), trained.safetensors (heads
that train whole), and in config.json where the base is and the SHA-256 of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.checkpoints.adapters import (
    adapt,
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
from embodied_rl.policies.checkpoints.shards import SINGLE
from embodied_rl.policies.family import ExportRequest, pick
from embodied_rl.policies.openvla import OpenVLAConfig
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, config_from_json
from embodied_rl.policies.openvla.hf_format import (
    AUTO_MAP,
    SECTION,
    Description,
    LoadOptions,
    is_public,
    public_config,
    public_files,
    public_state,
    public_weight_files,
    published_model,
    refuse_variant,
    small_files,
)
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy
from embodied_rl.policies.preprocessing.text import PromptTokenizer, load_tokenizer
from embodied_rl.policies.preprocessing.tokens import statistics_from_json
from embodied_rl.policies.steering import steering_files

STATISTICS = "dataset_statistics.json"
_FORMAT, _PUBLIC_FOLDER = 1, "public"
_CLASSES: dict[str, type[OpenVLAPolicy]] = {kind.architecture: kind for kind in (OpenVLAPolicy, OpenVLAOFTPolicy)}


def load_policy(folder: Path, options: LoadOptions | None = None) -> OpenVLAPolicy:
    """Read a policy that `save_policy` or `export_policy` wrote, or a published one, on the CPU in the stored format.

    UserError names every parameter, file or choice that does not fit.
    """
    folder = Path(folder)
    described = describe(folder, options or LoadOptions())
    files = partial(_weight_files, model=described.model)
    home = base_folder(described.lora, folder, files) if described.lora else folder
    policy = _empty(described)
    state = public_state(home, described.model) if is_public(home) else read_weights(home / SINGLE)
    expected = policy.model.state_dict()
    if described.lora:
        state = resized({name: tensor for name, tensor in state.items() if name in expected}, expected, home)
    check_keys(expected, state, home)
    policy.model.load_state_dict(state, assign=True)
    if described.lora:
        load_adapters(policy, folder, described.lora)
    return policy


def adapt_policy(policy: OpenVLAPolicy, folder: Path, rank: int) -> None:
    """Give `policy`, which was loaded from `folder`, LoRA adapters of `rank`."""
    adapt(policy, folder, partial(_weight_files, model=policy.config), rank, whole=policy.resized)


def weights(folder: Path, options: LoadOptions) -> OpenVLAPolicy:
    """The policy in `folder` for `start.refit`: nothing about its robot is asked."""
    if is_public(folder) and options.unnorm_key is None:
        config = read_json(folder / "config.json")
        known = {**(config.get("norm_stats") or {})}
        if (folder / STATISTICS).is_file():
            known |= read_json(folder / STATISTICS)
        options = replace(options, unnorm_key=next(iter(known), None))
    return load_policy(folder, options)


def _weight_files(folder: Path, model: OpenVLAModelConfig) -> list[Path]:
    return public_weight_files(folder, model) if is_public(folder) else [folder / SINGLE]


def save_policy(policy: OpenVLAPolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write `policy` to `folder`, all or nothing; UserError when it cannot be written (see `write_folder`)."""
    steered, more = steering_files(policy.steering)
    config = _settings(policy) | {"format": _FORMAT} | steered
    weights: dict[str, File]
    if policy.base is None:
        weights = {SINGLE: partial(save_file, _state(policy))}
    else:
        config["lora"] = describe_base(policy.base)
        weights = adapter_files(policy.model, policy.base)
    write_folder(
        Path(folder),
        {
            "config.json": to_json(config),
            **weights,
            **more,
            "tokenizer.json": _tokenizer_json(policy),
            STATISTICS: to_json(policy.norm_stats),
            "provenance.json": to_json(provenance),
            **{f"{_PUBLIC_FOLDER}/{name}": content for name, content in policy.public.items()},
        },
        checksums=True,
    )


def load_options(given: Any) -> LoadOptions:
    """OpenVLA's part of `given` (training options or `PublishedOptions`)."""
    return pick(LoadOptions, given, architecture=OpenVLAPolicy.architecture, variant=getattr(given, "variant", None))


load = load_policy


def prepare(policy: OpenVLAPolicy, config: OpenVLAConfig, folder: Path) -> None:
    """Give `policy`, loaded from `folder`, the adapters and the temperature of `config`."""
    prepare_adapters(policy, folder, partial(_weight_files, model=policy.config), config.lora_rank)
    policy.temperature = config.temperature


def export(policy: OpenVLAPolicy, request: ExportRequest) -> None:
    """Write the published layout, or ours with the adapters merged."""
    if request.layout not in (None, "native") or request.cameras:
        raise UserError(f"--layout and --cameras are for pi0 and smolvla, and this policy is {policy.architecture}")
    if request.layout is None:
        export_policy(policy, request.out, request.provenance, request.dtype)
        return
    merge_adapters(policy)
    if request.dtype is not None:
        policy.model.to(request.dtype)
    save_policy(policy, request.out, request.provenance)


def export_policy(policy: OpenVLAPolicy, folder: Path, provenance: dict[str, Any], dtype: torch.dtype | None) -> None:
    """Write `policy` to `folder` in the published layout, all or nothing.

    LoRA is merged, in place. dtype: of the floating-point weights, None as they are. UserError when the layout has no
    place for a part of this model, or the folder cannot be written.
    """
    if policy.config.learned_positions:
        raise UserError(
            "this policy has learned position vectors (as the small presets do), for which the published "
            "layout has no place: --layout native writes our own, which embodied-rl reads."
        )
    merge_adapters(policy)
    state = _state(policy)
    if dtype is not None:
        state = {name: tensor.to(dtype) for name, tensor in state.items()}
    stored = str(next(iter(state.values())).dtype).removeprefix("torch.")
    config = policy.public_config() or public_config(policy.config, stored)
    config |= {"auto_map": AUTO_MAP, "torch_dtype": stored, "norm_stats": policy.norm_stats, SECTION: _settings(policy)}
    files: dict[str, File] = {**policy.public, **public_files(policy.config, state)}
    files["config.json"] = to_json(config)
    files["tokenizer.json"] = _tokenizer_json(policy)
    files[STATISTICS] = to_json(policy.norm_stats)
    files["provenance.json"] = to_json(provenance)
    write_folder(Path(folder), files)


def describe(folder: Path, options: LoadOptions) -> Description:
    """Read everything but the weights; UserError names whatever is missing, unusable or was not chosen."""
    if options.architecture is not None and options.architecture not in _CLASSES:
        raise UserError(f"unknown policy '{options.architecture}'.{suggest(options.architecture, _CLASSES)}")
    found = _published(folder, options) if is_public(folder) else _own(folder, options)
    if options.center_crop is None:
        return found
    return replace(found, model=replace(found.model, center_crop=options.center_crop))


def _own(folder: Path, options: LoadOptions) -> Description:
    """A folder that this project's training wrote."""
    found = read_json(folder / "config.json").get("architecture") if (folder / "config.json").is_file() else None
    wanted = options.architecture or (found if found in _CLASSES else next(iter(_CLASSES)))
    config = read_config(folder, wanted, _FORMAT, ("model", "temperature", "unnorm_key"))
    refuse_variant(options, folder)
    public = small_files(folder / _PUBLIC_FOLDER)
    described = _described(folder, wanted, config, read_json(folder / STATISTICS), options, public)
    return replace(described, lora=config.get("lora"))


def _published(folder: Path, options: LoadOptions) -> Description:
    """A published checkpoint, or one of our exports, which say more."""
    config = read_json(folder / "config.json")
    norm_stats = dict(config.get("norm_stats") or {})
    if (folder / STATISTICS).is_file():
        norm_stats |= read_json(folder / STATISTICS)
    section, public = config.get(SECTION), small_files(folder)
    if section is not None:
        refuse_variant(options, folder)
        wanted = options.architecture or section["architecture"]
        if wanted != section["architecture"]:
            raise UserError(f"{folder} holds {section['architecture']}, not {wanted}: choose the matching --policy")
        return _described(folder, wanted, section, norm_stats, options, public)
    if options.architecture is None:
        raise UserError(
            f"{folder} is a published checkpoint that does not say how it decodes: name its --policy, "
            "openvla or openvla_oft"
        )
    if options.unnorm_key is None:
        raise UserError(
            f"{folder} has statistics of several data sets: choose one with the option unnorm-key. "
            f"Available: {', '.join(sorted(norm_stats))}."
        )
    norm = "bounds" if options.variant is not None and options.variant.use_proprio else None
    statistics = statistics_from_json(norm_stats, options.unnorm_key, norm)
    model = published_model(config, statistics, options, folder)
    return Description(
        architecture=options.architecture,
        model=model,
        tokenizer=PromptTokenizer(load_tokenizer(folder / "tokenizer.json"), model.append_token),
        statistics=statistics,
        unnorm_key=options.unnorm_key,
        norm_stats=norm_stats,
        temperature=1.0,
        public=public,
    )


def _described(
    folder: Path,
    architecture: str,
    settings: Mapping[str, Any],
    norm_stats: dict[str, Any],
    options: LoadOptions,
    public: dict[str, bytes],
) -> Description:
    """A checkpoint whose `settings` (see `_settings`) say everything."""
    model = config_from_json(settings["model"], _CLASSES[architecture].config_class)
    key, temperature = options.unnorm_key or settings["unnorm_key"], settings["temperature"]
    if not isinstance(temperature, (int, float)) or not 0 < temperature < math.inf:
        raise UserError(f"{folder / 'config.json'}: temperature is {temperature}, and must be positive and finite")
    return Description(
        architecture=architecture,
        model=model,
        tokenizer=PromptTokenizer(load_tokenizer(folder / "tokenizer.json"), model.append_token),
        statistics=statistics_from_json(norm_stats, key, model.proprio_norm if model.use_proprio else None),
        unnorm_key=key,
        norm_stats=norm_stats,
        temperature=temperature,
        public=public,
    )


def _settings(policy: OpenVLAPolicy) -> dict[str, Any]:
    """What config.json says about how a policy works."""
    return {
        "architecture": policy.architecture,
        "model": asdict(policy.config),
        "temperature": policy.temperature,
        "unnorm_key": policy.unnorm_key,
    }


def _empty(described: Description) -> OpenVLAPolicy:
    """The policy, its parameters without storage."""
    with torch.device("meta"):
        policy = _CLASSES[described.architecture](
            described.model,
            described.tokenizer,
            described.statistics,
            unnorm_key=described.unnorm_key,
            temperature=described.temperature,
            norm_stats=described.norm_stats,
        )
    policy.public = described.public
    return policy


def _state(policy: OpenVLAPolicy) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in policy.model.state_dict().items()}


def _tokenizer_json(policy: OpenVLAPolicy) -> bytes:
    return policy.public.get("tokenizer.json") or policy.tokenizer.tokenizer.to_str(pretty=True).encode()

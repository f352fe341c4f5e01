"""What a checkpoint folder says about its policy before any weight is read: ours, or one in the published layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError, suggest
from embodied_rl.policies.checkpoints.folder import read_config, read_json
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, config_from_json
from embodied_rl.policies.openvla.hf_format import MODEL_TYPE, SECTION, model_config
from embodied_rl.policies.openvla_oft import config as oft_config
from embodied_rl.policies.openvla_oft.parts import check_parts, find_parts
from embodied_rl.policies.preprocessing.text import PromptTokenizer, load_tokenizer
from embodied_rl.policies.preprocessing.tokens import Statistics, statistics_from_json

ARCHITECTURES = ("openvla", "openvla_oft")
FORMAT = 1
PUBLIC_FOLDER = "public"
STATISTICS = "dataset_statistics.json"
# Small files of a published checkpoint that we do not need but readers of our exports do.
PASSED_ON = (
    "config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "preprocessor_config.json",
    "processor_config.json",
    "generation_config.json",
)


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What the user says about a checkpoint.

    architecture: 'openvla' or 'openvla_oft', None for whatever the folder holds. unnorm_key: entry of the dataset
    statistics, None for the one that the folder names. variant: how a published OFT checkpoint decodes, which it does
    not say. center_crop: share of the image's area to keep, None for what the folder or the variant says.
    """

    architecture: str | None = None
    unnorm_key: str | None = None
    variant: oft_config.Variant | None = None
    center_crop: float | None = None


@dataclass(frozen=True, kw_only=True)
class Description:
    """A policy without its weights. public: the small files of the published checkpoint that it came from."""

    architecture: str
    model: OpenVLAModelConfig
    tokenizer: PromptTokenizer
    statistics: Statistics
    unnorm_key: str
    norm_stats: dict[str, Any]
    temperature: float
    lora: dict[str, Any] | None = None
    public: dict[str, bytes] = field(default_factory=dict)


def is_public(folder: Path) -> bool:
    """Whether `folder` has the published layout (config.json with `model_type` openvla)."""
    return (folder / "config.json").is_file() and read_json(folder / "config.json").get("model_type") == MODEL_TYPE


def describe(folder: Path, options: LoadOptions) -> Description:
    """Read everything but the weights; UserError names whatever is missing, unusable or was not chosen."""
    if options.architecture is not None and options.architecture not in ARCHITECTURES:
        raise UserError(f"unknown policy '{options.architecture}'.{suggest(options.architecture, ARCHITECTURES)}")
    found = _public(folder, options) if is_public(folder) else _own(folder, options)
    if options.center_crop is None:
        return found
    return replace(found, model=replace(found.model, center_crop=options.center_crop))


def _own(folder: Path, options: LoadOptions) -> Description:
    """A folder that this project's training wrote."""
    found = read_json(folder / "config.json").get("architecture") if (folder / "config.json").is_file() else None
    wanted = options.architecture or (found if found in ARCHITECTURES else ARCHITECTURES[0])
    config = read_config(folder, wanted, FORMAT, ("model", "temperature", "unnorm_key"))
    _refuse_variant(options, folder)
    key = options.unnorm_key or config["unnorm_key"]
    return _description(
        folder,
        wanted,
        config["model"],
        read_json(folder / STATISTICS),
        key,
        config["temperature"],
        lora=config.get("lora"),
        public=_small_files(folder / PUBLIC_FOLDER),
    )


def _public(folder: Path, options: LoadOptions) -> Description:
    """A published checkpoint, or one of our exports, which say more."""
    config = read_json(folder / "config.json")
    norm_stats = dict(config.get("norm_stats") or {})
    if (folder / STATISTICS).is_file():
        norm_stats |= read_json(folder / STATISTICS)
    section = config.get(SECTION)
    public = _small_files(folder)
    if section is not None:
        _refuse_variant(options, folder)
        wanted = options.architecture or section["architecture"]
        if wanted != section["architecture"]:
            raise UserError(f"{folder} holds {section['architecture']}, not {wanted}: choose the matching --policy")
        key = options.unnorm_key or section["unnorm_key"]
        return _description(folder, wanted, section["model"], norm_stats, key, section["temperature"], public=public)
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
    model = _published_model(model_config(config), options, folder)
    statistics = _statistics(model, norm_stats, options.unnorm_key)
    model = replace(model, action_dim=len(statistics.q01), proprio_dim=len(statistics.proprio_mean))
    return Description(
        architecture=options.architecture,
        model=model,
        tokenizer=_tokenizer(folder, model),
        statistics=statistics,
        unnorm_key=options.unnorm_key,
        norm_stats=norm_stats,
        temperature=1.0,
        public=public,
    )


def _published_model(base: OpenVLAModelConfig, options: LoadOptions, folder: Path) -> OpenVLAModelConfig:
    """The model of a checkpoint that others published, which files and the user's choice describe together."""
    if options.architecture == "openvla":
        _refuse_variant(options, folder)
        return base
    if options.variant is None:
        raise UserError(
            f"{folder} is a published OFT checkpoint that does not say how it was trained: choose its "
            f"variant, one of {', '.join(oft_config.VARIANTS)}"
        )
    parts = find_parts(folder)
    model = oft_config.with_variant(base, options.variant, proprio_dim=0)
    check_parts(model, parts, folder)
    return model


def _description(
    folder: Path,
    architecture: str,
    model_json: Any,
    norm_stats: dict[str, Any],
    key: str,
    temperature: float,
    *,
    public: dict[str, bytes],
    lora: dict[str, Any] | None = None,
) -> Description:
    read = oft_config.config_from_json if architecture == "openvla_oft" else config_from_json
    model = read(model_json)
    return Description(
        architecture=architecture,
        model=model,
        tokenizer=_tokenizer(folder, model),
        statistics=_statistics(model, norm_stats, key),
        unnorm_key=key,
        norm_stats=norm_stats,
        temperature=temperature,
        lora=lora,
        public=public,
    )


def _statistics(model: OpenVLAModelConfig, norm_stats: dict[str, Any], key: str) -> Statistics:
    return statistics_from_json(norm_stats, key, model.proprio_norm if model.use_proprio else None)


def _tokenizer(folder: Path, model: OpenVLAModelConfig) -> PromptTokenizer:
    return PromptTokenizer(load_tokenizer(folder / "tokenizer.json"), model.append_token)


def _small_files(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in PASSED_ON if (folder / name).is_file()}


def _refuse_variant(options: LoadOptions, folder: Path) -> None:
    if options.variant is not None:
        raise UserError(f"{folder} is no published OFT checkpoint and says how it decodes: leave the variant out")

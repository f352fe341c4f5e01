"""pi0 and pi0.5 in the files of openpi (its PyTorch export) and LeRobot: weights, statistics, both ways.

openpi   model.safetensors, config.json, assets/KEY/norm_stats.json
LeRobot  model.safetensors with every name prefixed 'model.', config.json; statistics in the normaliser's file
         policy_preprocessor_*_normalizer_processor.safetensors, or in stats.json as a data set has it
Neither holds PaliGemma's tokenizer: its tokenizer.json is a file of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import read_json, read_weights, require_agreement, to_json, write_folder
from embodied_rl.policies.checkpoints.shards import SINGLE, read_sharded, single_file
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.hf_keys import EXPERT_HEAD, LEROBOT_PREFIX, canonical, from_published, to_published
from embodied_rl.policies.pi0.model import make_heads
from embodied_rl.policies.pi0.normalise import OPENPI_EPS, STATISTICS, Normaliser, NormMode, Pi0Statistics
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.pi0.prompt import Pi0Prompt
from embodied_rl.policies.pi0.start import empty_policy
from embodied_rl.policies.preprocessing.text import load_tokenizer

Layout = Literal["openpi", "lerobot"]
LEROBOT_TYPES = ("pi0", "pi05")
LEROBOT_MODES: dict[str, NormMode] = {"MEAN_STD": "mean_std", "QUANTILES": "quantiles"}
LEROBOT_FIXED: dict[str, Any] = {
    "adapt_to_pi_aloha": False,
    "use_delta_joint_actions_aloha": False,
    "n_obs_steps": 1,
    "min_period": 0.004,
    "max_period": 4.0,
}
_RELATIVE = "use_relative_actions"
_STATE_KEYS, _ACTION_KEYS = ("state", "observation.state"), ("actions", "action")


def agree(
    published: Mapping[str, Any], config: Pi0ModelConfig, mode: NormMode, folder: Path
) -> tuple[Pi0ModelConfig, int | None]:
    """`config` with the executed steps of a published config.json, and its denoising steps (None: it has none).

    UserError names the first value that contradicts `config` or `mode`.
    """
    advice = "choose the preset, --horizon and --normalisation that the checkpoint was trained with"
    try:
        if published.get("type") not in LEROBOT_TYPES:
            require_agreement(published, _openpi_config(config) | {"pi05": config.adaptive}, advice)
            return config, None
        cameras = len(visual_features(published)) if published.get("input_features") is not None else None
        found: dict[str, Any] = {"cameras in input_features": cameras}
        for key, side in (("state", "input_features"), ("action", "output_features")):
            name = "observation.state" if key == "state" else key
            found[f"{key} shape"] = list(published.get(side, {}).get(name, {}).get("shape", ())) or None
        runs = {
            "cameras in input_features": config.num_cameras,
            "state shape": [config.proprio_dim],
            "action shape": [config.action_dim],
        }
        require_agreement(found, runs, "this version reads checkpoints that were fine-tuned for such a robot only")
        require_agreement(published, _lerobot_sizes(config) | LEROBOT_FIXED, advice)
        check_normalisation(published, mode, folder)
        executed, steps = published.get("n_action_steps", config.chunk_len), published.get("num_inference_steps")
        if not isinstance(executed, int) or not isinstance(steps, int | None):
            raise ValueError(f"n_action_steps {executed!r} and num_inference_steps {steps!r} must be whole numbers")
        return replace(config, chunk_len=executed), steps
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UserError(f"{folder / 'config.json'} is unusable ({error}): restore it from its source") from error


def network(published: Mapping[str, Any], config: Pi0ModelConfig) -> Pi0ModelConfig:
    """`config` with the horizon of a published config.json, whatever robot that is for.

    UserError names the first value by which it is another network.
    """
    lerobot = published.get("type") in LEROBOT_TYPES
    horizon = published.get("chunk_size" if lerobot else "action_horizon", config.horizon)
    if type(horizon) is not int or horizon < 1:
        raise UserError(f"config.json says that {horizon!r} steps are predicted: restore it from its source")
    config = replace(config, horizon=horizon, chunk_len=min(config.chunk_len, horizon))
    runs = _lerobot_sizes(config) if lerobot else _openpi_config(config) | {"pi05": config.adaptive}
    require_agreement(published, runs, "choose the --preset of the checkpoint")
    return config


def visual_features(published: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cameras in LeRobot's config.json, without those that it leaves empty."""
    features = published.get("input_features") or {}
    return [part for name, part in features.items() if part["type"] == "VISUAL" and ".empty_camera_" not in name]


def delta_dims(published: Mapping[str, Any], config: Pi0ModelConfig, typed: bool | None, preset: str) -> int:
    """How many action dimensions are predicted minus the state: all but the gripper, or none.

    UserError when what the user typed contradicts config.json, or neither says it.
    """
    option, lerobot = "--extra-delta-transform", published.get("type") in LEROBOT_TYPES
    key = _RELATIVE if lerobot else "extra_delta_transform"
    said = published.get(key)
    if said is not None and typed is not None and bool(said) != typed:
        raise UserError(f"config.json says {key} {said}, and {option} is {typed}: leave the option out")
    if lerobot and said and typed is None:
        raise UserError(
            f"config.json says {key} {said}, but not for which dimensions: {option} True if all but the gripper are "
            "relative to the state; others are not supported"
        )
    known = typed if typed is not None else said
    if known is None and not lerobot and preset != "pi05_libero":
        raise UserError(
            "openpi's files do not say whether the policy predicts actions minus the state, as its pi0_libero does: "
            f"say {option} True or {option} False, as extra_delta_transform in its training config"
        )
    return config.action_dim - 1 if known else 0


def check_normalisation(published: Mapping[str, Any], mode: NormMode, folder: Path) -> None:
    """UserError where LeRobot's config.json, or the pipelines beside it, normalise otherwise than by `mode`, or make
    actions relative to the state without config.json saying so."""
    maps = {"config.json": published.get("normalization_mapping") or {}}
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        for step in read_json(folder / name).get("steps", ()) if (folder / name).is_file() else ():
            kind, settings = step.get("registry_name", ""), step.get("config") or {}
            maps[name] = maps.get(name, {}) | (settings.get("norm_map") or {})
            relative = any(word in kind for word in ("relative", "delta", "absolute")) and settings.get("enabled", True)
            if relative and not published.get(_RELATIVE):
                raise UserError(f"{name} has {kind}: actions relative to the state, of which config.json says nothing")
    theirs = {ours: name for name, ours in LEROBOT_MODES.items()}[mode]
    for name, table in maps.items():
        for vector, wanted in (("STATE", theirs), ("ACTION", theirs), ("VISUAL", "IDENTITY")):
            if table.get(vector, wanted) != wanted:
                raise UserError(
                    f"{name} normalises {vector} by {table[vector]}, and what would run by {wanted}: choose the "
                    f"normalisation that the checkpoint was trained with ({' or '.join(LEROBOT_MODES)} for both)"
                )


def load_published(
    folder: Path,
    config: Pi0ModelConfig,
    statistics: Pi0Statistics,
    tokenizer: Path,
    *,
    flow: FlowSettings | None = None,
    unnorm_key: str = "default",
    dtype: torch.dtype = torch.float32,
) -> Pi0Policy:
    """Read the weights of an openpi or LeRobot folder into a policy of `config`, on the CPU, as `dtype`.

    statistics: see `read_statistics`. tokenizer: PaliGemma's tokenizer.json. Value head and noise head start fresh, the
    same every time. UserError names whatever does not fit.
    """
    if config.learned_positions:
        raise UserError("presets with learned positions have no published weights: use pi0_base, pi05_base, ...")
    found = canonical(read_sharded(folder), folder)
    rows = len(found[EXPERT_HEAD]) if EXPERT_HEAD in found else 0  # converters may have dropped it
    config = replace(config, expert_head_rows=rows)
    prompt = Pi0Prompt(load_tokenizer(tokenizer), config.decoder.vocab_size)
    policy = empty_policy(config, prompt, statistics, flow or FlowSettings(), unnorm_key=unnorm_key)
    assign_published(policy, from_published(found, policy.model.state_dict(), folder), dtype)
    return policy


def published_state(folder: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters in an openpi or LeRobot folder, as `from_published`."""
    return from_published(canonical(read_sharded(folder), folder), expected, folder)


def assign_published(policy: Pi0Policy, state: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Give a policy of `empty_policy` these parameters, as `dtype`, and fresh heads; what is frozen stays so."""
    frozen = {name for name, parameter in policy.model.named_parameters() if not parameter.requires_grad}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = make_heads(policy.config).state_dict()
    both = {**state, **fresh}
    policy.model.load_state_dict({name: tensor.to(dtype) for name, tensor in both.items()}, assign=True)
    for name, parameter in policy.model.named_parameters():
        parameter.requires_grad_(name not in frozen)


def save_published(
    policy: Pi0Policy,
    folder: Path,
    layout: Layout,
    cameras: tuple[str, ...],
    provenance: dict[str, Any],
    dtype: torch.dtype | None = None,
) -> None:
    """Write `policy` as openpi or LeRobot would, all or nothing, and provenance.json beside it.

    cameras: for LeRobot, the names of the policy's cameras in its observations, such as 'image'. dtype: of the weights,
    None as they are. What only training needs (value head, noise head) is left out. UserError when the policy is no
    published architecture, or its statistics lack what the layout must have.
    """
    config = policy.config
    if config.learned_positions:
        raise UserError(
            "this policy has learned positions (as the small presets do), which openpi and LeRobot do not know: "
            "--layout native writes our own, which embodied-rl reads"
        )
    if config.delta_dims and (layout == "lerobot" or config.delta_dims != config.action_dim - 1):
        raise UserError("this policy predicts actions minus the state, which LeRobot's files cannot say: use openpi")
    if layout == "lerobot" and len(cameras) != config.num_cameras:
        raise UserError(f"the policy has {config.num_cameras} cameras, {len(cameras)} names were given (--cameras)")
    dtype = dtype or policy.model.dtype
    state = {name: tensor.detach().to("cpu", dtype) for name, tensor in policy.model.state_dict().items()}
    weights = {name: tensor.contiguous() for name, tensor in to_published(state).items()}
    precision = str(dtype).removeprefix("torch.")
    if layout == "openpi":
        stats = {"state": _full(policy.statistics.state), "actions": _full(policy.statistics.action)}
        said = {"precision": precision, "extra_delta_transform": config.delta_dims > 0}  # the latter for ourselves
        write_folder(
            folder,
            {
                SINGLE: single_file(weights),
                "config.json": to_json(_openpi_config(config) | said),
                "provenance.json": to_json(provenance),
                f"assets/{policy.unnorm_key}/norm_stats.json": to_json({"norm_stats": stats}),
            },
        )
        return
    stats = {"observation.state": policy.statistics.state, "action": policy.statistics.action}
    write_folder(
        folder,
        {
            SINGLE: single_file({LEROBOT_PREFIX + name: tensor for name, tensor in weights.items()}),
            "config.json": to_json(_lerobot_config(policy, cameras, precision)),
            "provenance.json": to_json(provenance),
            "stats.json": to_json({key: _plain(normaliser) for key, normaliser in stats.items()}),
        },
    )


def read_statistics(source: Path, mode: NormMode, config: Pi0ModelConfig, *, eps: float = OPENPI_EPS) -> Pi0Statistics:
    """The statistics in a file of openpi or LeRobot, or in the only such file of a folder.

    mode: the normalisation that the weights were trained with; eps: see `Normaliser`. Vectors longer than the model's
    (openpi once padded them) are cut. UserError lists the files when there are several, and what is there when
    something is missing.
    """
    file = statistics_file(source)
    tables = statistics_tables(file)
    return Pi0Statistics(
        replace(_normaliser(tables, _STATE_KEYS, mode, config.proprio_dim, file), eps=eps),
        replace(_normaliser(tables, _ACTION_KEYS, mode, config.action_dim, file), eps=eps),
    )


def statistics_file(source: Path) -> Path:
    """`source`, or the only file of statistics in that folder; UserError lists them when there are several."""
    if source.is_file():
        return source
    patterns = (
        "assets/**/norm_stats.json",
        "norm_stats.json",
        "stats.json",
        "meta/stats.json",
        "policy_preprocessor*normalizer_processor.safetensors",
    )
    found = sorted(path for pattern in patterns for path in source.glob(pattern))
    if not found:
        raise UserError(f"{source} has no statistics ({', '.join(patterns)}): name the file of the data set's")
    if len(found) > 1:
        names = ", ".join(str(path.relative_to(source)) for path in found)
        raise UserError(f"{source} has several statistics, name the one to use: {names}")
    return found[0]


def statistics_tables(file: Path) -> dict[str, dict[str, Any]]:
    """Statistics by the name of the vector, and by their own."""
    if file.suffix != ".safetensors":
        data = read_json(file)
        return data.get("norm_stats", data)
    tables: dict[str, dict[str, Any]] = {}
    for name, tensor in read_weights(file).items():
        vector, _, statistic = name.rpartition(".")
        tables.setdefault(vector, {})[statistic] = tensor.numpy()
    return tables


def _normaliser(
    tables: Mapping[str, dict[str, Any]], keys: tuple[str, ...], mode: NormMode, dim: int, file: Path
) -> Normaliser:
    key = next((key for key in keys if key in tables), None)
    if key is None:
        raise UserError(f"{file} has no statistics of {' or '.join(keys)}, only of {', '.join(sorted(tables))}")
    table = tables[key]
    stats = {name: np.asarray(table[name], np.float32) for name in STATISTICS if table.get(name) is not None}
    short = [name for name, values in stats.items() if values.ndim != 1 or len(values) < dim]
    if short:
        raise UserError(f"{file}: {key}.{short[0]} has shape {list(stats[short[0]].shape)}, the model needs [{dim}]")
    try:
        return Normaliser(mode, {name: values[:dim] for name, values in stats.items()})
    except UserError as error:
        raise UserError(f"{file}, {key}: {error}") from error


def _plain(normaliser: Normaliser) -> dict[str, list[float]]:
    return {name: values.tolist() for name, values in normaliser.stats.items()}


def _full(normaliser: Normaliser) -> dict[str, list[float]]:
    """openpi's table, which must have mean and std whatever the normalisation."""
    table = _plain(normaliser)
    if not {"mean", "std"} <= table.keys():
        raise UserError("openpi's statistics must have mean and std, and this policy's have none: export to lerobot")
    return table


def _openpi_config(config: Pi0ModelConfig) -> dict[str, Any]:
    """What openpi's config.json says of the network."""
    variants = {2048: "gemma_2b", 1024: "gemma_300m"}
    return {
        "action_dim": config.max_action_dim,
        "action_horizon": config.horizon,
        "paligemma_variant": variants.get(config.decoder.dim, "custom"),
        "action_expert_variant": variants.get(config.expert.dim, "custom"),
    }


def _lerobot_sizes(config: Pi0ModelConfig) -> dict[str, Any]:
    return {
        "type": "pi05" if config.adaptive else "pi0",
        "chunk_size": config.horizon,
        "max_state_dim": config.max_state_dim,
        "max_action_dim": config.max_action_dim,
        "image_resolution": [config.image_size] * 2,
    }


def _lerobot_config(policy: Pi0Policy, cameras: tuple[str, ...], precision: str) -> dict[str, Any]:
    config = policy.config
    modes = {ours: theirs for theirs, ours in LEROBOT_MODES.items()}
    shape = [3, config.image_size, config.image_size]
    images = {f"observation.images.{name}": {"type": "VISUAL", "shape": shape} for name in cameras}
    return _lerobot_sizes(config) | {
        "input_features": images | {"observation.state": {"type": "STATE", "shape": [config.proprio_dim]}},
        "output_features": {"action": {"type": "ACTION", "shape": [config.action_dim]}},
        "normalization_mapping": {
            "VISUAL": "IDENTITY",
            "STATE": modes[policy.statistics.state.mode],
            "ACTION": modes[policy.statistics.action.mode],
        },
        "dtype": precision,
        "n_action_steps": config.chunk_len,
        "num_inference_steps": policy.flow.num_inference_steps,
    }

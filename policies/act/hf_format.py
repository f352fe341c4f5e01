"""ACT in LeRobot's files, both ways.

model.safetensors, config.json, and the pipelines around the network: policy_preprocessor.json with the statistics in
policy_preprocessor_step_3_normalizer_processor.safetensors, policy_postprocessor.json likewise. Checkpoints of before
the pipelines hold the statistics among the weights, as buffers of normalize_inputs, normalize_targets and
unnormalize_outputs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.act.config import ACTModelConfig
from embodied_rl.policies.act.model import sequence_positions
from embodied_rl.policies.act.policy import ACTPolicy
from embodied_rl.policies.checkpoints.folder import check_keys, read_json, read_provenance, to_json, write_folder
from embodied_rl.policies.checkpoints.shards import SINGLE, read_sharded, single_file
from embodied_rl.policies.pi0.hf_format import statistics_file, statistics_tables, visual_features
from embodied_rl.policies.pi0.normalise import NEEDED, STATISTICS, Normaliser, NormMode, Pi0Statistics, Robot
from embodied_rl.policies.smolvla.hf_format import LEROBOT_EPS, pipeline
from embodied_rl.types import Array

_PREFIX, _STATE, _ACTION, _IMAGES = "model.", "observation.state", "action", "observation.images."
_OURS_ALONE = ("log_std", "value_head.")
_PLACES = "vae_encoder_pos_enc"
_BUFFERS = ("normalize_inputs.buffer_", "normalize_targets.buffer_", "unnormalize_outputs.buffer_")
_BACKBONES = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
_WIDTH = 64
_CLIP = "clip_actions"  # LeRobot's files have no place for it, and leave it to the env
_MODES = ("MEAN_STD", "MIN_MAX", "QUANTILES", "IDENTITY")
_THEIRS: dict[NormMode, str] = {"mean_std": "MEAN_STD", "quantiles": "QUANTILES"}
# What this network is; LeRobot has options for others.
_FIXED: dict[str, Any] = {"n_obs_steps": 1, "replace_final_stride_with_dilation": False}
_NAMES = {
    "dim_model": "dim",
    "n_heads": "heads",
    "dim_feedforward": "mlp_dim",
    "feedforward_activation": "activation",
    "pre_norm": "pre_norm",
    "n_encoder_layers": "encoder_layers",
    "n_decoder_layers": "decoder_layers",
    "use_vae": "use_vae",
    "latent_dim": "latent_dim",
    "n_vae_encoder_layers": "vae_layers",
    "kl_weight": "kl_weight",
    "temporal_ensemble_coeff": "temporal_ensemble_coeff",
    "chunk_size": "horizon",
    "n_action_steps": "chunk_len",
}
"""Our names of LeRobot's settings."""
_STEPS = {
    "rename_observations_processor",
    "to_batch_processor",
    "device_processor",
    "normalizer_processor",
    "unnormalizer_processor",
}
"""Steps of LeRobot's pipelines that are done here."""
Tables = Mapping[str, Mapping[str, Any]]
"""Statistics by the name of the vector, and by their own."""


def described(data: Mapping[str, Any]) -> ACTModelConfig:
    """The model of LeRobot's config.json, without the images' statistics; UserError for what this network is not."""
    for name, wanted in _FIXED.items():
        if data.get(name, wanted) != wanted:
            raise UserError(f"config.json: {name} is {data[name]!r}, and only {wanted!r} is supported")
    backbone = data.get("vision_backbone", "resnet18")
    if backbone not in _BACKBONES:
        raise UserError(f"config.json: vision_backbone is {backbone!r}, one of {', '.join(_BACKBONES)} is supported")
    try:
        inputs = data["input_features"]
        frames = {tuple(part["shape"][1:]) for part in visual_features(data)}
        others = {name for name, part in inputs.items() if part["type"] != "VISUAL"} - {_STATE}
        if others:
            raise UserError(f"config.json: the network reads {', '.join(sorted(others))}, which is not supported")
        if len(frames) != 1:
            raise UserError(f"config.json: cameras must be there and of one size, got {sorted(frames) or 'none'}")
        sizes = {
            "action_dim": data["output_features"][_ACTION]["shape"][0],
            "proprio_dim": inputs[_STATE]["shape"][0] if _STATE in inputs else 0,
        }
        given = {ours: data[theirs] for theirs, ours in _NAMES.items() if theirs in data}
        return ACTModelConfig(
            **{"horizon": 100, "chunk_len": 100, **given, **sizes},
            frame=frames.pop(),
            num_cameras=len(visual_features(data)),
            backbone_blocks=_BACKBONES[backbone],
            backbone_width=_WIDTH,
            clip_actions=False,
        )
    except (KeyError, AttributeError) as error:
        raise UserError(f"config.json lacks {error}: restore the file from the checkpoint's source") from error
    except (TypeError, ValueError, IndexError) as error:
        raise UserError(f"config.json describes no usable model: {error}") from error


def load_published(folder: Path, statistics: Path | None = None) -> ACTPolicy:
    """Read a folder of LeRobot's ACT, on the CPU in float32.

    Args:
        folder: of today's layout, or of before the pipelines.
        statistics: file or folder of them; None: those among the weights, or in the normaliser's file.

    Raises:
        UserError: Something is missing, superfluous or does not fit.
    """
    data = read_json(folder / "config.json")
    config, modes = described(data), _modes(data, folder)
    found = read_sharded(folder)
    buffers = {name: tensor for name, tensor in found.items() if name.startswith(_BUFFERS)}
    if statistics is None and buffers:
        tables = _among_weights(buffers, [*data["input_features"], *data["output_features"]], folder)
    else:
        tables = statistics_tables(statistics_file(statistics or folder))
    cameras = [name for name, part in data["input_features"].items() if part["type"] == "VISUAL"]
    mean, std = _image_statistics(tables, cameras, modes["VISUAL"])
    clip = bool(read_provenance(folder).get(_CLIP, False))
    config = replace(config, image_mean=mean, image_std=std, clip_actions=clip)
    robot = Robot(
        Pi0Statistics(
            _normaliser(tables, _STATE, modes["STATE"], config.proprio_dim),
            _normaliser(tables, _ACTION, modes["ACTION"], config.action_dim),
        )
    )
    policy = ACTPolicy.fresh(config, {"default": robot}, seed=0)  # its own heads are the same every time
    own = policy.model.state_dict()
    expected = {_PREFIX + name: tensor for name, tensor in own.items() if not name.startswith(_OURS_ALONE)}
    state = {name: tensor for name, tensor in found.items() if name not in buffers and name != _PREFIX + _PLACES}
    check_keys(expected, state, folder / SINGLE)
    policy.model.load_state_dict(
        {name.removeprefix(_PREFIX): value.float() for name, value in state.items()}, strict=False
    )
    return policy


def save_published(policy: ACTPolicy, folder: Path, cameras: tuple[str, ...], provenance: dict[str, Any]) -> None:
    """Write `policy` as LeRobot would, all or nothing, and provenance.json beside it.

    What only reinforcement learning needs (value head, deviations) is left out.

    Args:
        policy: with a ResNet-18 or -34.
        folder: to write.
        cameras: names of the policy's cameras in LeRobot's observations, such as 'top'.
        provenance: what is recorded.

    Raises:
        UserError: LeRobot has no such backbone, or the names are not as many as the cameras.
    """
    config = policy.config
    backbone = next((name for name, blocks in _BACKBONES.items() if blocks == config.backbone_blocks), None)
    if backbone is None or config.backbone_width != _WIDTH:
        raise UserError(
            "LeRobot's ACT has a ResNet-18 or -34, and this policy's is smaller (as the small presets'): not written "
            "(--layout native writes ours, which embodied-rl reads)"
        )
    if len(cameras) != config.num_cameras:
        raise UserError(f"the policy has {config.num_cameras} cameras, {len(cameras)} names were given (--cameras)")
    weights = {
        _PREFIX + name: tensor.detach().to("cpu", torch.float32).contiguous()
        for name, tensor in policy.model.state_dict().items()
        if not name.startswith(_OURS_ALONE)
    }
    if config.use_vae:
        count = 1 + (config.proprio_dim > 0) + config.horizon
        weights[f"{_PREFIX}{_PLACES}"] = sequence_positions(count, config.dim)[None]
    said = _lerobot_config(policy, cameras, backbone)
    before, after = _pipelines(said)
    stats = _tensors(policy, cameras)
    write_folder(
        folder,
        {
            SINGLE: single_file(weights),
            # not sorted: the order of the cameras counts
            "config.json": (json.dumps(said, indent=2) + "\n").encode(),
            "policy_preprocessor.json": to_json(before),
            before["steps"][3]["state_file"]: single_file(stats),
            "policy_postprocessor.json": to_json(after),
            after["steps"][0]["state_file"]: single_file(stats),
            "provenance.json": to_json(provenance | {_CLIP: config.clip_actions}),
        },
    )


def _lerobot_config(policy: ACTPolicy, cameras: tuple[str, ...], backbone: str) -> dict[str, Any]:
    config, statistics = policy.config, policy.statistics
    inputs: dict[str, Any] = {_IMAGES + name: {"type": "VISUAL", "shape": [3, *config.frame]} for name in cameras}
    if config.proprio_dim:
        inputs[_STATE] = {"type": "STATE", "shape": [config.proprio_dim]}
    return {
        "type": "act",
        **_FIXED,
        **{theirs: getattr(config, ours) for theirs, ours in _NAMES.items()},
        "vision_backbone": backbone,
        "pretrained_backbone_weights": None,
        "input_features": inputs,
        "output_features": {_ACTION: {"type": "ACTION", "shape": [config.action_dim]}},
        "normalization_mapping": {
            "VISUAL": "MEAN_STD",
            "STATE": _THEIRS[statistics.state.mode],
            "ACTION": _THEIRS[statistics.action.mode],
        },
    }


def _pipelines(said: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """LeRobot's steps before the network of a config.json and after it."""
    common = {"eps": LEROBOT_EPS, "norm_map": said["normalization_mapping"]}
    place = ("device_processor", {"device": "cpu", "float_dtype": None})
    before = [
        ("rename_observations_processor", {"rename_map": {}}),
        ("to_batch_processor", {}),
        place,
        ("normalizer_processor", common | {"features": said["input_features"] | said["output_features"]}),
    ]
    after = [("unnormalizer_processor", common | {"features": said["output_features"]}), place]
    return pipeline("policy_preprocessor", before), pipeline("policy_postprocessor", after)


def _tensors(policy: ACTPolicy, cameras: tuple[str, ...]) -> dict[str, Tensor]:
    """The normaliser's file."""
    found = {}
    vectors = {_STATE: policy.statistics.state, _ACTION: policy.statistics.action}
    for key, normaliser in vectors.items():
        if normaliser.dim:
            found |= {f"{key}.{name}": torch.from_numpy(values) for name, values in normaliser.stats.items()}
    for name, numbers in zip(("mean", "std"), policy.config.image_statistics, strict=True):
        for place, camera in enumerate(cameras):
            found[f"{_IMAGES}{camera}.{name}"] = torch.tensor(numbers[3 * place : 3 * place + 3]).view(3, 1, 1)
    return found


def _modes(data: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """How images, state and action are normalised.

    Raises:
        UserError: In a way that is not known here, or otherwise by the pipelines than by config.json.
    """
    said = data.get("normalization_mapping") or {}
    modes = {kind: said.get(kind, "IDENTITY") for kind in ("VISUAL", "STATE", "ACTION")}
    for kind, mode in modes.items():
        if mode not in _MODES:
            raise UserError(f"config.json normalises {kind} by {mode}, one of {', '.join(_MODES)} is supported")
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        for step in read_json(folder / name).get("steps", ()) if (folder / name).is_file() else ():
            kind = step.get("registry_name", "a step of its own class")
            if kind not in _STEPS:
                raise UserError(f"{name} has {kind}, which is not supported")
            table = (step.get("config") or {}).get("norm_map") or {}
            for part, mode in table.items():
                if modes.get(part, mode) != mode:
                    raise UserError(f"{name} normalises {part} by {mode}, and config.json by {modes[part]}")
    return modes


def _among_weights(buffers: Mapping[str, Tensor], features: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """The tables of a checkpoint of before the pipelines, whose names have underscores for dots."""
    names = {feature.replace(".", "_"): feature for feature in features}
    tables: dict[str, dict[str, Any]] = {}
    for name, tensor in buffers.items():
        prefix = next(prefix for prefix in _BUFFERS if name.startswith(prefix))
        vector, _, statistic = name.removeprefix(prefix).partition(".")
        if vector not in names:
            raise UserError(f"{folder / SINGLE} has statistics of {vector}, which config.json does not name")
        tables.setdefault(names[vector], {})[statistic] = tensor.numpy()
    return tables


def _stats(tables: Tables, key: str, mode: str) -> dict[str, Array]:
    """The statistics of one vector by our names: of MIN_MAX the ends, as if they were percentiles."""
    table = tables.get(key, {})
    wanted = {"MEAN_STD": {"mean": "mean", "std": "std"}, "MIN_MAX": {"min": "q01", "max": "q99"}}
    names = {name: name for name in STATISTICS} | wanted.get(mode, {})
    if mode == "MIN_MAX":
        names = {name: ours for name, ours in names.items() if name not in ("q01", "q99")}
    found = {ours: np.asarray(table[name], np.float32) for name, ours in names.items() if table.get(name) is not None}
    missing = [name for name in NEEDED["mean_std" if mode == "MEAN_STD" else "quantiles"] if name not in found]
    if missing:
        raise UserError(
            f"normalisation {mode} of {key} lacks {' and '.join(missing)}: name the data set's with --statistics"
        )
    return found


def _normaliser(tables: Tables, key: str, mode: str, dim: int) -> Normaliser:
    if mode == "IDENTITY" or not dim:
        stats = {"mean": np.zeros(dim, np.float32), "std": np.ones(dim, np.float32)}
        return Normaliser("mean_std", stats, 0.0)
    stats = _stats(tables, key, mode)
    wrong = [name for name, values in stats.items() if values.shape != (dim,)]
    if wrong:
        raise UserError(
            f"statistics {key}.{wrong[0]} have shape {list(stats[wrong[0]].shape)}, the model needs [{dim}]"
        )
    return Normaliser("mean_std" if mode == "MEAN_STD" else "quantiles", stats, LEROBOT_EPS)


def _image_statistics(tables: Tables, cameras: list[str], mode: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel of each camera, in one row; of other modes the middle and the reach."""
    if mode == "IDENTITY":
        return (0.0,) * 3 * len(cameras), (1.0,) * 3 * len(cameras)
    middles, reaches = [], []
    for camera in cameras:
        stats = {name: values.reshape(-1) for name, values in _stats(tables, camera, mode).items()}
        if mode == "MEAN_STD":
            middle, reach = stats["mean"], stats["std"]
        else:
            middle, reach = (stats["q01"] + stats["q99"]) / 2, (stats["q99"] - stats["q01"]) / 2
        if middle.shape != (3,) or not np.isfinite([*middle, *reach]).all():
            raise UserError(f"statistics of {camera} must be three finite numbers each, got {stats}")
        middles += middle.tolist()
        reaches += reach.tolist()
    return tuple(middles), tuple(reaches)

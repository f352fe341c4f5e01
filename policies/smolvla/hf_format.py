"""SmolVLA in LeRobot's files, both ways.

model.safetensors, config.json, and the pipelines around the network: policy_preprocessor.json with the statistics in
policy_preprocessor_step_5_normalizer_processor.safetensors, policy_postprocessor.json likewise. The language model's
tokenizer.json is no part of LeRobot's; ours lies beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import to_json, write_folder
from embodied_rl.policies.checkpoints.shards import SINGLE, read_sharded, single_file
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.hf_format import LEROBOT_MODES, assign_published, visual_features
from embodied_rl.policies.pi0.hf_keys import LEROBOT_PREFIX, Names, from_published, to_published
from embodied_rl.policies.pi0.normalise import Normaliser, NormMode, Pi0Statistics
from embodied_rl.policies.pi0.start import empty_policy
from embodied_rl.policies.preprocessing.text import load_tokenizer
from embodied_rl.policies.smolvla.config import SmolVLAModelConfig, expert_of
from embodied_rl.policies.smolvla.policy import MAX_TOKENS, SmolVLAPolicy, SmolVLAPrompt

LEROBOT_EPS = 1e-8
_VLM = "model.vlm_with_expert.vlm."
NAMES = Names(
    _VLM + "model.vision_model.",
    {
        "projector.": _VLM + "model.connector.modality_projection.proj.",
        "language.": _VLM + "model.text_model.",
        "lm_head.": _VLM + "lm_head.",
        "expert.": "model.vlm_with_expert.lm_expert.",
        "": LEROBOT_PREFIX,
    },
)
_LM_HEAD = _VLM + "lm_head.weight"
# What this network is; LeRobot has options for others.
_FIXED: dict[str, Any] = {
    "attention_mode": "cross_attn",
    "add_image_special_tokens": False,
    "adapt_to_pi_aloha": False,
    "use_delta_joint_actions_aloha": False,
    "n_obs_steps": 1,
    "tokenizer_max_length": MAX_TOKENS,
    "min_period": 0.004,
    "max_period": 4.0,
}


def described(data: dict[str, Any], like: SmolVLAModelConfig) -> tuple[SmolVLAModelConfig, NormMode, int]:
    """What LeRobot's config.json says: the model, the normalisation and the denoising steps.

    like: the model of `like.vlm`, whose sizes the file does not hold. UserError for what this network is not.
    """
    for name, wanted in (_FIXED | {"vlm_model_name": like.vlm, "use_relative_actions": False}).items():
        if data.get(name, wanted) != wanted:
            raise UserError(f"config.json: {name} is {data[name]!r}, and only {wanted!r} is supported")
    layers, experts = data.get("num_vlm_layers", like.decoder.layers), data.get("num_expert_layers", -1)
    size = like.vision.image_size
    if experts > 0 and experts != layers:
        raise UserError(f"config.json: {experts} expert layers for {layers} of the language model are not supported")
    try:
        if list(data.get("resize_imgs_with_padding") or ()) != [size, size]:
            raise UserError(f"config.json: resize_imgs_with_padding must be [{size}, {size}]")
        images = [part["shape"] for part in visual_features(data)]
        state, action = data["input_features"]["observation.state"]["shape"], data["output_features"]["action"]["shape"]
        found = {kind: data["normalization_mapping"][kind] for kind in ("STATE", "ACTION")}
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"config.json lacks {error}: restore the file from the checkpoint's source") from error
    if len(set(found.values())) > 1 or found["STATE"] not in LEROBOT_MODES:
        raise UserError(
            f"config.json: normalisation {found} is not supported, one of {', '.join(LEROBOT_MODES)} for both is"
        )
    if not images:
        raise UserError("config.json: input_features has no camera, and this policy needs one or more")
    decoder = replace(like.decoder, layers=layers)
    try:
        config = replace(
            like,
            decoder=decoder,
            expert=expert_of(decoder, data.get("expert_width_multiplier", 0.75)),
            self_attn_every=data.get("self_attn_every_n_layers", 2),
            horizon=data["chunk_size"],
            chunk_len=data.get("n_action_steps", data["chunk_size"]),
            max_action_dim=data.get("max_action_dim", 32),
            max_state_dim=data.get("max_state_dim", 32),
            action_dim=action[0],
            proprio_dim=state[0],
            num_cameras=len(images),
            frame_size=max(max(shape[1:]) for shape in images),
        )
    except KeyError as error:
        raise UserError(f"config.json lacks {error}: restore the file from the checkpoint's source") from error
    except (TypeError, ValueError, IndexError) as error:
        raise UserError(f"config.json describes no usable model: {error}") from error
    return config, LEROBOT_MODES[found["STATE"]], data.get("num_steps", 10)


def load_published(
    folder: Path,
    config: SmolVLAModelConfig,
    statistics: Pi0Statistics,
    tokenizer: Path,
    *,
    flow: FlowSettings | None = None,
    unnorm_key: str = "default",
    dtype: torch.dtype = torch.float32,
) -> SmolVLAPolicy:
    """As `pi0.published.load_published`, of a folder of LeRobot's SmolVLA; tokenizer: the language model's."""
    found = read_sharded(folder)
    config = replace(config, lm_head_rows=len(found.get(_LM_HEAD, ())))
    prompt = SmolVLAPrompt(load_tokenizer(tokenizer), config.decoder.vocab_size)
    policy = empty_policy(config, prompt, statistics, flow or FlowSettings(), unnorm_key=unnorm_key, kind=SmolVLAPolicy)
    assign_published(policy, from_published(found, policy.model.state_dict(), folder, NAMES), dtype)
    return policy


def published_state(folder: Path, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters in a folder of LeRobot's SmolVLA, as `from_published`."""
    return from_published(read_sharded(folder), expected, folder, NAMES)


def save_published(
    policy: SmolVLAPolicy,
    folder: Path,
    cameras: tuple[str, ...],
    provenance: dict[str, Any],
    dtype: torch.dtype | None = None,
) -> None:
    """Write `policy` as LeRobot would, all or nothing; see `pi0.published.save_published`."""
    config = policy.config
    if config.learned_positions or not config.vlm:
        raise UserError(
            "LeRobot's files name a published language model, and this policy has its own: not written "
            "(--layout native writes ours, which embodied-rl reads)"
        )
    if len(cameras) != config.num_cameras:
        raise UserError(f"the policy has {config.num_cameras} cameras, {len(cameras)} names were given (--cameras)")
    dtype = dtype or policy.model.dtype
    state = {name: tensor.detach().to("cpu", dtype) for name, tensor in policy.model.state_dict().items()}
    described_by = _lerobot_config(policy, cameras)
    stats = _tensors("observation.state", policy.statistics.state) | _tensors("action", policy.statistics.action)
    before, after = _pipelines(described_by)
    write_folder(
        folder,
        {
            SINGLE: single_file({name: tensor.contiguous() for name, tensor in to_published(state, NAMES).items()}),
            "config.json": to_json(described_by),
            "tokenizer.json": policy.prompt.tokenizer.to_str(pretty=True).encode(),
            "policy_preprocessor.json": to_json(before),
            before["steps"][5]["state_file"]: single_file(stats),
            "policy_postprocessor.json": to_json(after),
            after["steps"][0]["state_file"]: single_file(stats),
            "provenance.json": to_json(provenance),
        },
    )


def _tensors(name: str, normaliser: Normaliser) -> dict[str, Tensor]:
    return {f"{name}.{statistic}": torch.from_numpy(values) for statistic, values in normaliser.stats.items()}


def _lerobot_config(policy: SmolVLAPolicy, cameras: tuple[str, ...]) -> dict[str, Any]:
    config = policy.config
    size, modes = config.frame_size, {ours: theirs for theirs, ours in LEROBOT_MODES.items()}
    images = {f"observation.images.{name}": {"type": "VISUAL", "shape": [3, size, size]} for name in cameras}
    return _FIXED | {
        "type": "smolvla",
        "vlm_model_name": config.vlm,
        "input_features": images | {"observation.state": {"type": "STATE", "shape": [config.proprio_dim]}},
        "output_features": {"action": {"type": "ACTION", "shape": [config.action_dim]}},
        "normalization_mapping": {
            "VISUAL": "IDENTITY",
            "STATE": modes[policy.statistics.state.mode],
            "ACTION": modes[policy.statistics.action.mode],
        },
        "chunk_size": config.horizon,
        "n_action_steps": config.chunk_len,
        "max_state_dim": config.max_state_dim,
        "max_action_dim": config.max_action_dim,
        "num_steps": policy.flow.num_inference_steps,
        "resize_imgs_with_padding": [config.vision.image_size] * 2,
        "num_vlm_layers": config.decoder.layers,
        "self_attn_every_n_layers": config.self_attn_every,
        "expert_width_multiplier": config.expert.dim / config.decoder.dim,
    }


def _pipelines(config: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """LeRobot's steps before the network and after it."""
    common = {"eps": LEROBOT_EPS, "norm_map": config["normalization_mapping"]}
    tokens = {
        "tokenizer_name": config["vlm_model_name"],
        "max_length": config["tokenizer_max_length"],
        "task_key": "task",
        "padding_side": "right",
        "padding": "longest",
        "truncation": True,
    }
    before = [
        ("rename_observations_processor", {"rename_map": {}}),
        ("to_batch_processor", {}),
        ("smolvla_new_line_processor", {}),
        ("tokenizer_processor", tokens),
        ("device_processor", {"device": "cpu", "float_dtype": None}),
        ("normalizer_processor", common | {"features": config["input_features"] | config["output_features"]}),
    ]
    after = [
        ("unnormalizer_processor", common | {"features": config["output_features"]}),
        ("device_processor", {"device": "cpu", "float_dtype": None}),
    ]
    return pipeline("policy_preprocessor", before), pipeline("policy_postprocessor", after)


def pipeline(name: str, steps: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """A pipeline of LeRobot's from the names of its steps and their settings."""
    described_steps: list[dict[str, Any]] = []
    for index, (kind, config) in enumerate(steps):
        file = {"state_file": f"{name}_step_{index}_{kind}.safetensors"} if "norm_map" in config else {}
        described_steps.append({"registry_name": kind, "config": config} | file)
    return {"name": name, "steps": described_steps}

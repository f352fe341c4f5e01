"""OpenVLA's and OpenVLA-OFT's published layout: config.json and weights, both ways.

The published config.json names its vision towers (timm ids) and leaves out whatever equals Llama-2-7B's defaults. What
it cannot say (how a checkpoint is decoded, which statistics it uses) our exports add under the key `embodied_rl`, which
other readers ignore.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import File, read_json, read_weights, require_agreement
from embodied_rl.policies.checkpoints.shards import read_sharded, sharded_files, single_file, weight_files
from embodied_rl.policies.nn.decoder import DecoderConfig
from embodied_rl.policies.nn.heads import make_value_head
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, openvla_7b
from embodied_rl.policies.openvla_oft import config as oft_config
from embodied_rl.policies.openvla_oft.parts import check_parts, find_parts, read_parts, split_parts
from embodied_rl.policies.preprocessing.text import PromptTokenizer
from embodied_rl.policies.preprocessing.tokens import NUM_BINS, Statistics

SECTION = "embodied_rl"
MODEL_TYPE = "openvla"
# The code that transformers' readers of the layout run lies in this repository; our exports hold no code.
AUTO_MAP = {
    "AutoConfig": "openvla/openvla-7b--configuration_prismatic.OpenVLAConfig",
    "AutoModelForVision2Seq": "openvla/openvla-7b--modeling_prismatic.OpenVLAForActionPrediction",
}
_TOWERS = "dinosiglip-vit-so-224px"
_EXPECTED = {
    "vision_backbone_id": _TOWERS,
    "arch_specifier": "no-align+fused-gelu-mlp",
    "image_resize_strategy": "resize-naive",
    "n_action_bins": NUM_BINS,
}

VALUE_HEAD = "value_head.safetensors"
_VALUE = "value_head."
_RLINF_VALUE = "value_head.mlp."
# Small files of a published checkpoint that we do not need but readers of our exports do.
_PASSED_ON = (
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


def small_files(folder: Path) -> dict[str, bytes]:
    """The files in `folder` that an export passes on as they are."""
    return {name: (folder / name).read_bytes() for name in _PASSED_ON if (folder / name).is_file()}


def published_model(
    config: Mapping[str, Any], statistics: Statistics, options: LoadOptions, folder: Path
) -> OpenVLAModelConfig:
    """The model of a checkpoint that others published, which its files and the user's choice describe together.

    UserError names what was not chosen, and every choice that contradicts config.json or the files beside it.
    """
    model = model_config(config)
    advice = "leave the variant out"
    if options.architecture == "openvla":
        refuse_variant(options, folder)
        advice = "choose --policy openvla_oft and its variant"
    elif options.variant is None:
        raise UserError(
            f"{folder} is a published OFT checkpoint that does not say how it was trained: choose its "
            f"variant, one of {', '.join(oft_config.VARIANTS)}"
        )
    else:
        model = oft_config.with_variant(model, options.variant, proprio_dim=0)
        check_parts(model, find_parts(folder), folder)
        advice = "choose the variant (or its head, cameras, proprio, film and chunk length) that it was trained as"
    model = replace(model, action_dim=len(statistics.q01), proprio_dim=len(statistics.proprio_mean))
    film = isinstance(model, oft_config.OFTModelConfig) and model.film
    runs = {
        "num_images_in_input": model.num_cameras,
        "num_action_chunks": model.chunk_len,
        "chunk_size": model.chunk_len,
        "action_horizon": model.chunk_len,
        "action_dim": model.action_dim,
        "use_proprio": model.use_proprio,
        "use_film": film,
        "use_relative_actions": False,
        "action_proprio_normalization_type": "bounds_q99",
        "image_sizes": [model.image_size] * 2,
        "unnorm_key": options.unnorm_key,
    }
    if model.use_proprio:
        runs["proprio_dim"] = model.proprio_dim
    require_agreement(config, runs, advice)
    return model


def refuse_variant(options: LoadOptions, folder: Path) -> None:
    """UserError if a variant was chosen for a checkpoint that has none."""
    if options.variant is not None:
        raise UserError(f"{folder} is no published OFT checkpoint and says how it decodes: leave the variant out")


def model_config(public: Mapping[str, Any]) -> OpenVLAModelConfig:
    """The model that a published config.json describes: one camera, no proprio, one action a decision.

    UserError names what this implementation does not have.
    """
    for key, expected in _EXPECTED.items():
        if public.get(key, expected) != expected:
            raise UserError(
                f"config.json has {key} {public[key]!r}; this version reads OpenVLA checkpoints with {expected!r} only."
            )
    text = public.get("text_config", {})
    if text.get("model_type", "llama") != "llama" or text.get("rope_scaling") is not None:
        raise UserError("config.json's text_config is not a plain Llama: this version reads Llama decoders only.")
    decoder = _decoder(text)
    base = openvla_7b()
    return replace(base, decoder=decoder, action_token_end=decoder.vocab_size - public.get("pad_to_multiple_of", 64))


def _decoder(text: dict[str, Any]) -> DecoderConfig:
    """Llama's config; what is missing has the defaults of transformers' LlamaConfig."""
    dim, heads = text.get("hidden_size", 4096), text.get("num_attention_heads", 32)
    return DecoderConfig(
        vocab_size=text.get("vocab_size", 32000),
        dim=dim,
        layers=text.get("num_hidden_layers", 32),
        heads=heads,
        kv_heads=text.get("num_key_value_heads") or heads,
        head_dim=text.get("head_dim") or dim // heads,
        mlp_dim=text.get("intermediate_size", 11008),
        rope_theta=float(text.get("rope_theta", 10000.0)),
        norm_eps=text.get("rms_norm_eps", 1e-6),
    )


def public_config(config: OpenVLAModelConfig, dtype: str) -> dict[str, Any]:
    """A published config.json for a model that did not come with one. dtype: of the weights, e.g. 'bfloat16'."""
    decoder, base = config.decoder, openvla_7b()
    towers = [replace(tower, film_dim=None) for tower in (config.featurizer, config.fused_featurizer)]
    known = towers == [base.featurizer, base.fused_featurizer]
    return {
        "architectures": ["OpenVLAForActionPrediction"],
        "model_type": MODEL_TYPE,
        "auto_map": AUTO_MAP,
        "arch_specifier": _EXPECTED["arch_specifier"],
        "vision_backbone_id": _TOWERS if known else SECTION,
        "use_fused_vision_backbone": True,
        "timm_model_ids": ["vit_large_patch14_reg4_dinov2.lvd142m", "vit_so400m_patch14_siglip_224"] if known else [],
        "timm_override_act_layers": [None, None],
        "image_sizes": [config.image_size, config.image_size],
        "image_resize_strategy": _EXPECTED["image_resize_strategy"],
        "llm_backbone_id": "llama2-7b-pure",
        "hf_llm_id": "meta-llama/Llama-2-7b-hf",
        "llm_max_length": 2048,
        "n_action_bins": NUM_BINS,
        "pad_token_id": 32000,
        "pad_to_multiple_of": decoder.vocab_size - config.action_token_end,
        "output_projector_states": False,
        "text_config": {
            "model_type": "llama",
            "vocab_size": decoder.vocab_size,
            "hidden_size": decoder.dim,
            "intermediate_size": decoder.mlp_dim,
            "num_hidden_layers": decoder.layers,
            "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.kv_heads,
            "head_dim": decoder.head_dim,
            "rms_norm_eps": decoder.norm_eps,
            "rope_theta": decoder.rope_theta,
            "pad_token_id": 32000,
            "torch_dtype": dtype,
        },
        "torch_dtype": dtype,
    }


def public_files(model: OpenVLAModelConfig, state: dict[str, Tensor]) -> dict[str, File]:
    """The weight files of `state` in the published layout; the critic in a file of its own, which others ignore."""
    main = {name: tensor for name, tensor in state.items() if not name.startswith(_VALUE)}
    files: dict[str, File] = {}
    if isinstance(model, oft_config.OFTModelConfig):
        main, files = split_parts(model, main)
    critic = {name: tensor for name, tensor in state.items() if name.startswith(_VALUE)}
    return {**sharded_files(main), **files, VALUE_HEAD: single_file(critic)}


def public_state(folder: Path, model: OpenVLAModelConfig) -> dict[str, Tensor]:
    """All parameters of a published folder under our names, with a fresh critic where it has none."""
    # older transformers saved the rotary frequencies, which are no parameters
    state = {name: tensor for name, tensor in read_sharded(folder).items() if not name.endswith("rotary_emb.inv_freq")}
    if isinstance(model, oft_config.OFTModelConfig):
        state |= read_parts(find_parts(folder))
    if (folder / VALUE_HEAD).is_file():
        return state | read_weights(folder / VALUE_HEAD)
    return _with_value_head(state, model)


def public_weight_files(folder: Path, model: OpenVLAModelConfig) -> list[Path]:
    """The files that `public_state` reads."""
    parts = find_parts(folder).values() if isinstance(model, oft_config.OFTModelConfig) else ()
    return [*weight_files(folder), *parts, *folder.glob(VALUE_HEAD)]


def _with_value_head(state: dict[str, Tensor], model: OpenVLAModelConfig) -> dict[str, Tensor]:
    """`state` with RLinf's critic under our names, or else with a fresh one."""
    trained = {name: state.pop(name) for name in list(state) if name.startswith(_RLINF_VALUE)}
    if trained:
        # RLinf's last layer has no bias
        return (
            state
            | {"value_head.4.bias": torch.zeros(1)}
            | {name.replace(_RLINF_VALUE, _VALUE): tensor for name, tensor in trained.items()}
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = make_value_head(model.decoder.dim, model.value_hidden).state_dict()
    return state | {_VALUE + name: tensor for name, tensor in fresh.items()}

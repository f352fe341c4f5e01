"""OpenVLA's published config.json: to our model config, and back for exports.

The published file names its vision towers (timm ids) and leaves out whatever equals Llama-2-7B's defaults. What it
cannot say (how a checkpoint is decoded, which statistics it uses) our exports add under the key `embodied_rl`, which
other readers ignore.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.policies.nn.decoder import DecoderConfig
from embodied_rl.policies.openvla.config import OpenVLAModelConfig, openvla_7b
from embodied_rl.policies.preprocessing.tokens import NUM_BINS

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


def model_config(public: dict[str, Any]) -> OpenVLAModelConfig:
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

"""How far our pi0 and pi0.5 are from LeRobot's own, with small random weights; run by hand, in an environment with it:

    pip install "lerobot[pi]==0.6.1"    # Python 3.12, transformers 5.5.0
    python -m tests.policies.compare_pi0_lerobot

LeRobot writes its sizes into its code, so they are replaced from outside; what it computes is its own.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional as F

from embodied_rl.policies.flow import FlowSettings, PathNoise, sample_path
from embodied_rl.policies.pi0.hf_keys import to_published
from embodied_rl.policies.pi0.policy import Pi0Policy
from tests.policies.pi0_models import observation, tensors, tiny_config, tiny_policy

STEPS, ROWS, HEADS, VOCAB = 10, 3, 8, 320


def small_policy(kind: str) -> Pi0Policy:
    """Ours, with the eight heads that LeRobot's code counts on."""
    config = tiny_config(kind)
    sizes: dict[str, Any] = {
        "decoder": replace(config.decoder, heads=HEADS),
        "expert": replace(config.expert, heads=HEADS),
    }
    return tiny_policy(kind, FlowSettings(num_inference_steps=STEPS), expert_head_rows=VOCAB, **sizes)


def _fixed(part: Any, names: set[str]) -> None:
    """Let nobody change these sizes of a configuration any more."""
    kind = type(part)

    def keep(self: Any, name: str, value: Any) -> None:
        if name not in names:
            super(kind, self).__setattr__(name, value)

    part.__class__ = type(kind.__name__, (kind,), {"__setattr__": keep})


def _paligemma(policy: Pi0Policy) -> Any:
    transformers: Any = importlib.import_module("transformers")
    width = policy.config.decoder.dim
    vision = {
        "model_type": "siglip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "patch_size": 14,
        "image_size": 28,
        "vision_use_head": False,
    }
    text = {"model_type": "gemma", "vocab_size": VOCAB}
    config = transformers.PaliGemmaConfig(vision_config=vision, text_config=text, projection_dim=width)
    _fixed(config.vision_config, {"projection_dim", "intermediate_size", "image_size"})
    _fixed(config.text_config, {"vocab_size"})
    return config


def lerobots(kind: str, policy: Pi0Policy) -> Any:
    """LeRobot's network with the weights of ours."""
    transformers: Any = importlib.import_module("transformers")
    name = "PI0" if kind == "pi0" else "PI05"
    module: Any = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    settings: Any = importlib.import_module(f"lerobot.policies.{kind}.configuration_{kind}")
    module.CONFIG_MAPPING = {
        "paligemma": lambda: _paligemma(policy),
        "gemma": lambda **sizes: transformers.GemmaConfig(**sizes | {"vocab_size": VOCAB}),
    }
    config = policy.config
    parts = {"gemma_2b": config.decoder, "gemma_300m": config.expert}
    module.get_gemma_config = lambda variant: SimpleNamespace(
        width=parts[variant].dim,
        depth=parts[variant].layers,
        mlp_dim=parts[variant].mlp_dim,
        num_heads=HEADS,
        num_kv_heads=1,
        head_dim=parts[variant].head_dim,
    )
    sizes: dict[str, Any] = {
        "chunk_size": config.horizon,
        "n_action_steps": config.horizon,
        "image_resolution": (28, 28),
    }
    sizes |= {"max_state_dim": config.max_state_dim, "max_action_dim": config.max_action_dim}
    network = getattr(module, f"{name}Pytorch")(getattr(settings, f"{name}Config")(**sizes, device="cpu"))
    state, base = to_published(policy.model.state_dict()), "paligemma_with_expert.paligemma."
    state[f"{base}model.language_model.embed_tokens.weight"] = state[f"{base}lm_head.weight"]
    network.load_state_dict(state)
    return network.float().eval()


@torch.no_grad()
def difference(kind: str) -> tuple[float, float]:
    """The largest difference of a chunk's numbers, and how far denoising moved them."""
    policy = small_policy(kind)
    config, seen = policy.config, observation(ROWS)
    state = policy.statistics.state.normalise(seen.proprio)
    words = state.numpy() if config.state_input == "prompt" else None
    ids, lengths = policy.prompt.batch(seen.instruction, words)
    start = torch.randn(ROWS, config.horizon, config.max_action_dim, generator=torch.Generator().manual_seed(5))
    noise = PathNoise(start, torch.zeros_like(start)[:, None], torch.zeros(ROWS, dtype=torch.int64))
    prefix = policy.read_prefix(*tensors(seen), 1)
    ours = sample_path(lambda x, i: policy.denoise_step(prefix, x, i), noise, policy.flow, explore=False).action
    pixels = seen.images.permute(0, 1, 4, 2, 3).float() / 127.5 - 1.0
    valid = torch.arange(ids.shape[1]) < torch.tensor(lengths)[:, None]
    given: list[Any] = [list(pixels.unbind(1)), [torch.ones(ROWS, dtype=torch.bool)] * 2, torch.from_numpy(ids), valid]
    if config.state_input == "token":
        given.append(F.pad(state, (0, config.max_state_dim - config.proprio_dim)))
    theirs = lerobots(kind, policy).sample_actions(*given, noise=start.clone(), num_steps=STEPS)
    return float((theirs - ours).abs().max()), float((theirs - start).abs().max())


if __name__ == "__main__":
    for kind in ("pi0", "pi05"):
        print(f"{kind}: largest difference %.2g, moved by %.2g" % difference(kind))

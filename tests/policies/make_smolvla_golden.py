"""Writes data/smolvla_golden.npz with LeRobot's own SmolVLA; run by hand, in an environment of its own:

    pip install "lerobot[smolvla]==0.4.4"
    pip install transformers==4.54.1
    python tests/policies/make_smolvla_golden.py

With --check it writes nothing and prints how far the installed LeRobot is from the file: 0.6.1 (Python 3.12,
transformers 5.5.0) computes the same numbers.

From 4.55 to 4.57 transformers' SmolVLM finds the position of all patches but the first of a row or column one too low
in float32 (huggingface/transformers#41190); in bfloat16, as LeRobot runs it, and in 5.23 it does not.

A very small model (its weights are made from their names, so only inputs and outputs are stored), and the names, shapes
and number of parameters of the published size, on the meta device. Nothing is downloaded.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import tempfile
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

OUT = Path(__file__).parent / "data" / "smolvla_golden.npz"
TINY_VLM: dict[str, Any] = {
    "text": {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
    },
    "vision": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 32,
        "patch_size": 8,
    },
    "scale_factor": 2,
}
TINY: dict[str, Any] = {
    "chunk_size": 5,
    "n_action_steps": 3,
    "max_state_dim": 8,
    "max_action_dim": 6,
    "num_vlm_layers": 4,
    "resize_imgs_with_padding": (32, 32),
}
# HuggingFaceTB/SmolVLM2-500M-Video-Instruct; with these, LeRobot's class has the published number of parameters
VLM_500M: dict[str, Any] = {
    "text": {
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "head_dim": 64,
        "vocab_size": 49280,
    },
    "vision": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "image_size": 512,
        "patch_size": 16,
    },
    "scale_factor": 4,
}
FRAME, STATE, ACTION = 16, 5, 3
TIMES = (1.0, 0.37)


def weight(name: str, shape: tuple[int, ...]) -> Any:
    """float32 values that all matter, decided by the parameter's name."""
    draw = np.random.Generator(np.random.Philox(key=[zlib.crc32(name.encode()), 0])).standard_normal(shape)
    if len(shape) == 1:
        return (0.1 * draw + (1.0 if "norm" in name and name.endswith("weight") else 0.0)).astype(np.float32)
    return (0.8 * draw / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def digest(shapes: dict[str, tuple[int, ...]]) -> str:
    """SHA-256 over names and shapes."""
    listed = json.dumps(sorted((name, list(shape)) for name, shape in shapes.items()))
    return hashlib.sha256(listed.encode()).hexdigest()


def reference(vlm: dict[str, Any], **options: Any) -> tuple[Any, Any]:
    """LeRobot's configuration and network for a VLM of these sizes."""
    from lerobot.configs.types import FeatureType, PolicyFeature  # pyright: ignore[reportMissingImports]
    from lerobot.policies.smolvla import modeling_smolvla, smolvlm_with_expert  # pyright: ignore[reportMissingImports]
    from transformers import SmolVLMConfig

    sizes = SmolVLMConfig(
        text_config={"model_type": "llama", "rms_norm_eps": 1e-5, "tie_word_embeddings": False} | vlm["text"],
        vision_config=vlm["vision"],
        scale_factor=vlm["scale_factor"],
        tie_word_embeddings=False,
        pad_token_id=0,  # pyright: ignore[reportCallIssue] (taken among the keyword arguments)
    )
    tokenizer = SimpleNamespace(fake_image_token_id=1, global_image_token_id=2)
    smolvlm_with_expert.AutoConfig = SimpleNamespace(from_pretrained=lambda _: sizes)
    smolvlm_with_expert.AutoProcessor = SimpleNamespace(from_pretrained=lambda _: SimpleNamespace(tokenizer=tokenizer))
    cameras = {f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, FRAME, FRAME)) for name in "ab"}
    config = modeling_smolvla.SmolVLAConfig(
        input_features=cameras | {"observation.state": PolicyFeature(FeatureType.STATE, (STATE,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        device="cpu",
        **options,
    )
    return config, modeling_smolvla.SmolVLAPolicy(config)


def _normalised(stored: dict[str, Any], config: Any) -> Any:
    """The state as LeRobot's processor normalises it; and how its other one turns the chunk back."""
    import torch
    from lerobot.processor import NormalizerProcessorStep, UnnormalizerProcessorStep  # pyright: ignore[reportMissingImports]

    stats = {
        "observation.state": {"mean": stored["state_mean"], "std": stored["state_std"]},
        "action": {"mean": stored["action_mean"], "std": stored["action_std"]},
    }
    both = config.input_features | config.output_features
    steps = [
        kind(both, config.normalization_mapping, stats=stats)
        for kind in (NormalizerProcessorStep, UnnormalizerProcessorStep)
    ]
    state = steps[0]._normalize_observation({"observation.state": torch.from_numpy(stored["state"])}, inverse=False)
    return state["observation.state"], lambda chunk: steps[1]._normalize_action(chunk, inverse=True)


def main() -> None:
    """Make the file, or compare with it."""
    import torch

    draw = np.random.default_rng(0)
    stored: dict[str, Any] = {
        "images": draw.integers(0, 256, (2, 2, FRAME, FRAME, 3), dtype=np.uint8),
        "ids": np.array([[3, 9, 27, 33, 5], [8, 40, 7, 0, 0]]),
        "lengths": np.array([5, 3]),
        "state": draw.normal(size=(2, STATE)).astype(np.float32),
        "noise": draw.normal(size=(2, TINY["chunk_size"], TINY["max_action_dim"])).astype(np.float32),
        "actions": draw.normal(size=(2, TINY["chunk_size"], TINY["max_action_dim"])).astype(np.float32),
        "state_mean": draw.normal(size=STATE).astype(np.float32),
        "action_mean": np.array([0.1, -0.2, 0.0], np.float32),
        "state_std": draw.uniform(0.001, 2, STATE).astype(np.float32),
        "action_std": np.array([0.1, 0.02, 0.3], np.float32),
    }
    config, policy = reference(TINY_VLM, **TINY)
    shapes = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    policy.load_state_dict({name: torch.from_numpy(weight(name, shape)) for name, shape in shapes.items()})
    policy = policy.float().eval()
    model = policy.model
    state, unnormalise = _normalised(stored, config)
    batch = {
        f"observation.images.{name}": torch.from_numpy(stored["images"][:, index]).permute(0, 3, 1, 2) / 255
        for index, name in enumerate("ab")
    } | {"observation.state": state}
    images, image_masks = policy.prepare_images(batch)
    words = torch.arange(5) < torch.from_numpy(stored["lengths"])[:, None]
    inputs = images, image_masks, torch.from_numpy(stored["ids"]), words, policy.prepare_state(batch)
    noise, actions = torch.from_numpy(stored["noise"]), torch.from_numpy(stored["actions"])
    with torch.no_grad():
        prefix, valid, blocks = model.embed_prefix(*inputs)
        read = model.vlm_with_expert.forward
        _, cache = read(
            attention_mask=_mask(valid, blocks),
            position_ids=valid.cumsum(1) - 1,
            inputs_embeds=[prefix, None],
            past_key_values=None,
            use_cache=True,
            **({"fill_kv_cache": True} if "fill_kv_cache" in inspect.signature(read).parameters else {}),
        )
        chunk = model.sample_actions(*inputs, noise=noise)
        stored |= {
            "normalised_state": state,
            "prefix": prefix,
            "chunk": chunk,
            "unnormalised": unnormalise(chunk[..., :ACTION]),
            "velocity": torch.stack([model.denoise_step(valid, cache, noise, torch.full((2,), t)) for t in TIMES]),
            "losses": model.forward(*inputs, actions, noise, torch.tensor([0.9, 0.2])),
        }
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        stored["config"] = (Path(folder) / "config.json").read_text()
    stored["shapes"] = json.dumps(shapes)
    with torch.device("meta"):
        _, published = reference(VLM_500M)
    large = {name: tuple(tensor.shape) for name, tensor in published.state_dict().items()}
    stored["published"] = json.dumps(
        {
            "tensors": len(large),
            "parameters": sum(int(np.prod(shape)) for shape in large.values()),
            "digest": digest(large),
        }
    )
    arrays: dict[str, Any] = {name: np.asarray(value) for name, value in stored.items()}
    if "--check" in sys.argv:
        _compare(arrays)
        return
    np.savez_compressed(OUT, **arrays)
    print(f"{OUT}: {OUT.stat().st_size} bytes; {stored['published']}")


def _compare(arrays: dict[str, Any]) -> None:
    """Print the largest difference of each array from the file's, or whether its text is another."""
    with np.load(OUT) as file:
        for name, value in arrays.items():
            text = value.dtype.kind == "U"
            found = str(value != file[name]) if text else f"{np.abs(value - file[name].astype(value.dtype)).max():.2g}"
            print(f"{name}: {'differs ' if text else ''}{found}")


def _mask(valid: Any, blocks: Any) -> Any:
    from lerobot.policies.smolvla.modeling_smolvla import make_att_2d_masks  # pyright: ignore[reportMissingImports]

    return make_att_2d_masks(valid, blocks)


if __name__ == "__main__":
    main()

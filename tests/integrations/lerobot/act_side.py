"""Run by test_act.py beside LeRobot, in a folder that has `ours`, an ACT that embodied-rl wrote.

Writes one folder of LeRobot's own ACT a case, with what it computed in NAME.npz; and ours.npz, what it makes of `ours`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature  # type: ignore[import-not-found]
from lerobot.policies.act.configuration_act import ACTConfig  # type: ignore[import-not-found]
from lerobot.policies.act.modeling_act import ACTPolicy  # type: ignore[import-not-found]
from lerobot.policies.factory import make_pre_post_processors  # type: ignore[import-not-found]
from lerobot.processor.migrate_policy_normalization import extract_normalization_stats  # type: ignore[import-not-found]
from safetensors.torch import load_file, save_file

ROWS, STATE, ACTION, HORIZON, FRAME = 2, 5, 3, 6, (32, 48)
CAMERAS = ("top", "front")  # not in the alphabet's order
SMALL: dict[str, Any] = {"dim_model": 32, "n_heads": 4, "dim_feedforward": 48, "latent_dim": 8, "chunk_size": HORIZON}
CASES: dict[str, dict[str, Any]] = {
    "mean_std": {"n_action_steps": 4, "n_decoder_layers": 2},
    "min_max": {"n_action_steps": 4, "pre_norm": True, "feedforward_activation": "gelu", "use_vae": False},
    "ensemble": {"n_action_steps": 1, "temporal_ensemble_coeff": 0.01, "n_encoder_layers": 1},
}


def statistics(draw: np.random.Generator) -> dict[str, dict[str, torch.Tensor]]:
    """Of every vector, as a data set has them."""
    found = {}
    shapes = {"observation.state": (STATE,), "action": (ACTION,)} | {
        f"observation.images.{name}": (3, 1, 1) for name in CAMERAS
    }
    for key, shape in shapes.items():
        mean, std = draw.uniform(0.2, 0.6, shape), draw.uniform(0.1, 0.5, shape)
        numbers = {"mean": mean, "std": std, "min": mean - 2 * std, "max": mean + 3 * std}
        found[key] = {name: torch.from_numpy(values.astype(np.float32)) for name, values in numbers.items()}
    return found


def made(name: str, draw: np.random.Generator) -> tuple[Any, Any, Any]:
    """LeRobot's policy of a case with random weights, and its pipelines."""
    torch.manual_seed(0)
    images = {f"observation.images.{name}": PolicyFeature(FeatureType.VISUAL, (3, *FRAME)) for name in CAMERAS}
    mode = NormalizationMode.MIN_MAX if name == "min_max" else NormalizationMode.MEAN_STD
    config = ACTConfig(
        input_features=images | {"observation.state": PolicyFeature(FeatureType.STATE, (STATE,))},
        output_features={"action": PolicyFeature(FeatureType.ACTION, (ACTION,))},
        normalization_mapping=dict.fromkeys(("VISUAL", "STATE", "ACTION"), mode),
        pretrained_backbone_weights=None,
        dropout=0.0,
        device="cpu",
        push_to_hub=False,
        **SMALL,
        **CASES[name],
    )
    policy = ACTPolicy(config)
    for key, tensor in policy.state_dict().items():  # frozen norms would be the identity, and biases nothing
        if tensor.ndim == 1:
            low, high = (0.5, 1.5) if key.endswith(("running_var", "weight")) else (-0.3, 0.3)
            tensor.copy_(torch.from_numpy(draw.uniform(low, high, tensor.shape).astype(np.float32)))
    return policy.eval(), *make_pre_post_processors(config, dataset_stats=statistics(draw))


def seen(draw: np.random.Generator, cameras: tuple[str, ...], frame: tuple[int, int], state: int) -> dict[str, Any]:
    """Observations as numbers: images uint8 [N,V,h,w,3], state."""
    images = draw.integers(0, 256, (ROWS, len(cameras), *frame, 3), dtype=np.uint8)
    return {"images": images, "state": draw.normal(size=(ROWS, state)).astype(np.float32)}


def batch(numbers: dict[str, Any], cameras: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The same as LeRobot has them."""
    pictures = torch.from_numpy(numbers["images"]).permute(0, 1, 4, 2, 3).float() / 255
    found = {f"observation.images.{name}": pictures[:, place] for place, name in enumerate(cameras)}
    return found | {"observation.state": torch.from_numpy(numbers["state"])}


def decided(policy: Any, before: Any, after: Any, numbers: dict[str, Any], cameras: tuple[str, ...]) -> np.ndarray:
    """The chunk in the robot's units."""
    with torch.no_grad():
        return np.asarray(after(policy.predict_action_chunk(before(batch(numbers, cameras)))))


def loss(policy: Any, before: Any, numbers: dict[str, Any]) -> float:
    """Of demonstrations, some of which end within the chunk; the latent's noise is `numbers["noise"]`."""
    policy.train()
    torch.randn_like = lambda _: torch.from_numpy(numbers["noise"])
    wanted = {"action": torch.from_numpy(numbers["actions"]), "action_is_pad": ~torch.from_numpy(numbers["mask"])}
    with torch.no_grad():
        found, _ = policy.forward(before(batch(numbers, CAMERAS) | wanted))
    policy.eval()
    return float(found)


def as_before(folder: Path) -> None:
    """Make `folder` one of before the pipelines: statistics among the weights, as its migration finds them."""
    (stats,) = (load_file(path) for path in folder.glob("policy_preprocessor*normalizer_processor.safetensors"))
    buffers = {}
    for name, tensor in stats.items():
        vector, _, statistic = name.rpartition(".")
        parts = ("normalize_targets", "unnormalize_outputs") if vector == "action" else ("normalize_inputs",)
        for part in parts if statistic in ("mean", "std") else ():
            buffers[f"{part}.buffer_{vector.replace('.', '_')}.{statistic}"] = tensor.clone()
    for path in folder.glob("policy_p*processor*"):
        path.unlink()
    weights = load_file(folder / "model.safetensors") | buffers
    save_file(weights, folder / "model.safetensors")
    assert extract_normalization_stats(weights).keys() == {name.rpartition(".")[0] for name in stats}


def published() -> dict[str, list[int]]:
    """Names and shapes of the paper's sizes, for ALOHA."""
    with torch.device("meta"):
        policy = ACTPolicy(
            ACTConfig(
                input_features={
                    "observation.images.top": PolicyFeature(FeatureType.VISUAL, (3, 480, 640)),
                    "observation.state": PolicyFeature(FeatureType.STATE, (14,)),
                },
                output_features={"action": PolicyFeature(FeatureType.ACTION, (14,))},
                pretrained_backbone_weights=None,
                device="cpu",
                push_to_hub=False,
            )
        )
    return {name: list(tensor.shape) for name, tensor in policy.state_dict().items()}


def main() -> None:
    """See above."""
    for number, name in enumerate(CASES):
        draw = np.random.default_rng(number)
        policy, before, after = made(name, draw)
        for part in (policy, before, after):
            part.save_pretrained(name)
        numbers = seen(draw, CAMERAS, FRAME, STATE) | {
            "actions": draw.normal(size=(ROWS, HORIZON, ACTION)).astype(np.float32),
            "mask": np.arange(HORIZON) < np.array([[HORIZON], [4]]),
            "noise": draw.normal(size=(ROWS, SMALL["latent_dim"])).astype(np.float32),
        }
        numbers["chunk"] = decided(policy, before, after, numbers, CAMERAS)
        if name == "ensemble":
            stream = [seen(draw, CAMERAS, FRAME, STATE) for _ in range(HORIZON + 3)]
            policy.reset()
            acted = [after(policy.select_action(before(batch(one, CAMERAS)))) for one in stream]
            numbers |= {key: np.stack([one[key] for one in stream]) for key in ("images", "state")}
            numbers["acted"] = np.stack([np.asarray(action) for action in acted])
        else:
            numbers["loss"] = loss(policy, before, numbers)
        np.savez(f"{name}.npz", **numbers)
    as_before(Path("ensemble"))
    Path("published.json").write_text(json.dumps(published()))
    policy = ACTPolicy.from_pretrained("ours", strict=True)
    before, after = make_pre_post_processors(policy.config, pretrained_path="ours")
    config = policy.config
    cameras = tuple(key.rpartition(".")[2] for key in config.image_features)
    frame = config.image_features[f"observation.images.{cameras[0]}"].shape[1:]
    numbers = seen(np.random.default_rng(9), cameras, frame, config.robot_state_feature.shape[0])
    numbers["chunk"] = decided(policy, before, after, numbers, cameras)
    np.savez("ours.npz", cameras=np.array(cameras), steps=config.n_action_steps, **numbers)


if __name__ == "__main__":
    main()

"""`sft` begins from every family's published layout, on data of another robot, and what it writes loads and acts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.factory.policies import PublishedOptions, load_policy, load_weights
from embodied_rl.policies.openvla import hf_format
from embodied_rl.policies.pi0 import checkpoint as pi0_checkpoint
from embodied_rl.policies.pi0.hf_format import save_published
from embodied_rl.policies.smolvla import checkpoint as smolvla_checkpoint
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation
from tests.embodied_rl.data.by_hand import make
from tests.policies.pi0_models import tiny_config, tiny_policy
from tests.policies.published_files import (
    oft_head,
    oft_proprio,
    originals,
    published_state,
    tiny_7b,
    write_folder,
    write_oft_folder,
)
from tests.policies.smolvla_models import lerobot_folder, tiny_vlm

LR = 1e-3
ROOM: dict[str, Any] = {"max_action_dim": 8, "max_state_dim": 8, "expert_head_rows": 0}
"""Of a network as published: for robots of up to so many numbers, and with no word to predict."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Published files name their networks and not their widths: these are small."""
    monkeypatch.setattr(hf_format, "openvla_7b", tiny_7b)
    kinds = {"pi0_base": "pi0", "pi05_base": "pi05"}
    monkeypatch.setattr(pi0_checkpoint, "preset", lambda name: replace(tiny_config(kinds[name]), **ROOM))
    monkeypatch.setattr(smolvla_checkpoint, "preset", lambda _: tiny_vlm())


def openvla(folder: Path) -> PublishedOptions:
    write_folder(folder, published_state(originals()))
    return PublishedOptions()


def official_oft(folder: Path) -> PublishedOptions:
    head = {f"module.{name}": tensor for name, tensor in oft_head().items()}
    write_oft_folder(folder, {"action_head": head, "proprio_projector": oft_proprio()})
    return PublishedOptions(variant="official")


def smolvla(folder: Path) -> PublishedOptions:
    lerobot_folder(folder)
    return PublishedOptions()


def pi05(folder: Path) -> PublishedOptions:
    policy = tiny_policy("pi05", **ROOM)
    save_published(policy, folder, "lerobot", ("image", "wrist"), {})
    policy.prompt.tokenizer.save(str(folder / "tokenizer.json"))
    return PublishedOptions(preset="pi05_base", tokenizer=str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    ("kind", "write"), [("openvla", openvla), ("openvla_oft", official_oft), ("smolvla", smolvla), ("pi0", pi05)]
)
def test_a_step_from_published_weights_is_a_small_one(
    kind: str, write: Callable[[Path], PublishedOptions], tmp_path: Path
) -> None:
    """AdamW moves a weight by the learning rate at most: what was loaded is where training began."""
    published, out = tmp_path / "published", tmp_path / "out"
    given = write(published)
    joints = np.random.default_rng(0).uniform(-60, 60, (2, 12, 6)).astype(np.float32)
    data = make(tmp_path / "data", lengths=(6, 6), fps=30, sizes={"front": (32, 40)}, vectors=(joints[0], joints[1]))
    said = [word for name in ("preset", "tokenizer", "variant") if (value := getattr(given, name))
            for word in (f"--{name}", value)]  # fmt: skip
    words = ["sft", str(data), "--checkpoint", str(published), "--policy", kind, *said, "--gripper", "none"]
    loop = ["--steps", "1", "--batch-size", "2", "--warmup", "0", "--lr", str(LR), "--val-samples", "1"]
    assert main([*words, *loop, "--threads", "1", "--out", str(out)]) == 0

    made: Any = load_policy(out)
    assert (made.action_dim, made.config.num_cameras) == (6, 1)
    size = made.config.image_size
    images, state = np.zeros((2, 1, size, size, 3), np.uint8), np.zeros((2, made.config.proprio_dim), np.float32)
    rng = DecisionRng(np.arange(2), np.zeros(2, np.int64))
    actions = made.act(Observation.from_numpy(images, state, ["pick up the soup can"] * 2), rng, "greedy").actions
    assert actions.shape == (2, made.chunk_len, 6)
    assert actions.isfinite().all()

    before = load_weights(published, given.options_for(published, kind)).model.state_dict()
    after = made.model.state_dict()
    moved = {
        name: float((after[name] - tensor).abs().max())
        for name, tensor in before.items()
        if tensor.dtype == torch.float32 and after[name].shape == tensor.shape
    }
    assert len(moved) > len(before) / 2
    trained = [step for step in moved.values() if step]
    assert len(trained) > len(moved) / 2
    assert max(trained) < 1.1 * LR

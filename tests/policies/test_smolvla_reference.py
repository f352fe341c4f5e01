"""SmolVLA against LeRobot's own code: the golden file has its inputs and outputs (make_smolvla_golden.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.flow import PathNoise, sample_path
from embodied_rl.policies.nn.decoder import GradientKV, KVCache
from embodied_rl.policies.pi0.hf_keys import OURS_ALONE, to_published
from embodied_rl.policies.pi0.model import Prefix
from embodied_rl.policies.smolvla import checkpoint, model
from embodied_rl.policies.smolvla.config import nano, preset, smolvla_base
from embodied_rl.policies.smolvla.hf_format import NAMES
from embodied_rl.policies.smolvla.model import CrossAttention, SmolVLAModel
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy
from tests.policies.make_smolvla_golden import TIMES, digest
from tests.policies.smolvla_models import golden, golden_policy, tiny_vlm

GOLDEN = golden()


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmolVLAPolicy:
    monkeypatch.setattr(checkpoint, "preset", lambda _: tiny_vlm())
    return golden_policy(tmp_path / "lerobot")


def _prefix(policy: SmolVLAPolicy, suffixes: int) -> Prefix:
    config = policy.config
    state = F.pad(policy.statistics.state.normalise(GOLDEN["state"]), (0, config.max_state_dim - config.proprio_dim))
    part = policy.model.read_language(GOLDEN["images"], GOLDEN["ids"], GOLDEN["lengths"].tolist(), suffixes=suffixes)
    return policy.model.finish_prefix(part, state)


def _velocities(policy: SmolVLAPolicy) -> Tensor:
    """[T,N,H,D] at the golden times, all in one pass."""
    x = GOLDEN["noise"][:, None].expand(-1, len(TIMES), -1, -1)
    with torch.no_grad():
        velocity, _ = policy.model.velocity(_prefix(policy, len(TIMES)), x, torch.tensor([TIMES] * len(x)))
    return velocity.transpose(0, 1)


def test_the_prefix_is_lerobots(policy: SmolVLAPolicy) -> None:
    state = policy.statistics.state.normalise(GOLDEN["state"])
    torch.testing.assert_close(state, GOLDEN["normalised_state"], rtol=1e-6, atol=0)
    with torch.no_grad():
        rest = policy.model.embed_prefix(GOLDEN["images"], GOLDEN["ids"])
        token = policy.model.state_proj(F.pad(state, (0, 3)))
    torch.testing.assert_close(torch.cat([rest, token[:, None]], dim=1), GOLDEN["prefix"], rtol=0, atol=1e-5)


def test_velocities_are_lerobots_with_its_cache_and_without(policy: SmolVLAPolicy) -> None:
    """LeRobot's training pass has no cache and puts prefix and actions through each layer together."""
    torch.testing.assert_close(_velocities(policy), GOLDEN["velocity"], rtol=0, atol=1e-5)
    noise, actions, time = GOLDEN["noise"], GOLDEN["actions"], torch.tensor([0.9, 0.2])
    blend = time[:, None, None]
    x = blend * noise + (1 - blend) * actions
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            prefix = _prefix(policy, 1)
            assert isinstance(prefix.cache, GradientKV if grad else KVCache)
            velocity, _ = policy.model.velocity(prefix, x[:, None], time[:, None])
        losses = (velocity[:, 0] - (noise - actions)).square()
        torch.testing.assert_close(losses, GOLDEN["losses"], rtol=1e-5, atol=1e-5)


def test_sampled_chunks_are_lerobots(policy: SmolVLAPolicy) -> None:
    start = GOLDEN["noise"]
    noise = PathNoise(start, torch.zeros_like(start)[:, None], torch.zeros(len(start), dtype=torch.int64))
    with torch.no_grad():
        prefix = _prefix(policy, 1)
        chunk = sample_path(lambda x, i: policy.denoise_step(prefix, x, i), noise, policy.flow, explore=False).action
    assert policy.flow.num_inference_steps == 10
    torch.testing.assert_close(chunk, GOLDEN["chunk"], rtol=0, atol=1e-5)
    actions = policy.statistics.action.unnormalise(chunk[..., :3])
    torch.testing.assert_close(actions, GOLDEN["unnormalised"], rtol=0, atol=1e-5)


def _of_the_layer_before(monkeypatch: pytest.MonkeyPatch, policy: SmolVLAPolicy) -> None:
    read = KVCache.read
    monkeypatch.setattr(KVCache, "read", lambda self, layer: read(self, layer - 1))


def _both_ways(monkeypatch: pytest.MonkeyPatch, policy: SmolVLAPolicy) -> None:
    monkeypatch.setattr(SmolVLAModel, "causal_actions", False)


def _positions_that_go_on(monkeypatch: pytest.MonkeyPatch, policy: SmolVLAPolicy) -> None:
    factors = model.rope_factors
    monkeypatch.setattr(model, "rope_factors", lambda place, *rest: factors(place + 12, *rest))


def _no_cross_attention(monkeypatch: pytest.MonkeyPatch, policy: SmolVLAPolicy) -> None:
    for layer in policy.model.expert.layers:
        if isinstance(layer.self_attn, CrossAttention):
            monkeypatch.setattr(layer.self_attn, "forward", lambda queries, *_: torch.zeros_like(queries))


def _padding_is_read(monkeypatch: pytest.MonkeyPatch, policy: SmolVLAPolicy) -> None:
    GOLDEN["lengths"].clamp_(min=5)


def _angles_of_the_language_model(monkeypatch: pytest.MonkeyPatch, policy: SmolVLAPolicy) -> None:
    """SmolVLM2 was trained with base 100,000; LeRobot takes 10,000."""
    language = policy.model.language
    language.config = replace(language.config, rope_theta=1e5)


def _blocks_backwards(monkeypatch: pytest.MonkeyPatch, policy: SmolVLAPolicy) -> None:
    shuffle = model.pixel_shuffle
    monkeypatch.setattr(model, "pixel_shuffle", lambda patches, size: shuffle(patches, size).flip(1))


BROKEN: list[Callable[[pytest.MonkeyPatch, SmolVLAPolicy], None]] = [
    _of_the_layer_before,
    _both_ways,
    _positions_that_go_on,
    _no_cross_attention,
    _padding_is_read,
    _angles_of_the_language_model,
    _blocks_backwards,
]


@pytest.mark.parametrize("break_it", BROKEN)
def test_the_golden_file_tells_a_broken_network(
    break_it: Callable[..., None], policy: SmolVLAPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GOLDEN, "lengths", GOLDEN["lengths"].clone())
    break_it(monkeypatch, policy)
    assert (_velocities(policy) - GOLDEN["velocity"]).abs().max() > 1e-3


def test_blocks_of_patches_are_transformers() -> None:
    """Its connector's reshaping, written out patch by patch."""
    patches = torch.arange(16)[None, :, None] * torch.ones(1, 16, 3)
    blocks = model.pixel_shuffle(patches, 2)
    assert blocks[0].view(4, 4, 3)[..., 0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


def test_the_published_model() -> None:
    """Names, shapes and number of parameters of LeRobot's class at the published size, on the meta device."""
    with torch.device("meta"):
        network = SmolVLAModel(smolvla_base())
    shapes = {name: tuple(tensor.shape) for name, tensor in to_published(network.state_dict(), NAMES).items()}
    published: dict[str, Any] = GOLDEN["published"]
    assert (len(shapes), sum(math.prod(shape) for shape in shapes.values())) == (500, 450_046_176)
    assert (published["tensors"], published["parameters"]) == (500, 450_046_176)
    assert digest(shapes) == published["digest"]
    ours = sum(p.numel() for name, p in network.named_parameters() if not name.startswith(OURS_ALONE))
    assert ours == 450_046_176
    assert (smolvla_base().visual_tokens, smolvla_base().expert.dim, smolvla_base().expert.mlp_dim) == (128, 720, 2048)


def test_the_small_preset() -> None:
    with torch.device("meta"):
        count = sum(p.numel() for p in SmolVLAModel(preset("nano")).parameters())
    assert 0.8e6 < count < 1.5e6
    assert (nano().image_size, nano().visual_tokens) == (64, 32)
    policy = SmolVLAPolicy.fresh(nano(), ["open it"])
    noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    with torch.no_grad():  # fresh patches must not drown in the residual stream what the layers add
        assert policy.model.embed_images(torch.from_numpy(noise)).std() < 2

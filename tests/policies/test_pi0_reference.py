"""pi0 and pi0.5 against transformers' PI0 and against a slow reference that shares nothing between denoising steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.flow import FlowSettings, PathNoise, sample_path
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.hf_format import save_published
from embodied_rl.policies.pi0.hf_keys import to_published
from embodied_rl.policies.pi0.policy import Pi0Policy
from tests.policies.pi0_models import KINDS, observation, tensors, tiny_policy

STEPS = 10


def _sample(policy: Pi0Policy, rows: int) -> tuple[Tensor, Tensor]:
    """Start of the paths and where the ODE takes them, float32 [N,H,D]."""
    config = policy.config
    start = torch.randn(rows, config.horizon, config.max_action_dim, generator=torch.Generator().manual_seed(5))
    noise = PathNoise(start, torch.zeros_like(start)[:, None], torch.zeros(rows, dtype=torch.int64))
    with torch.no_grad():
        prefix = policy.read_prefix(*tensors(observation(rows)), 1)
        path = sample_path(lambda x, i: policy.denoise_step(prefix, x, i), noise, policy.flow, explore=False)
    return start, path.action


def _prompt(policy: Pi0Policy, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Prompt ids, lengths, and the state padded to the model's width."""
    config, obs = policy.config, observation(rows)
    state = policy.statistics.state.normalise(obs.proprio)
    words = state.numpy() if config.state_input == "prompt" else None
    ids, lengths = policy.prompt.batch(obs.instruction, words)
    return torch.from_numpy(ids), torch.tensor(lengths), F.pad(state, (0, config.max_state_dim - config.proprio_dim))


def _transformers(policy: Pi0Policy, folder: Path) -> Any:
    """transformers' PI0, which reads our LeRobot file with its own key map."""
    save_published(policy, folder, "lerobot", ("a", "b"), {})
    (folder / "config.json").unlink()
    config, vlm, expert = policy.config, policy.config.decoder, policy.config.expert
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 8, "num_hidden_layers": 3}
    text = {"model_type": "gemma", "vocab_size": 320, "hidden_size": vlm.dim, "intermediate_size": vlm.mlp_dim}
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
    reference = transformers.PI0Config(
        vlm_config={
            "model_type": "paligemma",
            "text_config": text | heads,
            "vision_config": vision,
            "projection_dim": vlm.dim,
            "image_token_id": 320,
        },
        dit_config={
            "model_type": "gemma",
            "hidden_size": expert.dim,
            "intermediate_size": expert.mlp_dim,
            "vocab_size": config.expert_head_rows,
        }
        | heads,
        chunk_size=config.horizon,
        max_state_dim=config.max_state_dim,
        max_action_dim=config.max_action_dim,
    )
    return transformers.PI0ForConditionalGeneration.from_pretrained(folder, config=reference).eval()


def test_sampling_equals_transformers(tmp_path: Path) -> None:
    policy = tiny_policy(flow=FlowSettings(num_inference_steps=STEPS), expert_head_rows=320)
    start, action = _sample(policy, 3)
    reference = _transformers(policy, tmp_path / "pi0")
    ids, lengths, state = _prompt(policy, 3)
    patches = torch.full((3, 2 * policy.config.vision.num_patches), 320)
    valid = torch.arange(ids.shape[1]) < lengths[:, None]
    pixels = observation(3).images.permute(0, 1, 4, 2, 3).float() / 127.5 - 1.0
    theirs = reference.sample_actions(
        state=state,
        input_ids=torch.cat([patches, ids], dim=1),
        pixel_values=pixels,
        noise=start,
        attention_mask=torch.cat([torch.ones_like(patches, dtype=torch.bool), valid], dim=1),
        pixel_attention_mask=torch.ones(3, 2, dtype=torch.bool),
        num_steps=STEPS,
    )
    assert (theirs - start).abs().max() > 0.1
    torch.testing.assert_close(action, theirs, rtol=0, atol=1e-5)


class Reference:
    """Both networks in one attention over every token at once, as openpi trains; float64, one row at a time."""

    def __init__(self, policy: Pi0Policy) -> None:
        self.config: Pi0ModelConfig = policy.config
        self.weights = {name: tensor.double() for name, tensor in to_published(policy.model.state_dict()).items()}

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def tower(self, pixels: Tensor) -> Tensor:
        """[3,28,28] -> [4, dim of the language model]."""
        base = "paligemma_with_expert.paligemma.model.vision_tower.vision_model."
        kernel, bias = (self.weights[f"{base}embeddings.patch_embedding.{part}"] for part in ("weight", "bias"))
        x = F.conv2d(pixels[None], kernel, bias, stride=14)[0].flatten(1).T
        x = x + self.weights[f"{base}embeddings.position_embedding.weight"]

        def norm(x: Tensor, name: str) -> Tensor:
            return F.layer_norm(x, (16,), self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], 1e-6)

        for layer in range(2):
            at = f"{base}encoder.layers.{layer}."
            h = norm(x, f"{at}layer_norm1")
            q, k, v = (self.linear(h, f"{at}self_attn.{part}_proj").view(4, 2, 8).transpose(0, 1) for part in "qkv")
            mixed = ((q @ k.transpose(1, 2) / math.sqrt(8)).softmax(-1) @ v).transpose(0, 1).reshape(4, 16)
            x = x + self.linear(mixed, f"{at}self_attn.out_proj")
            h = self.linear(norm(x, f"{at}layer_norm2"), f"{at}mlp.fc1")
            x = x + self.linear(F.gelu(h, approximate="tanh"), f"{at}mlp.fc2")
        return self.linear(
            norm(x, f"{base}post_layernorm"), "paligemma_with_expert.paligemma.model.multi_modal_projector.linear"
        )

    def norm(self, x: Tensor, name: str, condition: Tensor | None) -> tuple[Tensor, Tensor | float]:
        normed = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        if f"{name}.weight" in self.weights:
            return normed * (1 + self.weights[f"{name}.weight"]), 1.0
        assert condition is not None
        scale, shift, gate = self.linear(condition, f"{name}.dense").chunk(3)
        return normed * (1 + scale) + shift, gate

    def velocity(self, images: Tensor, ids: Tensor, state: Tensor, x_t: Tensor, time: float) -> Tensor:
        """One row: images [V,3,28,28], ids [T] without padding, x_t [H,D] -> [H,D]."""
        config, width = self.config, self.config.expert.dim
        embedding = self.weights["paligemma_with_expert.paligemma.lm_head.weight"]
        prefix = torch.cat([*(self.tower(image) for image in images), embedding[ids] * math.sqrt(config.decoder.dim)])
        # float32 as in JAX and transformers: at the shortest period its rounding alone is 1e-4 radians
        periods = 4e-3 * 1000 ** torch.linspace(0, 1, width // 2, dtype=torch.float32)
        angle = torch.tensor(time, dtype=torch.float32) * (1 / periods * 2 * math.pi)
        features = torch.cat([angle.sin(), angle.cos()]).double()
        tokens, condition = self.linear(x_t, "action_in_proj"), None
        if config.adaptive:
            condition = F.silu(self.linear(F.silu(self.linear(features, "time_mlp_in")), "time_mlp_out"))
        else:
            tokens = torch.cat([tokens, features.expand(len(tokens), -1)], dim=1)
            tokens = self.linear(F.silu(self.linear(tokens, "action_time_mlp_in")), "action_time_mlp_out")
        block = [0] * len(prefix) + [1] * len(tokens)
        if config.state_input == "token":
            tokens = torch.cat([self.linear(state, "state_proj")[None], tokens])
            block = [0] * len(prefix) + [1] + [2] * (len(tokens) - 1)
        hidden = self.layers(prefix, tokens, torch.tensor(block), condition)
        return self.linear(hidden[-config.horizon :], "action_out_proj")

    def layers(self, x: Tensor, y: Tensor, block: Tensor, condition: Tensor | None) -> Tensor:
        streams = {
            "paligemma_with_expert.paligemma.model.language_model": x,
            "paligemma_with_expert.gemma_expert.model": y,
        }
        sees = block[None, :] <= block[:, None]
        turn = torch.arange(len(block))[:, None] * 10000 ** -(torch.arange(0, 8, 2, dtype=torch.float64) / 8)
        for layer in range(3):
            at = {base: f"{base}.layers.{layer}." for base in streams}
            normed = {b: self.norm(s, f"{at[b]}input_layernorm", condition) for b, s in streams.items()}
            q, k, v = (
                torch.cat([self.linear(normed[b][0], f"{at[b]}self_attn.{part}_proj") for b in streams])
                .unflatten(1, (-1, 8))
                .transpose(0, 1)
                for part in "qkv"
            )
            q, k = _turn(q, turn), _turn(k, turn)
            score = (q @ k.transpose(1, 2) / math.sqrt(8)).masked_fill(~sees, -math.inf)
            mixed = (score.softmax(-1) @ v).transpose(0, 1).flatten(1).split([len(x), len(y)])
            for base, part in zip(streams, mixed, strict=True):
                s = streams[base] + self.linear(part, f"{at[base]}self_attn.o_proj") * normed[base][1]
                h, gate = self.norm(s, f"{at[base]}post_attention_layernorm", condition)
                h = F.gelu(self.linear(h, f"{at[base]}mlp.gate_proj"), approximate="tanh") * self.linear(
                    h, f"{at[base]}mlp.up_proj"
                )
                streams[base] = s + self.linear(h, f"{at[base]}mlp.down_proj") * gate
        base = "paligemma_with_expert.gemma_expert.model"
        return self.norm(streams[base], f"{base}.norm", condition)[0]


def _turn(x: Tensor, angle: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], dim=-1)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_sampling_equals_the_slow_reference(kind: str) -> None:
    policy = tiny_policy(kind, FlowSettings(num_inference_steps=STEPS))
    start, action = _sample(policy, 3)
    reference = Reference(policy)
    ids, lengths, state = _prompt(policy, 3)
    pixels = observation(3).images.permute(0, 1, 4, 2, 3).double() / 127.5 - 1.0
    for row in range(3):
        x = start[row].double()
        for step in range(STEPS):
            prompt = ids[row, : lengths[row]]
            x = x - reference.velocity(pixels[row], prompt, state[row].double(), x, 1 - step / STEPS) / STEPS
        assert (x - start[row]).abs().max() > 0.1
        torch.testing.assert_close(action[row].double(), x, rtol=0, atol=1e-5)


def test_several_steps_in_one_pass_equal_single_passes() -> None:
    """The packed pass of `evaluate` against one denoising step at a time, with rows of different prompt length."""
    for kind in KINDS:
        policy = tiny_policy(kind)
        config = policy.config
        x = torch.randn(3, 4, config.horizon, config.max_action_dim)
        step = torch.tensor([[0, 3, 1, 1], [2, 2, 0, 1], [3, 0, 1, 2]])
        with torch.no_grad():
            packed = policy.denoise_step(policy.read_prefix(*tensors(observation(3)), 4), x, step)
            for m in range(4):
                prefix = policy.read_prefix(*tensors(observation(3)), 1)
                single = policy.denoise_step(prefix, x[:, m : m + 1], step[:, m : m + 1])
                for one, many in zip(single, packed, strict=True):
                    torch.testing.assert_close(one[:, 0], many[:, m], rtol=0, atol=1e-5)

"""The vision tower and the decoder against independent implementations in transformers."""

from __future__ import annotations

import pytest
import torch
import transformers

from embodied_rl.policies.nn.decoder import CausalLM, DecoderConfig, KVCache
from embodied_rl.policies.nn.linear import Linear
from embodied_rl.policies.nn.vision import ViT, ViTConfig, normalise_images


def _randomise(module: torch.nn.Module, seed: int) -> None:
    """Give every parameter, also those that start at zero or one, a value that matters."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)


def _dino_keys(vit: ViT) -> dict[str, torch.Tensor]:
    """Our parameters under the names of transformers' Dinov2WithRegisters."""
    state, dim = vit.state_dict(), vit.config.dim
    out = {
        "embeddings.cls_token": state["cls_token"],
        "embeddings.register_tokens": state["reg_token"],
        "embeddings.mask_token": torch.zeros(1, dim),
        "embeddings.position_embeddings": torch.cat([torch.zeros(1, 1, dim), state["pos_embed"]], dim=1),
        "embeddings.patch_embeddings.projection.weight": state["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": state["patch_embed.proj.bias"],
        "layernorm.weight": state["norm.weight"],
        "layernorm.bias": state["norm.bias"],
    }
    for i in range(vit.config.depth):
        ours, theirs = f"blocks.{i}.", f"encoder.layer.{i}."
        for kind in ("weight", "bias"):
            qkv = state[f"{ours}attn.qkv.{kind}"].chunk(3)
            for part, value in zip(("q_proj", "k_proj", "v_proj"), qkv, strict=True):
                out[f"{theirs}attention.{part}.{kind}"] = value
            out[f"{theirs}attention.o_proj.{kind}"] = state[f"{ours}attn.proj.{kind}"]
            for name in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
                out[f"{theirs}{name}.{kind}"] = state[f"{ours}{name}.{kind}"]
        for index in (1, 2):
            out[f"{theirs}layer_scale{index}.lambda1"] = state[f"{ours}ls{index}.scale_factor"]
    return out


def _dino(unused_blocks: int) -> ViT:
    config = ViTConfig(
        image_size=56,
        patch_size=14,
        dim=32,
        depth=3,
        heads=2,
        mlp_dim=64,
        class_token=True,
        register_tokens=4,
        layer_scale=0.5,
        unused_blocks=unused_blocks,
        final_norm=True,
    )
    vit = ViT(config)
    _randomise(vit, 0)
    return vit


@pytest.mark.parametrize("unused_blocks", [0, 1])
def test_vit_equals_transformers_dinov2(unused_blocks: int) -> None:
    vit = _dino(unused_blocks)
    reference = transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=2,
            mlp_ratio=2,
            image_size=56,
            patch_size=14,
            num_register_tokens=4,
            hidden_act="gelu",
            layer_norm_eps=1e-6,
        )
    ).eval()
    reference.load_state_dict(_dino_keys(vit))
    images = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        hidden = reference(images, output_hidden_states=True).hidden_states[3 - unused_blocks]
        torch.testing.assert_close(vit(images), hidden[:, 5:], rtol=1e-5, atol=1e-5)


def _llama(kv_heads: int) -> tuple[CausalLM, torch.nn.Module]:
    config = DecoderConfig(
        vocab_size=50, dim=32, layers=3, heads=4, kv_heads=kv_heads, head_dim=8, mlp_dim=48, norm_eps=1e-5
    )
    model = CausalLM(config)
    _randomise(model, 1)
    reference = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            head_dim=8,
            intermediate_size=48,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            rope_theta=10000.0,  # pyright: ignore[reportCallIssue] (taken among the keyword arguments)
        )
    ).eval()
    reference.load_state_dict(model.state_dict())
    return model, reference


def test_images_are_normalised_as_published() -> None:
    """(x / 255 - mean) / std of each colour, rows and columns where they were, the pixels untouched."""
    config = ViTConfig(8, 4, 16, 1, 1, 16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))
    images = torch.randint(0, 256, (3, 8, 8, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    before = images.clone()
    out = normalise_images(images, config, torch.float32)
    for colour in range(3):
        expected = (images[..., colour].double() / 255 - config.mean[colour]) / config.std[colour]
        torch.testing.assert_close(out[:, colour].double(), expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(images, before)
    assert normalise_images(images, config, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_decoder_equals_transformers_llama(kv_heads: int) -> None:
    model, reference = _llama(kv_heads)
    ids = torch.randint(0, 50, (2, 9))
    with torch.no_grad():
        hidden = model.model(model.model.embed_tokens(ids), model.model.rope(9, ids.device))
        torch.testing.assert_close(model.lm_head(hidden), reference(ids).logits, rtol=1e-5, atol=1e-5)


def test_wrong_rope_is_seen() -> None:
    model, reference = _llama(4)
    ids = torch.randint(0, 50, (1, 9))
    with torch.no_grad():
        rope = model.model.rope(10, ids.device).at(torch.arange(9) * 2 % 10)
        wrong = model.lm_head(model.model(model.model.embed_tokens(ids), rope))
        assert (wrong - reference(ids).logits).abs().max() > 1e-2


def test_cached_equals_uncached() -> None:
    model, _ = _llama(2)
    decoder, ids = model.model, torch.randint(0, 50, (3, 8))
    rope = decoder.rope(8, ids.device)
    with torch.no_grad():
        x = decoder.embed_tokens(ids)
        whole = decoder(x, rope)
        cache = KVCache(decoder.config, 3, 8, x)
        parts = [decoder(x[:, :5], rope.at(torch.arange(5)), cache=cache)]
        parts += [decoder(x[:, t : t + 1], rope.at(torch.tensor([t])), cache=cache) for t in range(5, 8)]
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-5, atol=1e-5)


def test_cache_refuses_gradients() -> None:
    model, _ = _llama(4)
    x = model.model.embed_tokens(torch.zeros(1, 2, dtype=torch.long))
    cache = KVCache(model.model.config, 1, 2, x)
    with pytest.raises(RuntimeError, match="no_grad"):
        model.model(x, model.model.rope(2, x.device), cache=cache)


def test_reading_some_tokens_equals_reading_them_all() -> None:
    model, _ = _llama(2)
    decoder, x = model.model, torch.randn(3, 8, 32)
    read = torch.tensor([[0, 3], [7, 2], [5, 5]])
    rope = decoder.rope(8, x.device)
    with torch.no_grad():
        whole = decoder(x, rope)
        part = decoder(x, rope, read=read)
    torch.testing.assert_close(part, whole[torch.arange(3)[:, None], read], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_and_its_gradients_equal_torchs(rows: int, bias: bool) -> None:
    ours = Linear(24, 40, bias=bias)
    reference = torch.nn.Linear(24, 40, bias=bias)
    reference.load_state_dict(ours.state_dict())
    x = torch.randn(3, 24, rows).transpose(1, 2).requires_grad_()
    other = x.detach().clone().requires_grad_()
    weight = torch.randn(3, rows, 40)
    ours(x).mul(weight).sum().backward()
    reference(other).mul(weight).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, rtol=1e-5, atol=1e-5)
    for one, two in zip(ours.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-4)
    ours.requires_grad_(False)
    ours(x).sum().backward()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), reference(x), rtol=1e-5, atol=1e-5)

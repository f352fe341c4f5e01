"""Decoding on a CPU against the decoder's own modules, and against what GPUs run."""

from __future__ import annotations

import pytest
import torch

from embodied_rl.policies.cpu_decode import CpuDecoder
from embodied_rl.policies.decoder import Decoder, DecoderConfig, KVCache, Rope
from embodied_rl.policies.fused_decode import FusedDecoder, complex_rotation

PROMPT, STEPS = 9, 4
LENGTHS = torch.tensor([9, 4, 7, 1, 9])


def _decoder(heads: int, kv_heads: int) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(0, dim=24, layers=2, heads=heads, kv_heads=kv_heads, head_dim=8, mlp_dim=40))
    with torch.no_grad():
        for parameter in decoder.parameters():  # norms start at one
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return decoder


def _mask(t: int) -> torch.Tensor:
    slot = torch.arange(PROMPT + t + 1)
    return ((slot < LENGTHS[:, None]) | (slot >= PROMPT))[:, None, None]


@torch.no_grad()
def _run(decoder: Decoder, way: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of every step, and the keys of the cache afterwards, with one of three decoders."""
    torch.manual_seed(1)
    rows, config = len(LENGTHS), decoder.config
    cache = KVCache(config, rows, PROMPT + STEPS, torch.empty(0))
    table = decoder.rope(PROMPT + STEPS, torch.device("cpu"))
    decoder(torch.randn(rows, PROMPT, config.dim), table.first(PROMPT), cache=cache)
    rope = table.at(LENGTHS[:, None] + torch.arange(STEPS))
    cpu = CpuDecoder(decoder, cache, rope, LENGTHS) if way == "cpu" else None
    fused = FusedDecoder(decoder, cache) if way == "fused" else None
    rotation = complex_rotation(rope)
    found = []
    for t, x in enumerate(torch.randn(STEPS, rows, config.dim)):
        if cpu is not None:
            found.append(cpu.step(x, t))
        elif fused is not None:
            found.append(fused.step(x, rotation[:, t : t + 1], _mask(t)))
        else:
            here = Rope(rope.cos[:, t : t + 1], rope.sin[:, t : t + 1])
            found.append(decoder(x[:, None], here, _mask(t), cache)[:, 0])
    return torch.stack(found), cache.keys


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
def test_all_ways_to_decode_agree(heads: int, kv_heads: int) -> None:
    decoder = _decoder(heads, kv_heads)
    expected, keys = _run(decoder, "modules")
    for way in ("cpu", "fused"):
        torch.testing.assert_close(_run(decoder, way)[0], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(_run(decoder, "cpu")[1], keys, rtol=1e-5, atol=1e-5)


def test_padding_is_never_read() -> None:
    decoder = _decoder(2, 2)
    torch.manual_seed(1)
    cache = KVCache(decoder.config, len(LENGTHS), PROMPT + 1, torch.empty(0))
    table = decoder.rope(PROMPT + 1, torch.device("cpu"))
    with torch.no_grad():
        decoder(torch.randn(len(LENGTHS), PROMPT, 24), table.first(PROMPT), cache=cache)
        for row, length in enumerate(LENGTHS.tolist()):
            cache.keys[:, row, :, length:PROMPT] = torch.nan
            cache.values[:, row, :, length:PROMPT] = torch.nan
        out = CpuDecoder(decoder, cache, table.at(LENGTHS[:, None]), LENGTHS).step(torch.randn(len(LENGTHS), 24), 0)
    assert torch.isfinite(out).all()


def test_nothing_hides_a_number_that_is_none() -> None:
    """Weights that went wrong must show in the log-probs, where the learner looks for them."""
    decoder = _decoder(2, 2)
    with torch.no_grad():
        decoder.layers[1].self_attn.q_proj.weight[0, 0] = torch.nan  # type: ignore[union-attr, index]
    assert torch.isnan(_run(decoder, "cpu")[0]).all(dim=-1).all()

"""The compiled loops of decoding on a CPU, each against torch, and together against the decoder's own modules."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit
from torch.nn import functional as F

from embodied_rl.policies import cpu_decode
from embodied_rl.policies.cpu_decode import CpuDecoder
from embodied_rl.policies.decoder import Decoder, DecoderConfig, KVCache, Rope, rotate
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


def test_exp_is_exact_to_two_units_in_the_last_place() -> None:
    @njit
    def run(x: np.ndarray, out: np.ndarray) -> None:
        for i in range(len(x)):
            out[i] = cpu_decode._exp(x[i])

    x = np.linspace(-86.9, 87.9, 200_001).astype(np.float32)
    out = np.empty_like(x)
    run(x, out)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(out - exact) / np.spacing(exact.astype(np.float32))).max() < 2
    odd = np.array([-1e30, -np.inf, np.nan, 0.0, 1e30], np.float32)
    run(odd, out[:5])
    assert out[0] == out[1] < 1e-37
    assert np.isnan(out[2])
    assert out[3] == 1
    assert np.isfinite(out[4])


@pytest.mark.parametrize("rows", [1, 5])
def test_loops_equal_torch(rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 14, generator=generator) * 4
    out = torch.empty(rows, 14)
    cpu_decode.normalise(x.numpy(), 1e-6, out.numpy())
    torch.testing.assert_close(out, F.rms_norm(x, (14,), None, 1e-6))
    half = torch.empty(rows, 7)
    cpu_decode.swiglu(x.numpy(), half.numpy())
    torch.testing.assert_close(half, F.silu(x[:, :7]) * x[:, 7:])


def test_nothing_hides_a_number_that_is_none() -> None:
    """Weights that went wrong must show in the log-probs, where the learner looks for them."""
    decoder = _decoder(2, 2)
    with torch.no_grad():
        decoder.layers[1].self_attn.q_proj.weight[0, 0] = torch.nan  # type: ignore[union-attr, index]
    assert torch.isnan(_run(decoder, "cpu")[0]).all(dim=-1).all()
    gate = np.array([[np.nan, 1.0, 2.0, 3.0]], np.float32)
    out = np.empty((1, 2), np.float32)
    cpu_decode.swiglu(gate, out)
    assert np.isnan(out[0, 0])
    assert np.isfinite(out[0, 1])


def test_a_token_is_rotated_as_the_prompt_is() -> None:
    torch.manual_seed(2)
    x, rope = torch.randn(3, 2, 1, 8), _decoder(2, 2).rope(5, torch.device("cpu"))
    keys, values = (np.zeros((3, 2, 1, 8), np.float32) for _ in range(2))
    qkv = torch.cat([x.flatten(1)] * 3, dim=1).numpy()
    cos, sin = (part[[4, 4, 4], :4].numpy() for part in (rope.cos, rope.sin))
    none = np.zeros(3, np.int64)
    cpu_decode.attend(qkv, cos, sin, keys, values, none, 0, 0, np.empty((3, 16), np.float32))
    torch.testing.assert_close(torch.from_numpy(keys), rotate(x, rope.at(torch.tensor([4]))))
    torch.testing.assert_close(torch.from_numpy(values), x)

"""Decoding on a CPU against the decoder's own modules."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.policies.cpu import decode
from embodied_rl.policies.nn.decoder import Decoder, DecoderConfig, KVCache, Rope

PROMPT, COUNT, BINS, DIM = 9, 5, 50, 24
LENGTHS = torch.tensor([9, 4, 7, 1, 9])


def _decoder(heads: int, kv_heads: int) -> Decoder:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(0, dim=DIM, layers=2, heads=heads, kv_heads=kv_heads, head_dim=8, mlp_dim=40))
    with torch.no_grad():
        for parameter in decoder.parameters():  # norms start at one
            parameter.copy_(torch.randn(parameter.shape) * 0.3)
    return decoder


class _Start:
    """Prompts of `lengths` tokens in a cache, and random tables of tokens."""

    def __init__(self, decoder: Decoder, lengths: Tensor) -> None:
        torch.manual_seed(1)
        rows, cpu = len(lengths), torch.device("cpu")
        self.decoder, self.lengths = decoder, lengths
        self.cache = KVCache(decoder.config, rows, PROMPT + COUNT - 1, torch.empty(0))
        table = decoder.rope(PROMPT + COUNT, cpu)
        with torch.no_grad():
            prompt, last = torch.randn(rows, PROMPT, DIM), lengths[:, None] - 1
            self.hidden = decoder(prompt, table.first(PROMPT), cache=self.cache, read=last)[:, 0]
        self.rope = table.at(lengths[:, None] + torch.arange(COUNT - 1))
        self.head, self.embedding, self.slots = (torch.randn(size, DIM) for size in (BINS, BINS, COUNT))
        self.uniform = torch.rand(rows, COUNT)

    def decode(self, uniform: Tensor | None, temperature: float, slots: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return decode.decode(
                self.decoder,
                self.head,
                self.embedding,
                slots,
                self.hidden,
                self.cache,
                self.rope,
                self.lengths,
                uniform,
                temperature,
            )

    @torch.no_grad()
    def forced(self, tokens: Tensor, slots: Tensor | None) -> Tensor:
        """Logits [N, COUNT, BINS] of the steps that decoded `tokens`, through the decoder's modules."""
        states = [self.hidden]
        for t in range(1, COUNT):
            x = self.embedding[tokens[:, t - 1]]
            x = x if slots is None else x + slots[t]
            here = Rope(self.rope.cos[:, t - 1 : t], self.rope.sin[:, t - 1 : t])
            states.append(self.decoder(x[:, None], here, self._mask(t), self.cache)[:, 0])
        return torch.stack(states, dim=1) @ self.head.T

    def _mask(self, t: int) -> Tensor:
        slot = torch.arange(PROMPT + t)
        return ((slot < self.lengths[:, None]) | (slot >= PROMPT))[:, None, None]


def _expected(logits: Tensor, uniform: Tensor | None, temperature: float) -> Tensor:
    if uniform is None:
        return logits.argmax(dim=-1)
    cumulative = F.softmax(logits.double() / temperature, dim=-1).cumsum(dim=-1)
    return (cumulative <= uniform[..., None].double()).sum(dim=-1).clamp(max=BINS - 1)


@pytest.mark.parametrize(("heads", "kv_heads"), [(2, 2), (4, 2), (3, 1)])
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("added", [True, False])
@pytest.mark.parametrize("rows", [5, 16, 37])
def test_it_decodes_as_the_modules_do(heads: int, kv_heads: int, sampled: bool, added: bool, rows: int) -> None:
    lengths = LENGTHS.repeat(8)[:rows]
    start = _Start(_decoder(heads, kv_heads), lengths)
    uniform, slots = start.uniform if sampled else None, start.slots if added else None
    tokens, log_prob = start.decode(uniform, 0.7, slots)
    keys, values = start.cache.keys.clone(), start.cache.values.clone()
    again = _Start(start.decoder, lengths)
    logits = again.forced(tokens, slots)
    assert torch.equal(tokens, _expected(logits, uniform, 0.7))
    chosen = F.log_softmax(logits / 0.7, dim=-1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(log_prob, chosen, rtol=1e-5, atol=1e-5)
    for found, expected in ((keys, again.cache.keys), (values, again.cache.values)):
        torch.testing.assert_close(found[..., PROMPT:, :], expected[..., PROMPT:, :], rtol=1e-5, atol=1e-5)


def test_matrices_too_large_for_one_product_are_cut() -> None:
    torch.manual_seed(0)
    matrix, x = torch.randn(1000, 250), torch.randn(250, 16)
    assert matrix.numel() * 16 > 3 * decode._SMALL
    out = torch.empty(1000, 16)
    decode._product(matrix.numpy(), x.numpy(), out.numpy())
    torch.testing.assert_close(out, matrix @ x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("uniform", "token"), [(0.0, 1), (0.4999, 1), (0.5, 2), (1.0 - 2**-24, 3), (1.0, 4), (-1.0, 2)]
)
def test_the_smallest_token_whose_cumulative_probability_exceeds_the_number(uniform: float, token: int) -> None:
    """1.0 cannot be drawn, but a product may round to it. The first and the last token have no share."""
    logits = np.array([-200.0, *np.log([0.5, 0.3, 0.2]), -200.0], np.float32)
    if uniform < 0:
        logits[2] = 4.0
    found, log_prob = decode._choose(logits, uniform, np.empty(5, np.float32))
    assert found == token
    assert log_prob == pytest.approx(torch.from_numpy(logits).log_softmax(0)[token].item(), abs=1e-5)


def test_products_take_one_thread() -> None:
    start = _Start(_decoder(2, 2), LENGTHS)
    start.decode(None, 1.0, None)
    libraries = [library for library in threadpool_info() if "scipy" in library["filepath"]]
    assert {(library["user_api"], library["num_threads"]) for library in libraries} == {("blas", 1)}


def test_padding_is_never_read() -> None:
    start = _Start(_decoder(2, 2), LENGTHS)
    expected = start.decode(start.uniform, 1.0, None)
    for row, length in enumerate(LENGTHS.tolist()):
        start.cache.keys[:, row, :, length:PROMPT] = torch.nan
        start.cache.values[:, row, :, length:PROMPT] = torch.nan
    found = start.decode(start.uniform, 1.0, None)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_nothing_hides_a_number_that_is_none() -> None:
    """Weights that went wrong must show in the log-probs, where the learner looks for them."""
    start = _Start(_decoder(2, 2), LENGTHS)
    with torch.no_grad():
        start.decoder.layers[1].self_attn.q_proj.weight[0, 0] = torch.nan  # type: ignore[union-attr, index]
    for uniform in (start.uniform, None):
        tokens, log_prob = start.decode(uniform, 1.0, None)
        assert torch.isnan(log_prob[:, 1:]).all()
        assert ((tokens >= 0) & (tokens < BINS)).all()


@pytest.mark.process
def test_a_process_that_compiles_decodes_as_one_that_loads_the_cache(tmp_path: Path) -> None:
    """To the last bit, or a run's first process gets other episodes than the next one."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}

    def found() -> list[str]:
        command = [sys.executable, __file__]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=900)
        return done.stdout.splitlines()

    (compiled, *one), (cached, *other) = found(), found()
    assert (compiled, cached) == ("cache hits 0", "cache hits 1")
    assert one == other


def _print_log_probs() -> None:
    start = _Start(_decoder(4, 2), LENGTHS.repeat(8))
    _, log_prob = start.decode(start.uniform, 0.7, start.slots)
    print("cache hits", sum(decode._decode.stats.cache_hits.values()))  # type: ignore[attr-defined]
    print("\n".join(value.hex() for value in log_prob.flatten().tolist()))


if __name__ == "__main__":
    _print_log_probs()

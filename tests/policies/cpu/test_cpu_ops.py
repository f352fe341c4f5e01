"""Compiled loops against torch: values, gradients, and when they are used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

from embodied_rl.policies.cpu import loops, ops
from embodied_rl.policies.nn.decoder import Decoder, DecoderConfig, Rope, rope_factors, rotate

ROWS, TOKENS, HEADS, HEAD_DIM = 3, 5, 2, 8
Op = Callable[..., Tensor]


@pytest.fixture
def torch_only(monkeypatch: pytest.MonkeyPatch) -> Callable[[Op], Op]:
    """Makes a function that runs without the loops."""

    def without(function: Op) -> Op:
        def run(*arguments: Tensor) -> Tensor:
            with monkeypatch.context() as patch:
                patch.setattr(ops, "applies", lambda *tensors: False)
                return function(*arguments)

        return run

    return without


def _check(one: Op, two: Op, *inputs: Tensor) -> None:
    """Both give the same value and the same gradients for all inputs."""
    outs, grads = [], []
    for function in (one, two):
        leaves = [x.clone().requires_grad_() for x in inputs]
        out = function(*leaves)
        assert out.grad_fn is not None
        weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9))
        outs.append(out)
        grads.append(torch.autograd.grad((out * weight).sum(), leaves))
    torch.testing.assert_close(*outs, rtol=1e-5, atol=1e-5)
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 16), (ROWS, TOKENS, 14), (200, 7)])
def test_rms_norm(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(shape) * 3, torch.randn(shape[-1])
    _check(lambda x, w: ops.rms_norm(x, w, 1e-6), lambda x, w: F.rms_norm(x, w.shape, w, 1e-6), x, weight)


def test_swiglu() -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(ROWS, TOKENS, 14) * 20, torch.randn(ROWS, TOKENS, 14)
    gate[0, 0, :4] = torch.tensor([-200.0, 200.0, 0.0, -88.0])
    _check(ops.swiglu, lambda gate, up: F.silu(gate) * up, gate, up)


@pytest.mark.parametrize(
    "positions", [torch.arange(TOKENS), torch.arange(ROWS * TOKENS).view(ROWS, TOKENS), torch.arange(TOKENS)[None]]
)
@pytest.mark.parametrize("layout", ["heads first", "tokens first"])
def test_rotate(positions: Tensor, layout: str, torch_only: Callable[[Op], Op]) -> None:
    torch.manual_seed(0)
    rope = rope_factors(positions, HEAD_DIM, 10000.0)
    x = torch.randn(ROWS, HEADS, TOKENS, HEAD_DIM)
    if layout == "tokens first":
        x = x.transpose(1, 2).contiguous().transpose(1, 2)
    _check(lambda x: rotate(x, rope), torch_only(lambda x: rotate(x, rope)), x)


@pytest.mark.parametrize("offset", [False, True])
def test_a_decoder_learns_the_same(offset: bool, torch_only: Callable[[Op], Op]) -> None:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(0, 16, 2, 4, 2, 8, 24, norm_offset=offset))
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    read = torch.tensor([[1, 4], [0, 2], [3, 4]])

    def run(x: Tensor) -> Tensor:
        return decoder(x, decoder.rope(TOKENS, x.device), read=read)

    x = torch.randn(ROWS, TOKENS, 16)
    _check(run, torch_only(run), x)
    grads = []
    for function in (run, torch_only(run)):
        decoder.zero_grad()
        function(x).square().sum().backward()
        grads.append([parameter.grad for parameter in decoder.parameters()])
    for left, right in zip(*grads, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


def test_shapes_that_do_not_fit_are_refused() -> None:
    """The loops would read what is not theirs."""
    x = torch.randn(2, 2, 3, 8)
    for shape in ((1, 8), (3, 4), (3, 3, 8)):
        with pytest.raises(ValueError, match="rotary"):
            ops.rotate(x, torch.ones(shape), torch.ones(shape))
    with pytest.raises(ValueError, match="norm"):
        ops.rms_norm(x, torch.ones(4), 1e-6)
    with pytest.raises(ValueError, match="shape"):
        ops.swiglu(x, x[:1])


def test_a_weight_can_be_freed_after_a_pass() -> None:
    """FSDP2 does that after each layer; torch refuses it for memory that numpy was given."""
    weight = torch.nn.Parameter(torch.ones(8))
    ops.rms_norm(torch.randn(2, 8, requires_grad=True), weight, 1e-6).sum().backward()
    weight.untyped_storage().resize_(0)


def test_tensors_without_numbers_go_to_torch() -> None:
    with FakeTensorMode():
        decoder = Decoder(DecoderConfig(0, 16, 1, 2, 2, 8, 24))
        assert decoder(torch.randn(1, 2, 16), decoder.rope(2, torch.device("cpu"))).shape == (1, 2, 16)


def test_the_loops_are_for_float32_on_one_thread() -> None:
    x = torch.zeros(2)
    assert ops.applies(x, x)
    assert not ops.applies(x, x.bfloat16())
    assert not ops.applies(x, x.to("meta"))
    torch.set_num_threads(2)
    try:
        assert not ops.applies(x)
        with torch.no_grad():  # decisions are the same whatever the thread that makes them
            assert ops.applies(x)
    finally:
        torch.set_num_threads(1)


def test_loops_are_used_where_they_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the other tests here compare torch with itself."""
    used: list[str] = []
    for name in ("rms_norm", "rotate", "swiglu"):
        whole = getattr(ops, name)
        monkeypatch.setattr(ops, name, lambda *args, whole=whole, name=name: used.append(name) or whole(*args))
    decoder = Decoder(DecoderConfig(0, 16, 1, 2, 2, 8, 24))
    decoder(torch.randn(1, 2, 16), Rope(torch.ones(2, 8), torch.zeros(2, 8)))
    assert sorted(used) == ["rms_norm", "rms_norm", "rms_norm", "rotate", "rotate", "swiglu"]


def test_exp_is_exact_to_five_units_in_the_last_place() -> None:
    @njit(fastmath=loops.FAST, error_model="numpy")  # as where it is used: it is compiled into its callers
    def run(x: np.ndarray, out: np.ndarray) -> None:
        for i in range(len(x)):
            out[i] = loops.exp(x[i])

    x = np.linspace(-86.9, 87.9, 200_001).astype(np.float32)
    out = np.empty_like(x)
    run(x, out)
    exact = np.exp(x.astype(np.float64))
    assert (np.abs(out - exact) / np.spacing(exact.astype(np.float32))).max() < 5
    odd = np.array([-1e30, -np.inf, np.nan, 0.0, 1e30], np.float32)
    run(odd, out[:5])
    assert out[0] == out[1] < 1e-37
    assert np.isnan(out[2])
    assert out[3] == 1
    assert np.isfinite(out[4])


def test_a_number_that_is_none_stays_none() -> None:
    bad = torch.tensor([[torch.nan, 1.0], [2.0, 3.0]])
    fine = torch.ones(2, 2)
    for out in (ops.swiglu(bad, fine), ops.swiglu(fine, bad)):
        assert torch.isnan(out).tolist() == [[True, False], [False, False]]
    assert torch.isnan(ops.rms_norm(bad, torch.ones(2), 1e-6)).tolist() == [[True, True], [False, False]]

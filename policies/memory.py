"""How much memory a policy needs, counted before anything is loaded.

The policy's own code runs on tensors that have shapes but no storage (torch's FakeTensorMode), and every storage that
it would hold is counted: so adapters, gradient checkpointing and number formats are what they really are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from embodied_rl.policies.nn.decoder import DecoderConfig

_MANY = 32


@dataclass(frozen=True, slots=True)
class Rows:
    """The arguments of `evaluate` for some rows."""

    images: Tensor
    proprio: Tensor
    instruction: list[str]
    replay: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes. fixed, per_row: beside weights, gradients and optimiser state, at the peak of one forward and backward
    pass (update) or of one forward pass (rollout) over some rows."""

    weights: int
    trained: int
    update_fixed: int
    update_per_row: int
    rollout_per_row: int


def footprint(make: Callable[[], nn.Module], rows: Callable[[int], Rows]) -> Footprint:
    """Measure the policy that `make` returns, as it is about to train.

    make: builds the policy with its adapters and formats; rows: made-up rows. Both run without storage. `trained`
    counts parameters (not bytes) that receive gradients.
    """
    with torch.device("meta"):
        policy = make()
    with FakeTensorMode(allow_non_fake_inputs=True):
        _place(policy)
        parameters = list(policy.parameters())
        one, update = _line(lambda count: peak_bytes(policy, rows(count), train=True))
        _, rollout = _line(lambda count: peak_bytes(policy, rows(count), train=False))
    return Footprint(
        weights=sum(parameter.nbytes for parameter in parameters),
        trained=sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        update_fixed=one - update,
        update_per_row=update,
        rollout_per_row=rollout,
    )


def _line(peak: Callable[[int], int]) -> tuple[int, int]:
    """Bytes of one row, and of each further one up to `_MANY`: a chord, since which stage needs most may change between
    them, and then every number of rows in between needs less than the chord says."""
    one = peak(1)
    return one, (peak(_MANY) - one) // (_MANY - 1)


def _place(policy: nn.Module) -> None:
    """Move parameters from the meta device to storage-less ones of the CPU, with the gradients of an update."""
    for module in policy.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            placed = nn.Parameter(torch.empty_like(parameter, device="cpu"), parameter.requires_grad)
            module.register_parameter(name, placed)
            if placed.requires_grad:
                placed.grad = torch.empty_like(placed)  # there from the second micro-batch on


def peak_bytes(policy: Any, rows: Rows, *, train: bool) -> int:
    """Most bytes held at once, beside what was there before."""
    tracker = _StorageTracker()
    with tracker, torch.set_grad_enabled(train):
        out = policy.evaluate(rows.images, rows.proprio, rows.instruction, rows.replay)
        if train:
            total = out.log_prob.sum() + (0.0 if out.value is None else out.value.sum())
            total.backward()
    return tracker.peak


class _StorageTracker(TorchDispatchMode):
    """Adds up the storages that operators make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = {leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in inputs:
                self._add(leaf.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, key, size)

    def _remove(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def kv_bytes(decoder: DecoderConfig, slots: int, element_bytes: int) -> int:
    """Keys and values of one row's `slots` tokens in every layer."""
    return 2 * decoder.layers * decoder.kv_heads * decoder.head_dim * slots * element_bytes

"""The gradient of one optimiser step, summed over microbatches that come bit by bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from embodied_rl.algorithms.base import LossOutput
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.utils.threads import OrderedMap, WorkerPool, torch_threads

PieceT = TypeVar("PieceT")

RATIO_STATS = ("ratio/rows", "ratio/sum", "ratio/squares")
"""Names of `LossOutput.ratio_stats` in what `Gradients.collect` returns."""


class BatchFault(NamedTuple):
    """A non-finite loss, or a probability ratio's distance from 1, with the microbatch's index.

    Faults order by microbatch, and the loss before the ratio.
    """

    microbatch: int
    what: Literal["loss", "ratio"]
    value: float
    rank: int


class MicrobatchGrad(NamedTuple):
    """The loss of a microbatch, and its gradient by parameter."""

    out: LossOutput
    gradient: Sequence[Tensor | None]


class Gradients(Generic[PieceT]):
    """Sums the gradients of microbatches into the `grad` of parameters; nobody else may touch it before `collect`.

    Args:
        loss: the loss of a microbatch, which is a `Rows` or whatever the loss takes.
        moving: the parameters.
        collectives: see `Learner`.
        threads: take microbatches side by side and go on when `begin` returns. Their gradients are added in the
            microbatches' order, by the caller's thread. None: `begin` does all the work.
        ratio_tolerance: how far a probability ratio may be from 1; None does not check.
    """

    def __init__(
        self,
        loss: Callable[[PieceT], LossOutput],
        moving: Sequence[nn.Parameter],
        collectives: Collectives,
        threads: WorkerPool | None,
        ratio_tolerance: float | None,
    ) -> None:
        self.micros: list[PieceT] = []
        self._loss = loss
        self._moving = moving
        self._collectives = collectives
        self._line = None if threads is None else OrderedMap(threads, self._differentiate, self._add)
        self._ratio_tolerance = ratio_tolerance
        self._totals: dict[str, float] = {}
        self._faults: list[BatchFault] = []

    def begin(self, micros: Sequence[tuple[PieceT, bool]]) -> None:
        """Begin with this rank's next microbatches, each with whether it counts (FSDP pads with some that do not)."""
        first = len(self.micros)
        self.micros += [rows for rows, _ in micros]
        for number, (_, counts) in enumerate(micros, first):
            if self._line is not None:
                self._line.put(number)
                continue
            # adds up in place: large models have no room for a second gradient
            if counts:
                out = self._checked_loss(number)
                self._collectives.backward(out.loss, self._moving)
                self._add_metrics(out)
            else:
                # The other ranks take a pass now, and FSDP gathers weights in it together.
                self._collectives.backward(0.0 * self._loss(_tamed(self.micros[number])).loss, self._moving)

    def collect(self) -> tuple[dict[str, float], BatchFault | None]:
        """Wait for what was begun; return the sums of all ranks' metrics, and on each the same first fault."""
        if self._line is not None:
            self._line.finish()
        reports = self._collectives.gather((self._totals, self._faults))
        faults = [fault for _, found in reports for fault in found]
        # The least, so that all ranks raise the same one.
        return _sum_metrics([part for part, _ in reports]), min(faults, default=None)

    def _checked_loss(self, number: int) -> LossOutput:
        # Faults are noted, not raised: the other ranks wait for this one in `collect`.
        out, tolerance = self._loss(self.micros[number]), self._ratio_tolerance
        if not math.isfinite(value := out.loss.item()):
            self._faults.append(BatchFault(number, "loss", value, self._collectives.rank))
        if tolerance is not None and not (error := out.ratio_error.item()) <= tolerance:  # `not <=`: NaN is a fault too
            self._faults.append(BatchFault(number, "ratio", error, self._collectives.rank))
        return out

    def _differentiate(self, number: int) -> MicrobatchGrad:
        """Loss and gradient of a microbatch, in one of the threads."""
        out = self._checked_loss(number)
        # Not `backward`, which adds to `grad` in the order in which threads end: sums would round by timing.
        return MicrobatchGrad(out, torch.autograd.grad(out.loss, self._moving, allow_unused=True))

    def _add(self, found: MicrobatchGrad) -> None:
        self._add_metrics(found.out)
        with torch_threads(1):  # the cores are taken by the next microbatches
            for parameter, more in zip(self._moving, found.gradient, strict=True):
                if more is not None and parameter.grad is not None:
                    parameter.grad += more
                elif more is not None:
                    parameter.grad = more.clone()  # autograd may give several parameters one tensor

    def _add_metrics(self, out: LossOutput) -> None:
        found = out.metrics | {"loss": out.loss.detach()} | dict(zip(RATIO_STATS, out.ratio_stats, strict=True))
        # a GPU is waited for once, not once a number
        for name, value in zip(found, torch.stack([value.double() for value in found.values()]).tolist(), strict=True):
            self._totals[name] = self._totals.get(name, 0.0) + value


def _tamed(rows: Any) -> Any:
    """Rows that do not count, with finite numbers in place of all others: 0 times these would be NaN."""
    batch = rows.batch
    names = ("log_prob", "value", "advantage", "returns", "log_importance")
    found = {name: value for name in names if (value := getattr(batch, name)) is not None}
    tame = {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in found.items()}
    return replace(rows, batch=replace(batch, **tame))


def _sum_metrics(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Sums by name, over those that have it."""
    totals: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            totals[name] = totals.get(name, 0.0) + value
    return totals

"""What the stages of a set-up cost and what they run on: enough to say how long a schedule takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a stage: `fixed` s a call and `row` s a row, on one server of `device`."""

    device: str
    row: float
    fixed: float = 0.0

    def of(self, rows: int) -> float:
        """Seconds for one call with that many rows."""
        return self.fixed + self.row * rows


@dataclass(frozen=True, slots=True)
class Costs:
    """The stages of a set-up. Names are rows = decisions.

    simulate: a chunk with its frame. act: a decision. learn: `row` for forward and backward, `fixed` for the
    optimiser's step; learn_call: what each micro-batch costs beside its rows. servers: how much work a device does side
    by side (cores of a CPU; 1 for a device not named). learners: of them, how many learn while episodes run, at most
    (None: all). steppers: threads that share the worlds of a lane. evaluate: a forward pass without a backward pass
    over a micro-batch (None: a third of `learn`'s row), for log-probs that are computed again: those of stale rows on
    its device, which is that of the policy that acts where groups are learned one by one.
    """

    simulate: Cost
    act: Cost
    learn: Cost
    servers: Mapping[str, int] = field(default_factory=dict)
    learners: int | None = None
    steppers: int = 1
    learn_call: float = 0.0
    evaluate: Cost | None = None

    @property
    def evaluated(self) -> Cost:
        """`evaluate`, or what is taken for it."""
        return self.evaluate or Cost(self.learn.device, self.learn.row / 3)

    def servers_of(self, cost: Cost) -> int:
        """Servers of the device that a stage runs on."""
        return self.servers.get(cost.device, 1)

    def bound(self, worlds: int, rows: float, updates: float, stale: float = 0.0) -> float:
        """Seconds that the busiest device needs for that many decisions, all trained on, at the best batch size.

        `updates` are optimiser steps; `learn_call` does not count, as micro-batches may be as large as one likes.
        stale: rows that are evaluated again.
        """
        calls = rows / worlds
        busy: dict[str, float] = {}
        for cost, count in ((self.simulate, calls), (self.act, calls), (self.learn, updates)):
            work = (cost.row * rows + cost.fixed * count) / self.servers_of(cost)
            busy[cost.device] = busy.get(cost.device, 0.0) + work
        again = self.evaluated
        busy[again.device] = busy.get(again.device, 0.0) + again.row * stale / self.servers_of(again)
        return max(busy.values())

    def total(self, worlds: int, rows: float, updates: float) -> float:
        """Seconds if every stage uses its whole device and nothing overlaps."""
        calls = rows / worlds
        stages = ((self.simulate, calls), (self.act, calls), (self.learn, updates))
        return sum((cost.row * rows + cost.fixed * count) / self.servers_of(cost) for cost, count in stages)


def fit(device: str, probes: Sequence[tuple[int, float]]) -> Cost:
    """The cost that (rows, seconds) of single calls lie on, with the least relative error; neither part is negative."""
    rows, seconds = np.array(probes, dtype=np.float64).T
    if len(set(rows)) == 1:
        return Cost(device, float(np.median(seconds / rows)))
    row, fixed = np.linalg.lstsq(np.stack([rows, np.ones_like(rows)], 1) / seconds[:, None], np.ones_like(rows))[0]
    if fixed < 0:
        return Cost(device, float(np.median(seconds / rows)))
    return Cost(device, max(0.0, float(row)), float(fixed))

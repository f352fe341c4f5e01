"""How much of a piece of work's time a GPU computes, and how many kernels that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Busy:
    """share: of the wall time in which at least one kernel or copy ran, in [0, 1]. kernels: their number."""

    share: float
    kernels: int


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals (begin, end)."""
    total, until = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def gpu_busy(work: Callable[[], Any]) -> Busy | None:
    """Run `work` once under torch's profiler, which slows launches somewhat; None, without running it, without a GPU.

    Kernels of all threads and streams of this process count.
    """
    if not torch.cuda.is_available():
        return None
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    assert profile.profiler is not None
    assert profile.profiler.kineto_results is not None
    # not `profile.events()`, which takes seconds for the launches of an iteration
    events = [e for e in profile.profiler.kineto_results.events() if e.device_type().name == "CUDA"]
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events]
    return Busy(min(1.0, covered(spans) / 1e9 / seconds), len(spans))

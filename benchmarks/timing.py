"""Measures contenders that do the same work, so that other work on the machine disturbs them alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


def interleaved(
    work: Mapping[str, Callable[[], T]], repeats: int, rows: int
) -> tuple[dict[str, list[float]], dict[str, T]]:
    """CPU milliseconds of each of `rows` results, contender by contender, and what each returned last.

    Contenders take turns, round by round, after a round that does not count.
    """
    times: dict[str, list[float]] = {name: [] for name in work}
    outputs: dict[str, T] = {}
    for turn in range(repeats + 1):
        for name, call in work.items():
            began = time.process_time()
            outputs[name] = call()
            if turn:
                times[name].append(1e3 * (time.process_time() - began) / rows)
    return times, outputs

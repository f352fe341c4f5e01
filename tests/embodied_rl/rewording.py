"""Other words for every fact: what is decided must not change with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from embodied_rl.evaluation.overlap import Overlap
from embodied_rl.jobs import describe, evaluate, run_report, run_tables, serve, train
from embodied_rl.studies import compare


def reword(monkeypatch: pytest.MonkeyPatch) -> None:
    """Say everything in other words, wherever a sentence about a fact is made or was imported."""
    sayings = {
        name: value
        for name, value in vars(describe).items()
        if inspect.isfunction(value) and name.endswith("_words") and value.__module__ == describe.__name__
    }
    assert len(sayings) > 12

    def other(name: str, said: Callable[..., Any]) -> Callable[..., Any]:
        if name in ("run_words", "eval_words"):
            return lambda *args, **more: {key.upper(): "gibberish" for key in said(*args, **more)}
        return lambda *args, **more: "gibberish (" + name

    for name, said in sayings.items():
        for module in (describe, train, evaluate, run_report, run_tables, serve, compare):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, other(name, said))
    monkeypatch.setattr(Overlap, "describe", lambda self: "none: gibberish")

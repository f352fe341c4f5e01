"""The recorded rows of a run, counted by hand, against the host's memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.autotune import memory
from embodied_rl.autotune.memory import GIB, host_shortage, room
from embodied_rl.config.train import TrainConfig
from embodied_rl.scheduler.config import PipelinedConfig
from tests.embodied_rl.autotune.test_trials import CONFIG

STREAM = replace(CONFIG, scheduler=PipelinedConfig(env_groups=2))


def batches_held(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> float:
    """Of 160 rows of 7 bytes each, by when they no longer fit."""
    for parts in range(16 * 8):
        monkeypatch.setattr(memory, "room", lambda device, parts=parts: 7 * 10 * parts)
        if host_shortage(config, 7, 160) is None:
            return parts / 16
    raise AssertionError("never")


def test_the_rows_of_batches_at_one_time_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that an update takes as they end it keeps too: all with further epochs, else of the minibatch under way."""
    assert batches_held(CONFIG, monkeypatch) == 2
    for epochs, groups, copies in ((2, 2, 1.0), (1, 2, 2 / 16), (1, 40, 1.0)):
        config = replace(
            STREAM, algorithm=PPOConfig(epochs=epochs), learner=replace(STREAM.learner, minibatch_groups=groups)
        )
        assert batches_held(config, monkeypatch) == 1 + copies
    stale = replace(STREAM, scheduler=PipelinedConfig(mode="async", max_staleness=2))
    assert batches_held(stale, monkeypatch) == 4.5


def test_what_is_short_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "room", lambda device: GIB // 2)
    assert host_shortage(CONFIG, GIB, 1) == "needs 2 GiB of cpu, 0.5 are free"


def test_some_memory_is_free() -> None:
    assert room("cpu") > 0

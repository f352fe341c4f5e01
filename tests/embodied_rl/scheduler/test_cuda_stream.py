"""The stream that acts: with a GPU that only takes notes, since there is none where the tests run.

And a run on a stand-in for one, where pictures and actions arrive only for who waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from embodied_rl.algorithms.config import AlgorithmConfig
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.scheduler.pipeline import engine
from embodied_rl.scheduler.pipeline.cuda_stream import ActStream
from embodied_rl.types import ActOutput, Observation
from tests.embodied_rl.scheduler.toys import GRPO, PPO, Setup, SlowEnv, assert_same_rows, jitter, pipelined, serial
from tests.toy import ToyPolicy


class OnGpu(nn.Module):
    """A policy whose first parameter says that it is on a GPU."""

    def parameters(self, recurse: bool = True):
        return iter([type("P", (), {"device": torch.device("cuda", 1)})()])


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    noted: list[tuple[object, ...]] = []

    class Stream:
        def __init__(self, device: object = None, priority: int = 0) -> None:
            noted.append(("stream", device, priority))

        def wait_event(self, event: object) -> None:
            noted.append(("wait", event))

        def record_event(self) -> str:
            noted.append(("record",))
            return f"event {len(noted)}"

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    learners = Stream()

    def current(device: object) -> Stream:
        noted.append(("current", device))
        return learners

    monkeypatch.setattr(torch.cuda, "current_stream", current)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    noted.clear()
    return noted


def test_a_decision_waits_for_the_weights_and_for_nothing_else(notes: list[tuple[object, ...]]) -> None:
    gpu = torch.device("cuda", 1)
    stream = ActStream(OnGpu())  # type: ignore[arg-type]
    assert notes == [("stream", gpu, -1), ("current", gpu), ("record",)]  # first, so it goes before the learner's
    notes.clear()
    stream.wait_for_weights()
    stream.wait_for_weights()
    assert notes == [("wait", "event 3")]
    notes.clear()
    stream.weights_loaded()
    stream.wait_for_weights()
    assert notes == [("current", gpu), ("record",), ("wait", "event 2")]
    with stream.active() as active:
        assert active is not None


def test_on_a_cpu_there_is_none(notes: list[tuple[object, ...]]) -> None:
    stream = ActStream(nn.Linear(1, 1))  # type: ignore[arg-type]
    with stream.active() as active:
        stream.weights_loaded()
        stream.wait_for_weights()
    assert active is None
    assert notes == []


def test_each_side_waits_for_what_the_other_has_queued_by_then(notes: list[tuple[object, ...]]) -> None:
    made: Any = type("Made", (), {"device": torch.device("cuda", 0)})()
    stream = ActStream(OnGpu())  # type: ignore[arg-type]
    notes.clear()
    mark: Any = stream.mark(made)
    assert notes == [("current", torch.device("cuda", 0)), ("record",)]  # of the thread that calls, where it was made
    stream.wait(mark)
    stream.wait(mark, torch.device("cuda", 0))
    assert notes[2:] == [
        ("current", torch.device("cuda", 1)),
        ("wait", mark),
        ("current", torch.device("cuda", 0)),
        ("wait", mark),
    ]
    notes.clear()
    assert stream.mark(torch.zeros(1)) is None
    assert ActStream(nn.Linear(1, 1)).mark(made) is None  # type: ignore[arg-type]
    stream.wait(None)
    assert notes == []


class Queue:
    """A GPU's work: it is done when somebody waits for it, in order."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._work: list[Callable[[], None]] = []
        self._done = 0

    def put(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._work.append(work)

    def mark(self) -> int:
        with self._lock:
            return len(self._work)

    def wait(self, mark: int) -> None:
        with self._lock:
            for work in self._work[self._done : mark]:
                work()
            self._done = max(self._done, mark)


class LateEnv(SlowEnv):
    """What it shows is there later than `observe` returns."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(6, jitter(3))
        self._queue = queue

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        drawn = self.new_observation(len(env_ids))
        super().observe(env_ids, drawn)
        out.instruction[:] = drawn.instruction

        def draw() -> None:
            out.images.copy_(drawn.images)
            out.proprio.copy_(drawn.proprio)

        self._queue.put(draw)


class LatePolicy(ToyPolicy):
    """What it decides is there later than `act` returns."""

    queue: Queue

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        out = super().act(obs, rng, mode)
        later = torch.full_like(out.actions, torch.nan)

        def decide() -> None:
            later.copy_(out.actions)

        self.queue.put(decide)
        return replace(out, actions=later)


@pytest.mark.parametrize("algorithm", [GRPO, replace(PPO, bootstrap_truncated=True)], ids=str)
@pytest.mark.parametrize("stages", [2, 4])
def test_what_a_gpu_has_only_queued_is_waited_for(
    algorithm: AlgorithmConfig, stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, setup = Queue(), Setup(algorithm)
    monkeypatch.setattr(LatePolicy, "queue", queue, raising=False)
    monkeypatch.setattr(engine.ActStream, "mark", lambda stream, made: queue.mark(), raising=False)
    monkeypatch.setattr(engine.ActStream, "wait", lambda stream, mark, place=None: queue.wait(mark), raising=False)
    expected = serial(setup, tmp_path)
    found = pipelined(setup, tmp_path, stages=stages, policy=LatePolicy(), env=LateEnv(queue))
    for one, two in zip(expected.batches, found.batches, strict=True):
        assert_same_rows(one, two)

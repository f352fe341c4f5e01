"""The stream that acts: with a GPU that only takes notes, since there is none where the tests run."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

from embodied_rl.scheduler.pipeline.cuda_stream import ActStream


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

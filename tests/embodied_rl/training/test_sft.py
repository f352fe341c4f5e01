"""The SFT loop on a tiny dataset and a linear policy: it learns, stops, resumes exactly and refuses bad states."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from embodied_rl.config.sft import SftConfig, learning_rate
from embodied_rl.data.chunks import ChunkDataset, SftBatch, split
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.data.mixture import Mixture, Part
from embodied_rl.errors import UserError
from embodied_rl.training import sft

CONFIG = SftConfig(steps=60, batch_size=16, lr=0.02, warmup=5, val_every=20, val_samples=64, save_every=10, shift=1)


class LinearPolicy(nn.Module):
    """Squared error of a linear map from the proprio; `interrupt_at`: Ctrl-C arrives in that call."""

    def __init__(self, interrupt_at: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 6)
        self.interrupt_at = interrupt_at
        self.calls = 0

    def sft_loss(
        self,
        images: torch.Tensor,
        proprio: torch.Tensor,
        instruction: list[str],
        actions: torch.Tensor,
        drop_action_history: torch.Tensor | None = None,
        action_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert images.dtype == torch.uint8
        assert len(instruction) == len(proprio)
        if self.training:
            if self.calls == self.interrupt_at:
                os.kill(os.getpid(), signal.SIGINT)
            self.calls += 1
        return (self.layer(proprio) - actions.flatten(1)).pow(2).mean()


def _data() -> tuple[ChunkDataset, ChunkDataset]:
    rng = np.random.default_rng(0)
    state = rng.normal(size=(200, 4)).astype(np.float32)
    action = np.tanh(state @ rng.normal(size=(4, 3))).astype(np.float32)
    images = np.zeros((200, 1, 4, 4, 3), np.uint8)
    starts, calm = np.arange(0, 201, 20), np.zeros(200, bool)
    data = Demonstrations(images, state, action, calm, starts, np.ones(10, bool), ["go"] * 200, ("a",), {}, Path())
    return split(data, 2, validation=0.2, seed=0)


def _measure(batch: SftBatch) -> dict[str, float]:
    return {"rows": float(len(batch.instruction))}


def _fit(policy: sft.Imitator, state: Path, config: SftConfig = CONFIG, identity: str = "d") -> sft.SftResult:
    train, val = (Mixture([Part(part)]) for part in _data())
    return sft.fit(
        policy,
        train,
        val,
        config,
        state,
        measure=_measure,
        console=Console(file=io.StringIO()),
        identity={"dataset": identity},
    )


def test_loss_falls_and_history_is_kept(tmp_path: Path) -> None:
    result = _fit(LinearPolicy(), tmp_path / "s.pt")
    assert result.finished
    assert [row["step"] for row in result.history] == [20, 40, 60]
    fresh = sft.validate(LinearPolicy(), Mixture([Part(_data()[1])]), CONFIG, _measure)["val_loss"]
    assert result.history[-1]["val_loss"] < 0.6 * fresh
    train, _ = _data()
    nothing = ChunkDataset(train.data, 2, train.rows[:0], train.episode)
    assert sft.validate(LinearPolicy(), Mixture([Part(nothing)]), CONFIG, _measure) == {}


def test_interrupted_run_resumes_to_the_same_weights(tmp_path: Path) -> None:
    whole, part = LinearPolicy(), LinearPolicy(interrupt_at=27)
    expected = _fit(whole, tmp_path / "whole.pt")
    before = signal.getsignal(signal.SIGINT)
    stopped = _fit(part, tmp_path / "part.pt")
    assert not stopped.finished
    assert stopped.step == 28  # the step in which Ctrl-C came was completed
    assert signal.getsignal(signal.SIGINT) is before
    resumed = LinearPolicy()
    nn.init.zeros_(resumed.layer.weight)
    result = _fit(resumed, tmp_path / "part.pt")
    assert result.history == expected.history
    for a, b in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_state_of_another_run_is_refused(tmp_path: Path) -> None:
    _fit(LinearPolicy(interrupt_at=1), tmp_path / "s.pt")
    with pytest.raises(UserError, match="another dataset"):
        _fit(LinearPolicy(), tmp_path / "s.pt", identity="other")
    with pytest.raises(UserError, match="another lr"):
        _fit(LinearPolicy(), tmp_path / "s.pt", SftConfig(**{**CONFIG.identity(), "lr": 0.5}))
    (tmp_path / "s.pt").write_bytes(b"rubbish")
    with pytest.raises(UserError, match="remove it to start over"):
        _fit(LinearPolicy(), tmp_path / "s.pt")


def test_full_disk_keeps_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "s.pt"
    _fit(LinearPolicy(interrupt_at=3), state)
    content = state.read_bytes()

    def full(_content: object, handle: io.BufferedWriter) -> None:
        handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match="free some disk space; the state before it"):
        _fit(LinearPolicy(), state)
    assert state.read_bytes() == content
    assert list(tmp_path.iterdir()) == [state]


def test_non_finite_loss_stops_and_keeps_the_weights(tmp_path: Path) -> None:
    policy = LinearPolicy()
    with torch.no_grad():
        policy.layer.bias[0] = float("nan")
    weight = policy.layer.weight.clone()
    with pytest.raises(UserError, match="lower --lr"):
        _fit(policy, tmp_path / "s.pt")
    assert torch.equal(policy.layer.weight, weight)
    assert not (tmp_path / "s.pt").exists()


def test_learning_rate_by_hand() -> None:
    cosine = SftConfig(steps=110, warmup=10, lr=1.0)
    assert [learning_rate(s, cosine) for s in (0, 4, 9, 10)] == [0.1, 0.5, 1.0, 1.0]
    assert learning_rate(60, cosine) == pytest.approx(0.5)
    assert learning_rate(109, cosine) == pytest.approx(0.5 * (1 + np.cos(np.pi * 0.99)))
    linear = SftConfig(steps=110, warmup=10, lr=1.0, decay="linear")
    assert [learning_rate(s, linear) for s in (35, 60, 85)] == pytest.approx([0.75, 0.5, 0.25])


def test_weight_decay_is_for_matrices_only() -> None:
    groups = sft.optimiser(LinearPolicy(), SftConfig(weight_decay=0.3)).param_groups
    assert [(g["weight_decay"], [p.ndim for p in g["params"]]) for g in groups] == [(0.3, [2]), (0.0, [1])]


def test_bad_settings_are_refused() -> None:
    for bad in ({"steps": 0}, {"batch_size": -1}, {"lr": 0.0}, {"shift": -1}):
        with pytest.raises(UserError, match="--"):
            SftConfig(**bad)  # type: ignore[arg-type]

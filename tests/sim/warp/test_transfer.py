"""Small copies to a GPU: from pinned memory, or they would wait for all that is queued there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from embodied_rl.sim.warp.transfer import to_device


def test_copies_to_a_device_are_pinned_and_do_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """'meta' stands for a GPU, and a CPU's tensor stays as it is."""
    values = torch.arange(3)
    assert to_device(values, "cpu") is values
    said: list[Any] = []
    move = torch.Tensor.to

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        said.append("pinned")
        return tensor

    def to(tensor: torch.Tensor, *where: Any, **how: Any) -> torch.Tensor:
        said.append(how)
        return move(tensor, *where, **how)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    monkeypatch.setattr(torch.Tensor, "to", to)
    assert to_device(values, torch.device("meta")).device.type == "meta"
    assert said == ["pinned", {"non_blocking": True}]

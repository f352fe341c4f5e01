"""Host memory to a device that has work in its queue."""

from __future__ import annotations

import torch


def to_device(values: torch.Tensor, device: str | torch.device) -> torch.Tensor:
    """A copy of host memory on `device`, of which nobody waits for what is queued there; itself where it is a CPU."""
    if torch.device(device).type == "cpu":
        return values
    return values.pin_memory().to(device, non_blocking=True)

"""Heads that reinforcement learning adds to a published network."""

from __future__ import annotations

from torch import nn

from embodied_rl.policies.nn.linear import Linear


def make_value_head(dim: int, hidden: tuple[int, int]) -> nn.Sequential:
    """A fresh critic on hidden states of width `dim`; its output is zero, so that it pulls nothing."""
    head = nn.Sequential(
        Linear(dim, hidden[0]), nn.GELU(), Linear(hidden[0], hidden[1]), nn.GELU(), Linear(hidden[1], 1)
    )
    for parameter in head[4].parameters():
        nn.init.zeros_(parameter)
    return head

"""Sizes of a state policy's network."""

from __future__ import annotations

from dataclasses import dataclass

LOG_STD = (-5.0, 1.0)
"""What the logarithm of the standard deviation of an action is kept within."""


@dataclass(frozen=True, kw_only=True)
class MLPModelConfig:
    """What the network is.

    Args:
        observation_dim: P + S, what it reads.
        action_dim: A.
        hidden: units of each hidden layer.
        chunk_len: K.
        squash: actions are tanh of the Gaussian's samples, else the samples clipped.

    Example:
        >>> MLPModelConfig(observation_dim=3, action_dim=1)
    """

    observation_dim: int
    action_dim: int
    hidden: tuple[int, ...] = (64, 64)
    chunk_len: int = 1
    squash: bool = False

    @property
    def num_terms(self) -> int:
        """L, the log-prob terms of a decision: K times A."""
        return self.chunk_len * self.action_dim

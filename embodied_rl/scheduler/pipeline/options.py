"""Sizes and rules of the pipelined rollout."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Sizes and rules of a `RolloutEngine`."""

    env_groups: int
    """Groups that the envs are cut into."""
    workers: int
    """Threads that step and render; each takes one env group at a time."""
    in_turn: bool
    """Let nothing depend on timing (`Turns`)."""
    final_value: bool = False
    """Record the critic's value after the last step of truncated episodes."""
    final_images: bool = False
    """Record the pictures after the last step of every episode."""
    threads: int = 1
    """CPU threads for acting."""

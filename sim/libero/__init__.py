"""LIBERO's official tasks: what was exported, protocols, and a replay of recorded episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embodied_rl.sim.libero.recorded import replay as replay

__all__ = ["replay"]


def __getattr__(name: str) -> Any:
    """Import `replay` when it is first used: it brings numba's kernels, which the commands that list tasks don't
    need."""
    if name == "replay":
        from embodied_rl.sim.libero.recorded import replay

        return replay
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")

"""How much memory SmolVLA needs: counted as pi0's is."""

from __future__ import annotations

from embodied_rl.policies.family import TrainingMode
from embodied_rl.policies.memory import Footprint
from embodied_rl.policies.pi0.memory import cache_bytes, measure_kind, prefix_bytes
from embodied_rl.policies.smolvla.config import SmolVLAModelConfig
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy

__all__ = ["cache_bytes", "measure", "prefix_bytes"]


def measure(config: SmolVLAModelConfig, mode: TrainingMode) -> Footprint:
    """The footprint of training with a critic under Flow-SDE."""
    return measure_kind(config, mode, SmolVLAPolicy)

"""Where training a SmolVLA begins: random weights, or those of another policy, for a data set's robot."""

from __future__ import annotations

from embodied_rl.policies.family import FreshRequest
from embodied_rl.policies.pi0.start import adapt_refitted, add_robot, fresh_for, refit
from embodied_rl.policies.smolvla.config import preset
from embodied_rl.policies.smolvla.policy import SmolVLAPolicy

__all__ = ["adapt_refitted", "add_robot", "fresh", "refit"]


def fresh(request: FreshRequest) -> SmolVLAPolicy:
    """A randomly initialised policy for the data set of `request`."""
    return fresh_for(SmolVLAPolicy, preset(request.preset), request)

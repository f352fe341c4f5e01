"""Where training an OpenVLA-OFT begins: random weights, or those of another policy, for a data set's robot."""

from __future__ import annotations

from embodied_rl.policies.family import FreshRequest
from embodied_rl.policies.openvla.start import adapt_refitted, add_robot, fresh_for, refit
from embodied_rl.policies.openvla_oft.config import preset
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy

__all__ = ["adapt_refitted", "add_robot", "fresh", "refit"]


def fresh(request: FreshRequest) -> OpenVLAOFTPolicy:
    """A randomly initialised policy for the data set of `request`."""
    return fresh_for(OpenVLAOFTPolicy, preset(request.preset), request)

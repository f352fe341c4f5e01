"""Options of the policies, which their families define."""

from __future__ import annotations

from embodied_rl.policies.checkpoints.shipped import SHIPPED
from embodied_rl.policies.mlp import MLPConfig
from embodied_rl.policies.openvla import OpenVLAConfig
from embodied_rl.policies.openvla_oft import OpenVLAOFTConfig
from embodied_rl.policies.pi0 import FlowPolicyConfig, Pi0Config
from embodied_rl.policies.smolvla import SmolVLAConfig

__all__ = [
    "SHIPPED",
    "FlowPolicyConfig",
    "MLPConfig",
    "OpenVLAConfig",
    "OpenVLAOFTConfig",
    "Pi0Config",
    "PolicyConfig",
    "SmolVLAConfig",
]

PolicyConfig = OpenVLAConfig | OpenVLAOFTConfig | Pi0Config | SmolVLAConfig | MLPConfig

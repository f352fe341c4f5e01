"""Options of the policies, which their families define."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from embodied_rl.policies.act import ACTConfig
from embodied_rl.policies.checkpoints.shipped import SHIPPED
from embodied_rl.policies.family import Observes
from embodied_rl.policies.mlp import MLPConfig
from embodied_rl.policies.openvla import OpenVLAConfig
from embodied_rl.policies.openvla_oft import OpenVLAOFTConfig
from embodied_rl.policies.pi0 import FlowPolicyConfig, Pi0Config
from embodied_rl.policies.smolvla import SmolVLAConfig

__all__ = [
    "CUSTOM",
    "CUSTOM_BEFORE",
    "SHIPPED",
    "ACTConfig",
    "CustomPolicyConfig",
    "FlowPolicyConfig",
    "MLPConfig",
    "OpenVLAConfig",
    "OpenVLAOFTConfig",
    "Pi0Config",
    "PolicyConfig",
    "PolicyObjectConfig",
    "SmolVLAConfig",
]


@dataclass(frozen=True, kw_only=True)
class CustomPolicyConfig:
    """A policy of one's own. The options of one that is registered are fields of a subclass."""

    observes: ClassVar[Observes] = "any"
    checkpoint: str = ""
    """Folder of a run or checkpoint to go on from (none given: new weights, which follow from --seed)."""


@dataclass(frozen=True, kw_only=True)
class PolicyObjectConfig(CustomPolicyConfig):
    """A policy that was passed to `embodied_rl.train` as an object."""

    class_name: str = ""
    """Its class, with the module."""


CUSTOM, CUSTOM_BEFORE = "custom", "own"
"""What checkpoints say of a custom policy, in place of a family's name; of one of an earlier version."""
PolicyConfig = OpenVLAConfig | OpenVLAOFTConfig | Pi0Config | SmolVLAConfig | ACTConfig | MLPConfig | CustomPolicyConfig
POLICIES: dict[str, type[PolicyConfig]] = {
    "openvla": OpenVLAConfig,
    "openvla_oft": OpenVLAOFTConfig,
    "pi0": Pi0Config,
    "smolvla": SmolVLAConfig,
    "act": ACTConfig,
    "mlp": MLPConfig,
    "custom": PolicyObjectConfig,
}
"""By name, as in `policy.name`; `config.register` adds those of users."""

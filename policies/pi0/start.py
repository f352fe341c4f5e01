"""pi0 and its kin before they have weights, or with those of another robot's policy."""

from __future__ import annotations

import torch

from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.pi0.config import Pi0ModelConfig
from embodied_rl.policies.pi0.normalise import Pi0Statistics
from embodied_rl.policies.pi0.policy import AnyPi0, Pi0Policy
from embodied_rl.policies.pi0.prompt import Pi0Prompt


def empty_policy(
    config: Pi0ModelConfig,
    prompt: Pi0Prompt,
    statistics: Pi0Statistics,
    flow: FlowSettings,
    *,
    unnorm_key: str,
    kind: type[AnyPi0] = Pi0Policy,
) -> AnyPi0:
    """A policy whose weights take no memory, to be assigned."""
    with torch.device("meta"):
        policy = kind(config, prompt, statistics, flow, unnorm_key=unnorm_key)
    policy.loss_calls = torch.zeros((), dtype=torch.int64)
    return policy

"""The critic that a run's options ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.policies import FlowPolicyConfig
from embodied_rl.config.train import TrainConfig

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy


def fit_critic(policy: AnyPolicy, config: TrainConfig) -> None:
    """Let the critic of a flow `policy`, as it was loaded, read what `config` asks for.

    A value head that learned to read something else is replaced by a fresh one, and `traits.fresh_critic` says so.

    Raises:
        UserError: it is to teach the network, and what it reads does not allow that.
    """
    if not isinstance(config.algorithm, PPOConfig) or not isinstance(config.policy, FlowPolicyConfig):
        return
    from embodied_rl.policies.pi0.model import make_heads

    flow: Any = policy
    before = flow.config.critic_input
    wanted = config.policy.critic_input or before
    config.policy.check_critic(wanted)
    if wanted == before:
        return
    flow.config = flow.model.config = replace(flow.config, critic_input=wanted)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = make_heads(flow.config)["value_head"]
    flow.model.value_head = fresh.to(next(flow.model.value_head.parameters()))
    flow.fresh_critic = f"a fresh value head that reads {wanted}; the checkpoint's reads {before}"

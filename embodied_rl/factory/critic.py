"""The critic that a run's options ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.config.policies import FlowPolicyConfig
from embodied_rl.config.train import TrainConfig

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy


def fit_critic(policy: AnyPolicy, config: TrainConfig) -> None:
    """Let the critic of `policy`, as it was loaded, read and say what `config` asks for.

    A value head that does not fit is replaced by a fresh one, and `policy.fresh_critic` says so.

    Raises:
        UserError: it is to teach the network, and what it reads does not allow that.
    """
    if not isinstance(config.algorithm, PPOConfig):
        return
    before: Any = policy.config
    bins, span = config.algorithm.bins
    wanted: Any = replace(before, value_bins=bins, value_range=span)
    read = "the last prompt token"
    if isinstance(config.policy, FlowPolicyConfig):
        read = config.policy.critic_input or before.critic_input
        config.policy.check_critic(read)
        wanted = replace(wanted, critic_input=read)
    policy.config = policy.model.config = wanted
    head = policy.model.value_head
    policy.model.value_head = head.fitted(wanted)
    if policy.model.value_head is not head:
        says = "says the value" if bins == 1 else f"says {bins} bins over {span[0]:g} to {span[1]:g}"
        state = "had learned and does not fit" if head.has_learned else "does not fit and had not learned"
        policy.fresh_critic = f"a fresh value head that reads {read} and {says}; the checkpoint's {state}"

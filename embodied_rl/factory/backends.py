"""The state policy, and whether a policy reads what a simulator shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.suites import Suite
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.vec_env import EnvInfo

if TYPE_CHECKING:
    from embodied_rl.policies.mlp.policy import MLPPolicy


def new_state_policy(config: TrainConfig, info: EnvInfo) -> MLPPolicy:
    """A state policy of random weights, which follow from the config's seed; UserError where `info` shows no state."""
    from embodied_rl.policies.mlp.checkpoint import fresh

    assert isinstance(config.policy, MLPConfig)
    policy = fresh(config.policy, *_sizes(info), config.seed)
    policy.to(config.device)
    policy.with_value = True
    return policy


def check_fits(policy: Any, info: EnvInfo, checkpoint: str) -> None:
    """UserError unless `policy` reads what a simulator shows; checkpoint: where it comes from, for the message."""
    if policy.architecture != "mlp":
        if not info.cameras:
            raise UserError(
                f"{checkpoint} holds a policy for images ({policy.architecture}): suite '{info.suite}' has none."
            )
        return
    has, needed = (policy.config.observation_dim, policy.config.action_dim), _sizes(info)
    if has != needed:
        raise UserError(
            f"{checkpoint} reads {has[0]} numbers and decides {has[1]}, the task has {needed[0]} and {needed[1]}: "
            "it was trained on another task."
        )


def check_observes(policy: Any, suite: Suite, checkpoint: str) -> None:
    """UserError where `suite` shows images and the policy reads a state, or the other way round."""
    if policy.architecture != "mlp" and suite.observes == "state":
        raise UserError(
            f"{checkpoint} holds a policy for images ({policy.architecture}): suite '{suite.name}' has none."
        )
    if policy.architecture == "mlp" and suite.observes == "images":
        raise UserError(
            f"{checkpoint} holds a state policy (mlp), which sees no images: name its suite and task, as in "
            f"embodied-rl eval gymnasium --task ID --checkpoint {checkpoint}."
        )


def _sizes(info: EnvInfo) -> tuple[int, int]:
    """Numbers that a state policy reads and decides; UserError where there is nothing to read."""
    if info.proprio_dim + info.state_dim == 0:
        raise UserError(
            f"the tasks of suite '{info.suite}' that were named show images and no state: mlp reads a state."
        )
    return info.proprio_dim + info.state_dim, info.action_dim

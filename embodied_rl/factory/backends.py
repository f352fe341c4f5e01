"""The state policy, and whether a policy reads what a simulator shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.suites import Suite
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import FAMILIES
from embodied_rl.policies.family import Observes
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


def observes(policy: Any) -> Observes:
    """What a loaded policy reads."""
    return FAMILIES[policy.architecture].config.observes


def check_fits(policy: Any, info: EnvInfo, checkpoint: str) -> None:
    """UserError unless `policy` reads what a simulator shows; checkpoint: where it comes from, for the message."""
    if observes(policy) == "any":
        _check_made_for(policy.made_for.info, info, checkpoint)
        return
    if observes(policy) == "images":
        _check_images(policy, info, checkpoint)
        return
    has, needed = (policy.config.observation_dim, policy.config.action_dim), _sizes(info)
    if has != needed:
        raise UserError(
            f"{checkpoint} reads {has[0]} numbers and decides {has[1]}, the task has {needed[0]} and {needed[1]}: "
            "it was trained on another task."
        )


def check_observes(policy: Any, suite: Suite, checkpoint: str) -> None:
    """UserError where `suite` shows images and the policy reads a state, or the other way round."""
    if observes(policy) == "images" and suite.observes == "state":
        raise UserError(
            f"{checkpoint} holds a policy for images ({policy.architecture}): suite '{suite.name}' has none."
        )
    if observes(policy) == "state" and suite.observes == "images":
        raise UserError(
            f"{checkpoint} holds a state policy (mlp), which sees no images: name its suite and task, as in "
            f"embodied-rl eval gymnasium --task ID --checkpoint {checkpoint}."
        )


def check_told_apart(kind: str, names: Sequence[str]) -> None:
    """UserError where a policy of that kind reads no instruction and is to do several tasks; names: of these."""
    if not FAMILIES[kind].instructed and len(names) > 1:
        raise UserError(
            f"{kind} reads no instruction and can't tell {len(names)} tasks apart: name one, as in --tasks {names[0]}."
        )


def _check_images(policy: Any, info: EnvInfo, checkpoint: str) -> None:
    """UserError unless pictures, proprio and actions are of the policy's shapes."""
    if not info.cameras:
        raise UserError(
            f"{checkpoint} holds a policy for images ({policy.architecture}): suite '{info.suite}' has none."
        )
    if not info.instructed and FAMILIES[policy.architecture].instructed:
        raise UserError(
            f"{checkpoint} reads instructions, and suite '{info.suite}' says none: give one by --env.instruction TEXT, "
            "where it has that option."
        )
    config = policy.config
    proprio = (config.proprio_dim, info.proprio_dim) if policy.uses_proprio else (0, 0)
    for what, has, needed in (
        ("cameras", config.num_cameras, len(info.cameras)),
        ("images of", f"{config.image_size}x{config.image_size} pixels", "{}x{} pixels".format(*info.image_shape)),
        ("numbers of proprio", *proprio),
        ("numbers in an action", policy.action_dim, info.action_dim),
    ):
        if has != needed:
            raise UserError(f"{checkpoint} is for {what} {has}, and suite '{info.suite}' has {needed}.")


def _check_made_for(made_for: EnvInfo, info: EnvInfo, checkpoint: str) -> None:
    """UserError unless a simulator shows and takes what the one did that a custom policy was made for."""
    for what in ("image_shape", "proprio_dim", "state_dim", "action_dim"):
        has, needed = getattr(made_for, what), getattr(info, what)
        if has != needed:
            raise UserError(f"{checkpoint} was made for {what} {has}, and suite '{info.suite}' has {needed}.")
    if len(made_for.cameras) != len(info.cameras):
        raise UserError(
            f"{checkpoint} was made for {len(made_for.cameras)} cameras, and suite '{info.suite}' has "
            f"{len(info.cameras)}."
        )


def _sizes(info: EnvInfo) -> tuple[int, int]:
    """Numbers that a state policy reads and decides; UserError where there is nothing to read."""
    if info.proprio_dim + info.state_dim == 0:
        raise UserError(
            f"the tasks of suite '{info.suite}' that were named show images and no state: mlp reads a state."
        )
    return info.proprio_dim + info.state_dim, info.action_dim

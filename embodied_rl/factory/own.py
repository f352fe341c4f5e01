"""Simulators and policies of one's own: what they must offer, their names, and how their weights are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from embodied_rl.config.env import EnvConfig, MujocoConfig
from embodied_rl.config.train import OwnPolicyConfig, TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policies.checkpoints.folder import read_json, to_json
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.telemetry.info import PolicyInfo
from embodied_rl.vec_env import EnvInfo, VecEnv

WEIGHTS, CONFIG, PROVENANCE = "model.safetensors", "config.json", "provenance.json"
OWN = "own"


class TaskEnv(VecEnv, Protocol):
    """A simulator that says which initial states its tasks have.

    Example:
        >>> env.train_states, env.heldout_states
        ({'point/reach': range(0, 16)}, {'point/reach': range(16, 28)})
    """

    @property
    def train_states(self) -> TaskStates:
        """By task: the initial states that training draws from."""
        ...

    @property
    def heldout_states(self) -> TaskStates:
        """By task: the initial states that are evaluated; none of them may be in `train_states`."""
        ...


ENVS: dict[str, Callable[[int], TaskEnv]] = {}
"""Simulators of one's own by the name of their suite, such as `{"point": PointEnv}`; called with the number of
environments."""
POLICIES: dict[str, Callable[[EnvInfo], TrainablePolicy]] = {}
"""Policies of one's own by name; called with what the simulator says of itself."""


def refuse_reward(config: EnvConfig, what: str) -> None:
    """UserError if a staged or shaped reward is asked of a simulator of one's own, which pays what it pays."""
    if isinstance(config, MujocoConfig) and config.reward != "sparse":
        raise UserError(
            f"--env.reward {config.reward} is for the built-in suites and LIBERO's; {what} has its own reward."
        )


def open_own_policy(config: TrainConfig, info: EnvInfo) -> TrainablePolicy:
    """A new policy of the config's name; its weights follow from the config's seed.

    Raises:
        UserError: It has no name in `POLICIES`, and was passed as an object when the run began.
    """
    assert isinstance(config.policy, OwnPolicyConfig)
    name = config.policy.class_name
    if name not in POLICIES:
        raise UserError(
            f"{config.output} trains a {name}, which has no name in factory/own.py: go on with "
            "embodied_rl.train(resume=..., env=..., policy=...)."
        )
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        return POLICIES[name](info)


def own_class(policy: TrainablePolicy) -> str:
    """The name of a policy's class, with its module."""
    return f"{type(policy).__module__}.{type(policy).__qualname__}"


def own_policy_info(policy: TrainablePolicy) -> PolicyInfo:
    """What a policy of a class of one's own is, as fields."""
    numbers = [(parameter.numel(), parameter.requires_grad) for _, parameter in policy.named_parameters()]
    return PolicyInfo(
        family=own_class(policy),
        parameters=sum(count for count, _ in numbers),
        trained_parameters=sum(count for count, trained in numbers if trained),
        chunk_len=policy.chunk_len,
    )


def save_own(policy: TrainablePolicy, folder: Path, provenance: dict[str, Any]) -> None:
    """Write the weights, the name of the class, and how it was trained."""
    folder.mkdir()
    save_model(_module(policy), str(folder / WEIGHTS))
    (folder / CONFIG).write_bytes(to_json({"architecture": OWN, "class": own_class(policy)}))
    (folder / PROVENANCE).write_bytes(to_json(provenance))


def load_own(policy: TrainablePolicy, folder: Path) -> None:
    """Load into `policy` what `save_own` wrote.

    Raises:
        UserError: The folder holds another class, or weights of other shapes.
    """
    config = read_json(folder / CONFIG)
    if config.get("architecture") != OWN or config.get("class") != own_class(policy):
        holds = config.get("class") or config.get("architecture")
        raise UserError(f"{folder} holds {holds}, not {own_class(policy)}: load it into a policy of that class.")
    try:
        load_model(_module(policy), folder / WEIGHTS)
    except (RuntimeError, SafetensorError, OSError) as error:
        text = " ".join(str(error).split())
        raise UserError(f"{folder / WEIGHTS} does not fit {own_class(policy)}: {text}") from error


def _module(policy: TrainablePolicy) -> nn.Module:
    if not isinstance(policy, nn.Module):
        raise UserError(f"{own_class(policy)} must be a torch.nn.Module to be trained.")
    return policy

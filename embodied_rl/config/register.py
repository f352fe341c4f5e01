"""Envs and policies of one's own, registered from one's own module. Imports neither torch nor a simulator.

Example:
    >>> import embodied_rl as erl
    >>> erl.register_env("point", PointEnv)
    >>> erl.register_policy("gaussian", GaussianPolicy)
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embodied_rl.config.env import ENVS, CustomEnvConfig
from embodied_rl.config.policies import POLICIES, CustomPolicyConfig
from embodied_rl.config.suites import SUITES, Suite
from embodied_rl.errors import UserError

if TYPE_CHECKING:
    from embodied_rl.learner.types import TrainablePolicy

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class CustomEnv:
    """What `register_env` was given."""

    make: Callable[..., Any]
    tasks: tuple[str, ...]
    options: type[CustomEnvConfig] | None


@dataclass(frozen=True, slots=True)
class CustomPolicy:
    """What `register_policy` was given. options: a class for each name, so that a config knows its policy by it."""

    make: Callable[..., TrainablePolicy]
    options: type[CustomPolicyConfig]
    has_options: bool


CUSTOM_ENVS: dict[str, CustomEnv] = {}
"""By the name of their suite."""
CUSTOM_POLICIES: dict[str, CustomPolicy] = {}
"""By name, as in `--policy`."""


def register_env(
    name: str, make: Callable[..., Any], *, tasks: Sequence[str] = (), options: type[CustomEnvConfig] | None = None
) -> None:
    """Make a simulator of your own a suite, for every command and for `make_vec_env`.

    Args:
        name: Of the suite, as in `embodied-rl train NAME`.
        make: Opens it: `make(num_envs)` returns a `VecEnv` with `train_states` and `heldout_states`. Its `info` says
            what policies see: cameras, proprio, state.
        tasks: Names of its tasks, where it has several: it is called as `make(num_envs, tasks=(...))` then, with those
            that `--task` names, or all of them. Its states are by whole name, NAME/TASK.
        options: A frozen dataclass, a subclass of `CustomEnvConfig`: its fields are `--env.*`, with the strings below
            them as help, and `make(num_envs, options=...)` gets an instance.

    Raises:
        UserError: The name is that of something else, or `options` is no such class.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class PointOptions(erl.CustomEnvConfig):
        ...     radius: float = 0.3
        ...     \"\"\"How near the goal counts as success.\"\"\"
        >>> def make(num_envs, options):
        ...     return PointEnv(num_envs, radius=options.radius)
        >>> erl.register_env("point", make, options=PointOptions)
    """
    _check_name(name, "register_env", SUITES if name not in CUSTOM_ENVS else {})
    if options is not None:
        _check_name(name, "register_env", ENVS if name not in CUSTOM_ENVS else {})
        _check_options(options, CustomEnvConfig, "register_env", name)
        ENVS[name] = options
    elif name in CUSTOM_ENVS:
        ENVS.pop(name, None)
    SUITES[name] = Suite(name, ("custom" if options is None else name,), "any", is_custom=True)
    CUSTOM_ENVS[name] = CustomEnv(make, tuple(tasks), options)


def register_policy(
    name: str, make: Callable[..., TrainablePolicy], *, options: type[CustomPolicyConfig] | None = None
) -> None:
    """Make a policy of your own one that `--policy NAME` names.

    Args:
        name: Of the policy.
        make: Its class, or a function: `make(info)` returns a `torch.nn.Module` with the methods of
            `embodied_rl.policy.Policy`, for a simulator whose `EnvInfo` is `info`. Its weights must follow from
            torch's random numbers, which the run's seed fixes.
        options: A frozen dataclass, a subclass of `CustomPolicyConfig`: its fields are `--policy.*`, and
            `make(info, options=...)` gets an instance.

    Raises:
        UserError: The name is that of something else, or `options` is no such class.

    Example:
        >>> erl.register_policy("gaussian", GaussianPolicy)
    """
    _check_name(name, "register_policy", POLICIES if name not in CUSTOM_POLICIES else {})
    if options is None:
        made = type(name, (CustomPolicyConfig,), {"__doc__": CustomPolicyConfig.__doc__})
        known = CustomPolicy(make, made, has_options=False)
    else:
        _check_options(options, CustomPolicyConfig, "register_policy", name)
        known = CustomPolicy(make, options, has_options=True)
    POLICIES[name] = known.options
    CUSTOM_POLICIES[name] = known


def _check_name(name: str, function: str, taken: Mapping[str, Any]) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(f"{function}: '{name}' can't be a name: take letters, digits, _ and -, a letter first.")
    if name in taken:
        raise UserError(f"{function}: '{name}' is the name of something that embodied-rl has: take another one.")


def _check_options(options: Any, base: type, function: str, name: str) -> None:
    if not (isinstance(options, type) and issubclass(options, base) and "__dataclass_fields__" in vars(options)):
        raise UserError(f"{function}('{name}'): options must be a dataclass, a subclass of {base.__name__}.")
    required = [field.name for field in dataclasses.fields(options) if _is_required(field)]
    if required:
        raise UserError(f"{function}('{name}'): option '{required[0]}' needs a default.")


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING

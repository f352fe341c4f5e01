"""Simulators and policies of one's own: how they are made by their names, and how a policy's weights are kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from embodied_rl.config.env import CustomEnvConfig, EnvConfig, MujocoConfig
from embodied_rl.config.policies import CUSTOM, CUSTOM_BEFORE, CustomPolicyConfig, PolicyObjectConfig
from embodied_rl.config.register import CUSTOM_ENVS, CUSTOM_POLICIES
from embodied_rl.config.train import TrainConfig, known_kind
from embodied_rl.errors import UserError, refuse_twice, suggest
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policies.checkpoints.folder import read_json, to_json, write_folder
from embodied_rl.policies.checkpoints.integrity import record
from embodied_rl.policies.family import ExportRequest
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.telemetry.info import PolicyInfo
from embodied_rl.utils.dataclass_io import read_dataclass
from embodied_rl.utils.plugins import import_modules, imported
from embodied_rl.vec_env import EnvInfo, VecEnv

WEIGHTS, CONFIG, PROVENANCE = "model.safetensors", "config.json", "provenance.json"


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


@dataclass(frozen=True, slots=True)
class CustomEnvFactory:
    """Call it with a number of envs to open a registered simulator; can be pickled.

    names: its tasks; () where it was registered without. imports: modules that register it, for a watched process.
    """

    suite: str
    names: tuple[str, ...]
    options: CustomEnvConfig
    imports: tuple[str, ...]

    def __call__(self, num_envs: int) -> TaskEnv:
        import_modules(self.imports)
        known = CUSTOM_ENVS[self.suite]
        given: dict[str, Any] = {"tasks": self.names} if known.tasks else {}
        if known.options is not None:
            given["options"] = self.options
        env = known.make(num_envs, **given)
        if lost := [name for name in ("info", "train_states", "heldout_states") if not hasattr(env, name)]:
            raise UserError(f"suite '{self.suite}': the simulator that was registered has no {lost[0]}.")
        return env


def custom_tasks(suite: str, names: Sequence[str]) -> tuple[str, ...]:
    """The tasks of a registered suite, or those with the short `names`; UserError for one that it has not."""
    known = CUSTOM_ENVS[suite].tasks
    if names and not known:
        raise UserError(f"suite '{suite}' was registered without tasks to choose from: leave --task out.")
    refuse_twice(names, "task")
    for name in names:
        if name not in known:
            raise UserError(f"suite '{suite}' has no task '{name}'.{suggest(name, known)}")
    return tuple(names) or known


def env_factory(suite: str, names: tuple[str, ...], env: EnvConfig) -> CustomEnvFactory:
    """What opens a registered suite in this process or in another."""
    assert isinstance(env, CustomEnvConfig), "as the table says"
    return CustomEnvFactory(suite, names, env, imported())


def refuse_reward(config: EnvConfig, what: str) -> None:
    """UserError if a staged or shaped reward is asked of a custom simulator, which pays what it pays."""
    if isinstance(config, MujocoConfig) and config.reward != "sparse":
        raise UserError(
            f"--env.reward {config.reward} is for the built-in suites and LIBERO's; {what} has its own reward."
        )


@dataclass(frozen=True, slots=True)
class MadeFor:
    """What a registered policy was made by and for. name: '' of an object that was passed.

    own_units: it decides actions in the units of the data that it imitated, and not in [-1, 1].
    """

    name: str
    config: CustomPolicyConfig
    info: EnvInfo
    imports: tuple[str, ...] = ()
    own_units: bool = False

    def make(self) -> TrainablePolicy:
        """A new policy, whose weights follow from torch's random numbers; UserError where nothing has the name."""
        if not known_kind("policy", self.name) or self.name not in CUSTOM_POLICIES:
            raise UserError(f"no policy '{self.name}' is registered: name the module that registers it with --import.")
        known = CUSTOM_POLICIES[self.name]
        policy: Any = known.make(self.info, options=self.config) if known.has_options else known.make(self.info)
        _module(policy)
        policy.architecture, policy.made_for = CUSTOM, self
        return policy


def new_custom_policy(config: TrainConfig, name: str, info: EnvInfo, *, own_units: bool) -> TrainablePolicy:
    """A new policy of the registered `name`, whose weights follow from the config's seed. own_units: see `MadeFor`.

    Raises:
        UserError: nothing has the name, or the policy was passed as an object when the run began.
    """
    assert isinstance(config.policy, CustomPolicyConfig)
    if isinstance(config.policy, PolicyObjectConfig):
        raise UserError(
            f"{config.output} trains a {config.policy.class_name}, which was passed as an object: go on with "
            "embodied_rl.train(resume=..., policy=...), or register it (register_policy)."
        )
    policy = _seeded(MadeFor(name, config.policy, info, config.imports, own_units), config.seed)
    _module(policy).to(config.device)
    return policy


def new_for_data(name: str, info: EnvInfo, seed: int, *, own_units: bool) -> Any:
    """A new policy of the registered `name`, with its options as they are, for what a data set shows."""
    return _seeded(MadeFor(name, CUSTOM_POLICIES[name].options(), info, imported(), own_units), seed)


def _seeded(made: MadeFor, seed: int) -> TrainablePolicy:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return made.make()


def class_of(policy: Any) -> str:
    """The name of a policy's class, with its module; a wrapped one says its network's and its head's."""
    return getattr(policy, "class_name", None) or f"{type(policy).__module__}.{type(policy).__qualname__}"


def object_info(policy: TrainablePolicy) -> PolicyInfo:
    """What a policy that was passed as an object is, as fields."""
    numbers = [(parameter.numel(), parameter.requires_grad) for _, parameter in policy.named_parameters()]
    return PolicyInfo(
        family=class_of(policy),
        parameters=sum(count for count, _ in numbers),
        trained_parameters=sum(count for count, trained in numbers if trained),
        chunk_len=policy.chunk_len,
    )


def save_custom(policy: Any, folder: Path, provenance: dict[str, Any]) -> None:
    """Write the weights, the name of the class, how it was trained, and what it can be made again from."""
    made: MadeFor | None = getattr(policy, "made_for", None)
    config: dict[str, Any] = {"architecture": CUSTOM, "class": class_of(policy)}
    if made is not None:
        config |= {
            "policy": made.name,
            "options": dataclasses.asdict(made.config),
            "info": dataclasses.asdict(made.info),
            "imports": made.imports,
            "own_units": made.own_units,
        }
    weights = partial(save_model, _module(policy))
    files = {WEIGHTS: lambda path: weights(str(path)), CONFIG: to_json(config), PROVENANCE: to_json(provenance)}
    write_folder(folder, files)


def load_into(policy: Any, folder: Path) -> None:
    """Load into `policy` what `save_custom` wrote.

    Raises:
        UserError: The folder holds another class, or weights of other shapes.
    """
    config = read_json(folder / CONFIG)
    if config.get("architecture") not in (CUSTOM, CUSTOM_BEFORE) or config.get("class") != class_of(policy):
        holds = config.get("class") or config.get("architecture")
        raise UserError(f"{folder} holds {holds}, not {class_of(policy)}: load it into a policy of that class.")
    try:
        record(folder / WEIGHTS)
        load_model(_module(policy), folder / WEIGHTS)
    except (RuntimeError, SafetensorError, OSError) as error:
        text = " ".join(str(error).split())
        raise UserError(f"{folder / WEIGHTS} does not fit {class_of(policy)}: {text}") from error


def decides_own_units(folder: Path) -> bool:
    """`MadeFor.own_units` of the policy in `folder`; of one that does not say it yet, by its data's bounds."""
    config = read_json(folder / CONFIG)
    info = config.get("info", {})
    in_unit = {*info.get("action_low", ())} == {-1.0} and {*info.get("action_high", ())} == {1.0}
    return bool(config.get("own_units", info.get("backend") == "data" and not in_unit))


def load_custom(folder: Path) -> TrainablePolicy:
    """The registered policy in `folder`, made anew for the simulator that it was trained in.

    Raises:
        UserError: it was passed to `train` as an object, nothing has its name, or the folder is damaged.
    """
    config = read_json(folder / CONFIG)
    if not config.get("policy"):
        raise UserError(
            f"{folder} holds a {config.get('class')}, which was passed as an object: register it "
            "(embodied_rl.register_policy), or load it by embodied_rl.load_policy(..., into=...)."
        )
    source, name = str(folder / CONFIG), str(config["policy"])
    imports = tuple(map(str, config.get("imports", ())))
    import_modules(imports, source)
    info = read_dataclass(EnvInfo, config.get("info"), where="info", source=source)
    if not known_kind("policy", name) or name not in CUSTOM_POLICIES:
        raise UserError(f"{source}: no policy '{name}' is registered: name the module that does it with --import.")
    options = read_dataclass(CUSTOM_POLICIES[name].options, config.get("options", {}), where="options", source=source)
    with torch.random.fork_rng():
        policy = MadeFor(name, options, info, imports, decides_own_units(folder)).make()
    load_into(policy, folder)
    return policy


# What `factory.policies` asks of the family of all custom policies:


def load_options(given: Any) -> None:
    """There is nothing to say about a checkpoint."""


def load(folder: Path, options: None) -> TrainablePolicy:
    """See `load_custom`."""
    return load_custom(folder)


def save_policy(policy: Any, folder: Path, provenance: dict[str, Any]) -> None:
    """See `save_custom`."""
    save_custom(policy, folder, provenance)


def export(policy: Any, request: ExportRequest) -> None:
    """Write our own layout, which `load_custom` reads; UserError for another one, or another number format."""
    if request.layout != "native":
        raise UserError("a custom policy has no published layout: take --layout native.")
    if request.dtype is not None:
        raise UserError("a custom policy is exported in the number format that it has: leave --dtype out.")
    save_custom(policy, request.out, request.provenance)


def prepare(policy: Any, config: Any, folder: Path) -> None:
    """It trains as it is."""


def _module(policy: Any) -> nn.Module:
    if not isinstance(policy, nn.Module):
        raise UserError(f"{class_of(policy)} must be a torch.nn.Module to be trained.")
    return policy

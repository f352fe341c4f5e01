"""What a policy family offers to the rest of the program, so that nothing else names its classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.types import Array

if TYPE_CHECKING:
    import torch

    from embodied_rl.policies.memory import Footprint

Layout = Literal["openpi", "lerobot", "native"]
Observes = Literal["images", "state", "any"]
"""What a policy reads: images with an instruction, a task's state, or what it is made for."""


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    """Where and how `export` writes a policy.

    layout: None for the family's published one; 'native' is that of `save`, with adapters merged. cameras: LeRobot's
    names of the cameras. dtype: of the weights, None as they are.
    """

    out: Path
    layout: Layout | None
    cameras: tuple[str, ...]
    provenance: dict[str, Any]
    dtype: torch.dtype | None


@dataclass(frozen=True, slots=True)
class Room:
    """Most actions, states and cameras of the robots that one network is for."""

    actions: int
    states: int
    cameras: int


@dataclass(frozen=True, kw_only=True)
class FreshRequest:
    """What a policy with random weights is made for, by `sft` or in an env.

    state [rows, P] and action [rows, A] are those of a data set or of some episodes; unit_actions: actions fill [-1, 1]
    already. bounds: what every component of an action lies within, where that is known: A each. own_units: actions are
    as the robot takes them, such as joint angles, and no gripper in [-1, 1] is their last number. cameras: which of the
    policy's this robot has; () all. room: of what the network must also take, for other robots.
    """

    preset: str
    chunk_len: int
    seed: int
    instructions: Sequence[str]
    state: Array
    action: Array
    unit_actions: bool
    unnorm_key: str
    num_cameras: int = 2
    bounds: tuple[Array, Array] | None = None
    own_units: bool = False
    cameras: tuple[int, ...] = ()
    room: Room | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingMode:
    """A way to train, as memory planning compares them."""

    lora_rank: int
    train_expert_only: bool
    dtype: str
    gradient_checkpointing: bool


@dataclass(frozen=True, kw_only=True)
class PolicyFamily:
    """One kind of policy: the package `embodied_rl.policies.NAME`, whose modules are imported when they are needed.

    All families have the same modules: config, model, policy, start, checkpoint, hf_format, and memory where `plan`
    counts it.

    Example:
        family = FAMILIES["pi0"]
        policy = family.load(folder, family.load_options(Pi0Config(checkpoint="start")))
    """

    name: str
    """As in `--policy` and in a checkpoint's config.json."""
    config: type
    """Options of training."""
    given: tuple[str, ...]
    """Options of `factory.policies.PublishedOptions` that apply."""
    holds: Callable[[Mapping[str, Any]], bool]
    """Whether a published config.json is of this family; our own say their family's name."""
    instructed: bool = True
    """Whether a policy of images reads the instruction too."""

    def _module(self, name: str) -> Any:
        return import_module(f"embodied_rl.policies.{self.name}.{name}")

    def load_options(self, given: Any) -> Any:
        """What `load` takes, from anything with fields of the options' names; fields that are missing count as None."""
        return self._module("checkpoint").load_options(given)

    def load(self, folder: Path, options: Any) -> Any:
        """The policy in `folder`, ours or published, on the CPU; UserError names what is missing or does not fit."""
        return self._module("checkpoint").load(folder, options)

    def save(self, policy: Any, folder: Path, provenance: dict[str, Any]) -> None:
        """Write our own layout, all or nothing."""
        self._module("checkpoint").save_policy(policy, folder, provenance)

    def export(self, policy: Any, request: ExportRequest) -> None:
        """Write the published layout, or ours; UserError when it has no place for a part of the policy."""
        self._module("checkpoint").export(policy, request)

    def prepare(self, policy: Any, config: Any, folder: Path) -> None:
        """Let `policy`, which was loaded from `folder`, train and explore as its options `config` say."""
        self._module("checkpoint").prepare(policy, config, folder)

    def fresh(self, request: FreshRequest) -> Any:
        """A randomly initialised policy for a data set."""
        return self._module("start").fresh(request)

    def weights(self, folder: Path, options: Any) -> Any:
        """The policy in `folder`, whoever its robot is, for `refit`; options: as for `load`."""
        return self._module("checkpoint").weights(folder, options)

    def refit(self, policy: Any, request: FreshRequest) -> Any:
        """`policy` for the robot of `request`, whose preset does not count; its weights are kept as far as they fit."""
        return self._module("start").refit(policy, request)

    def add_robot(self, policy: Any, request: FreshRequest) -> None:
        """Let `policy` know a further data set's robot; UserError where its network has no place for it."""
        self._module("start").add_robot(policy, request)

    def adapt(self, policy: Any, folder: Path, rank: int) -> None:
        """Give `policy`, of `refit` and the weights in `folder`, LoRA adapters; what was resized trains whole."""
        self._module("start").adapt_refitted(policy, folder, rank)

    def preset(self, name: str, variant: str) -> Any:
        """The model config of a preset; only a published OpenVLA-OFT has variants."""
        config = self._module("config")
        return config.preset(name, config.variant(variant)) if hasattr(config, "variant") else config.preset(name)

    def measure(self, config: Any, mode: TrainingMode) -> Footprint:
        """Memory of training a model of `config`."""
        return self._module("memory").measure(config, mode)

    def cache_bytes(self, config: Any, element_bytes: int) -> int:
        """Key-value cache of one row."""
        return self._module("memory").cache_bytes(config, element_bytes)

    def prefix_bytes(self, config: Any, element_bytes: int) -> int:
        """What a prefix cache holds of one decision; 0 without one."""
        return self._module("memory").prefix_bytes(config, element_bytes)


def pick(kind: type, given: Any, **more: Any) -> Any:
    """An instance of the dataclass `kind` from the fields that `given` has too, and `more`."""
    names = [field.name for field in fields(kind) if hasattr(given, field.name)]
    return kind(**({name: getattr(given, name) for name in names} | more))

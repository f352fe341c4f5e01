"""What a policy family offers to the rest of the program, so that nothing else names its classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl.types import Array

if TYPE_CHECKING:
    import torch

    from embodied_rl.policies.memory import Footprint

SHIPPED = "shipped"
Layout = Literal["openpi", "lerobot", "native"]


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


@dataclass(frozen=True, kw_only=True)
class FreshRequest:
    """What `sft` starts from.

    state [rows, P] and action [rows, A] are the data set's; unit_actions: its actions fill [-1, 1] already.
    """

    preset: str
    chunk_len: int
    seed: int
    instructions: Sequence[str]
    state: Array
    action: Array
    unit_actions: bool
    unnorm_key: str


@dataclass(frozen=True, kw_only=True)
class TrainingMode:
    """A way to train, as memory planning compares them."""

    lora_rank: int
    train_expert_only: bool
    dtype: str
    gradient_checkpointing: bool


@dataclass(frozen=True, kw_only=True)
class PolicyFamily:
    """One kind of policy. Its functions import torch only when they are called.

    Example:
        family = FAMILIES["pi0"]
        policy = family.load(folder, family.load_options(Pi0Config(preset="pi0_base", ...)))
    """

    name: str
    """As in `--policy` and in a checkpoint's config.json."""
    config: type
    """Options of training."""
    given: tuple[str, ...]
    """Options of `factory.policies.PublishedOptions` that apply."""
    holds: Callable[[Mapping[str, Any]], bool]
    """Whether a published config.json is of this family; our own say their family's name."""
    load_options: Callable[[Any], Any]
    """From anything with fields of the options' names to what `load` takes; fields that are missing count as None."""
    load: Callable[[Path, Any], Any]
    """(folder, load options) -> the policy, on the CPU."""
    save: Callable[[Any, Path, dict[str, Any]], None]
    """(policy, folder, provenance): write our own layout, all or nothing."""
    export: Callable[[Any, ExportRequest], None]
    """Write the published layout; UserError when it has no place for a part of the policy."""
    prepare: Callable[[Any, Any, Path], None]
    """(policy, training options, folder it came from): what trains, and how it explores."""
    fresh: Callable[[FreshRequest], Any]
    """A randomly initialised policy for a data set."""
    preset: Callable[[str, str], Any]
    """(preset, variant) -> the model config."""
    measure: Callable[[Any, TrainingMode], Footprint]
    """(model config, mode) -> memory of training."""
    cache_bytes: Callable[[Any, int], int]
    """(model config, bytes of a number) -> key-value cache of one row."""
    prefix_bytes: Callable[[Any, int], int]
    """(model config, bytes of a number) -> what a prefix cache holds of one decision; 0 without one."""


def pick(kind: type, given: Any, **more: Any) -> Any:
    """An instance of the dataclass `kind` from the fields that `given` has too, and `more`."""
    names = [field.name for field in fields(kind) if hasattr(given, field.name)]
    return kind(**({name: getattr(given, name) for name in names} | more))

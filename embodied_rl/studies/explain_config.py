"""The two sides of `explain`: options of an evaluation, and what makes them differ, factor by factor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from embodied_rl.config.env import EnvConfig
from embodied_rl.config.suites import find_suite
from embodied_rl.config.train import kind_of, read_env
from embodied_rl.errors import UserError
from embodied_rl.evaluation.results_log import read_request
from embodied_rl.factory.made_for import import_modules_of
from embodied_rl.jobs.eval_request import BenchmarkCommand, benchmark_of, resolved, suite_name
from embodied_rl.policies.preprocessing.images import image_pipeline
from embodied_rl.sim.libero.protocol import HOLD, OPEN, Protocol, protocol
from embodied_rl.utils.dataclass_io import read_dataclass
from embodied_rl.utils.strict_yaml import read_mapping
from embodied_rl.utils.suites import LIBERO_PLUS, base_suite

_NO_FACTORS = (
    *("checkpoint", "suite", "tasks", "states", "states_per_task", "output", "json", "videos", "at_end"),
    *("protocol", "perturb", "perturb_level", "plus_tasks", "plus_instruction", "imports"),
)
_NO_ENV_FACTORS = ("num_envs", "num_threads", "processes")
"""Options that decide no outcome, or that both sides must share."""
_OFFICIAL_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class ProtocolChanges:
    """What an options file may change of its protocol."""

    images: str | None = None
    """Image pipeline by its name, such as as_rendered, openvla or lerobot."""
    render_size: int | None = None
    """Side of the rendered frames."""
    settle_steps: int | None = None
    """Control steps before the first decision."""
    max_steps: int | None = None
    """The episodes' horizon in control steps."""
    flip_gripper: bool = False
    """Negate the gripper's command."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of two evaluations. command: its options, with a protocol's name that is not 'auto'; changes: to that."""

    command: BenchmarkCommand
    changes: ProtocolChanges

    @property
    def benchmark(self) -> str:
        """'libero' or 'tabletop'."""
        return benchmark_of(self.command.suite)

    def protocol(self) -> Protocol:
        """The protocol with its changes."""
        base, changes = protocol(self.command.protocol), self.changes
        given = {
            name: value
            for name in ("images", "render_size", "settle_steps")
            if (value := getattr(changes, name)) is not None
        }
        if changes.max_steps is not None:
            family = base_suite(self.command.suite).partition("_")[2]
            given["horizons"] = {"10" if family == "long" else family: changes.max_steps}
        if changes.images is not None and changes.render_size is None:  # a pipeline that can't resize needs none
            resizes = image_pipeline(changes.images).resize is not None
            given["render_size"] = (base.render_size or _OFFICIAL_SIZE) if resizes else None
        return replace(base, **given)


@dataclass(frozen=True, slots=True)
class Factor:
    """One difference: its name, the value on each side, and where it stands in a `Side`."""

    name: str
    values: tuple[Any, Any]

    def words(self) -> tuple[str, str]:
        """Both values as a reader sees them."""
        first, second = map(_words, self.values)
        return first, second


def _words(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(_words(item) for item in value) or "none"
    return str(value)


def read_side(path: Path) -> Side:
    """A YAML file of options as `eval` has them, with the keys of `ProtocolChanges`; or the folder of an evaluation.

    UserError for keys or values that it cannot have.
    """
    if path.is_dir():
        request = read_request(path)
        data, changes = dict(request["options"]), {}
    else:
        data = read_mapping(path)
        names = {field.name for field in fields(ProtocolChanges)}
        changes = {name: data.pop(name) for name in list(data) if name in names}
    import_modules_of(str(data.get("checkpoint", "")))
    env = data.pop("env", {})
    command = read_dataclass(BenchmarkCommand, data, where="eval", source=str(path))
    command = replace(command, env=read_env(env, command.suite, str(path)))
    if not path.is_dir() and "_" not in command.suite and find_suite(command.suite) is None:
        raise UserError(f"{path}: suite: write its whole name, such as tabletop_{command.suite}.")
    if path.is_dir():
        command = replace(command, suite=suite_name(request["benchmark"], command.suite))
    if LIBERO_PLUS in (*command.perturb, command.protocol):
        raise UserError(
            f"{path}: eval itself compares LIBERO-plus' tasks with unperturbed ones: leave {LIBERO_PLUS} out."
        )
    side = Side(
        replace(resolved(benchmark_of(command.suite), command, command.suite), at_end=False, videos=0),
        read_dataclass(ProtocolChanges, changes, where="protocol", source=str(path)),
    )
    _check_pictures(side, path)
    return side


def _check_pictures(side: Side, path: Path) -> None:
    side.protocol()  # raises for an unknown pipeline
    for name, least in (("settle_steps", 0), ("max_steps", 1), ("render_size", 1)):
        value = getattr(side.changes, name)
        if value is not None and value < least:
            raise UserError(f"{path}: {name} must be at least {least}, got {value}.")


def factors(first: Side, second: Side) -> list[Factor]:
    """What differs; UserError when nothing does, or when they are not of one checkpoint and suite."""
    for name in ("checkpoint", "suite", "tasks", "states"):
        one, two = (getattr(side.command, name) for side in (first, second))
        if one != two:
            raise UserError(f"explain compares two ways to evaluate one thing, but {name} is {one} and {two}.")
    pairs: list[tuple[str, Any, Any]] = []
    for field in fields(BenchmarkCommand):
        if field.name in _NO_FACTORS:
            continue
        one, two = (getattr(side.command, field.name) for side in (first, second))
        if field.name == "env":
            pairs.append(("simulator", kind_of("env", one), kind_of("env", two)))
            shared = [part.name for part in fields(one) if hasattr(two, part.name)]
            pairs += [
                (f"env.{name}", getattr(one, name), getattr(two, name))
                for name in shared
                if name not in _NO_ENV_FACTORS
            ]
        else:
            pairs.append((field.name, one, two))
    values = [_protocol_values(side) for side in (first, second)]
    pairs += [(name, values[0][name], values[1][name]) for name in values[0]]
    found = [Factor(name, (one, two)) for name, one, two in pairs if one != two]
    if not found:
        raise UserError("the two evaluations have the same options: there is nothing to explain.")
    return found


def _settle_words(chosen: Protocol) -> str:
    """What the settle steps command."""
    known = {OPEN: "gripper opens", HOLD: "zero action"}
    return known.get(chosen.settle_action, str(chosen.settle_action))


def _protocol_values(side: Side) -> dict[str, Any]:
    chosen = side.protocol()
    horizons = dict(sorted(chosen.horizons.items())) or "the task's own"
    return {
        "pictures": f"{chosen.images}, frames of {chosen.render_size or 'the policy'}",
        "settling": f"{chosen.settle_steps} steps, {_settle_words(chosen)}" if chosen.settle_steps else "none",
        "horizon": side.changes.max_steps or horizons,
        "perturbed": (side.command.perturb, side.command.perturb_level) if side.command.perturb else "no",
        "gripper sign": "flipped" if side.changes.flip_gripper else "as commanded",
    }


def with_factor(first: Side, second: Side, name: str) -> tuple[Side, Protocol]:
    """`first` with the value that `second` has of one factor; and its protocol."""
    command, changes, chosen = first.command, first.changes, first.protocol()
    if name in _OF_PROTOCOL:
        chosen = _with_fields(chosen, second.protocol(), _OF_PROTOCOL[name])
    elif name == "gripper sign":
        changes = replace(changes, flip_gripper=second.changes.flip_gripper)
    elif name == "perturbed":
        command = _with_fields(command, second.command, ("perturb", "perturb_level"))
    elif name == "simulator":  # what only the other has comes with it
        shared = [part.name for part in fields(command.env) if hasattr(second.command.env, part.name)]
        command = replace(command, env=_with_fields(second.command.env, command.env, shared))
    elif name.startswith("env."):
        part = name.removeprefix("env.")
        command = replace(command, env=_with_fields(command.env, second.command.env, (part,)))
    else:
        command = _with_fields(command, second.command, (name,))
    return Side(command, changes), chosen


_OF_PROTOCOL = {
    "pictures": ("images", "render_size"),
    "settling": ("settle_steps", "settle_action"),
    "horizon": ("horizons",),
}
"""Factors that are fields of the protocol."""
PartT = TypeVar("PartT", Protocol, BenchmarkCommand, EnvConfig)


def _with_fields(part: PartT, other: Any, names: Iterable[str]) -> PartT:
    """`part` with what `other` has under some names."""
    return replace(part, **{name: getattr(other, name) for name in names})

"""Stand-ins of launch and launch_ros, which are in no package index: what a launch file would start, and with what.

They take the arguments that the package uses and refuse all others, as the real ones do.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

PACKAGE = Path(__file__).parents[3] / "integrations/ros2/embodied_rl_bridge"


@dataclass
class DeclareLaunchArgument:
    name: str
    default_value: Any = None
    description: str = ""


@dataclass
class LaunchConfiguration:
    variable_name: str


@dataclass
class PathJoinSubstitution:
    substitutions: list[Any]


@dataclass
class FindPackageShare:
    package: str


@dataclass
class NotEqualsSubstitution:
    left: Any
    right: Any


@dataclass
class IfCondition:
    predicate_expression: Any


@dataclass
class ParameterValue:
    value: Any
    value_type: type = str


@dataclass
class Shutdown:
    pass


@dataclass(kw_only=True)
class ExecuteProcess:
    cmd: list[Any]
    condition: IfCondition | None = None
    output: str = "log"
    on_exit: Shutdown | None = None


@dataclass(kw_only=True)
class Node:
    package: str
    executable: str
    parameters: list[Any] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    ros_arguments: list[Any] = field(default_factory=list)
    output: str = "log"
    sigterm_timeout: str = "5"
    on_exit: Shutdown | None = None
    condition: IfCondition | None = None


@dataclass
class LaunchDescription:
    entities: list[Any]


_MODULES: dict[str, tuple[Any, ...]] = {
    "launch": (LaunchDescription,),
    "launch.actions": (DeclareLaunchArgument, ExecuteProcess, Shutdown),
    "launch.conditions": (IfCondition,),
    "launch.substitutions": (LaunchConfiguration, NotEqualsSubstitution, PathJoinSubstitution),
    "launch_ros": (),
    "launch_ros.actions": (Node,),
    "launch_ros.parameter_descriptions": (ParameterValue,),
    "launch_ros.substitutions": (FindPackageShare,),
}


class Launched:
    """A launch file under these launch arguments.

    Args:
        patch: Puts the stand-ins and the package where imports find them.
        name: Of the launch file, such as 'twin'.
        arguments: What follows it on the command line.
        package: The package's folder.

    Attributes:
        declared: Its launch arguments.
        used: Those that something was made of.
        nodes: What is started, by executable; without what a condition leaves out.
        commands: Other processes.
    """

    def __init__(self, patch: pytest.MonkeyPatch, name: str, package: Path = PACKAGE, **arguments: str) -> None:
        for module, things in _MODULES.items():
            made = ModuleType(module)
            vars(made).update({thing.__name__: thing for thing in things} | {"Action": object, "Substitution": object})
            patch.setitem(sys.modules, module, made)
        for loaded in [one for one in sys.modules if one.split(".")[0] == "embodied_rl_bridge"]:
            patch.delitem(sys.modules, loaded)
        patch.syspath_prepend(str(package))
        entities = _load(package / "launch" / f"{name}.launch.py").generate_launch_description().entities
        self._package, self._given, self.used = package, arguments, set[str]()
        self.declared = {one.name: one for one in entities if isinstance(one, DeclareLaunchArgument)}
        assert arguments.keys() <= self.declared.keys()
        started = [one for one in entities if not isinstance(one, DeclareLaunchArgument) and self._holds(one)]
        self.nodes = {one.executable: one for one in started if isinstance(one, Node)}
        self.commands = [[self.text(word) for word in one.cmd] for one in started if isinstance(one, ExecuteProcess)]
        for node in self.nodes.values():
            for word in (*node.arguments, *node.ros_arguments):
                self.text(word)

    def parameters(self, executable: str) -> dict[str, Any]:
        """A node's parameters, the later ones in place of the earlier, as ROS reads them."""
        found = dict[str, Any]()
        for given in self.nodes[executable].parameters:
            if isinstance(given, Mapping):
                found |= {name: self._value(value) for name, value in given.items()}
            else:
                found |= yaml.safe_load(Path(self.text(given)).read_text())["/**"]["ros__parameters"]
        return found

    def text(self, thing: Any) -> str:
        """What a substitution becomes."""
        if isinstance(thing, LaunchConfiguration):
            self.used.add(thing.variable_name)
            default = self.declared[thing.variable_name].default_value
            return self._given[thing.variable_name] if thing.variable_name in self._given else self.text(default)
        if isinstance(thing, PathJoinSubstitution):
            return str(Path(*map(self.text, thing.substitutions)))
        if isinstance(thing, FindPackageShare):
            assert thing.package == self._package.name
            return str(self._package)
        if isinstance(thing, NotEqualsSubstitution):
            return str(self.text(thing.left) != self.text(thing.right)).lower()
        assert isinstance(thing, str), f"a launch argument without a value: {thing}"
        return thing

    def _value(self, value: Any) -> Any:
        return value.value_type(self.text(value.value)) if isinstance(value, ParameterValue) else value

    def _holds(self, action: Node | ExecuteProcess) -> bool:
        return action.condition is None or self.text(action.condition.predicate_expression) == "true"


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem.replace(".", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

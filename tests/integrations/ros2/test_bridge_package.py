"""The ROS 2 package: what it installs is there, and what its launch files name is what the nodes know."""

from __future__ import annotations

import ast
import importlib
import json
import shutil
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from catkin_pkg.package import parse_package

from embodied_rl.cli.serve import ServeCommand
from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.parameters import options_of
from embodied_rl.real_robot.twin.options import TwinOptions
from embodied_rl.version import __version__
from tests.integrations.ros2.launched import PACKAGE, Launched

ROOT = Path(__file__).parents[3]
NEEDED = {"twin": {}, "arm": {"robot": "fr3"}, "recorder": {"robot": "arm.yaml", "record": "demo.mcap"}}
"""Launch arguments without a default."""
READERS = {"bridge": BridgeOptions.from_json, "twin": TwinOptions.from_json}


class GivenNode:
    """A node that was given parameters, as rclpy declares them."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = {**given, "use_sim_time": False}

    def get_parameters_by_prefix(self, prefix: str) -> dict[str, Any]:
        return {name: SimpleNamespace(value=value) for name, value in self.given.items()}

    def undeclare_parameter(self, name: str) -> None:
        del self.given[name]


def options(launched: Launched, executable: str) -> Any:
    """A node's options, read as its process reads them; it declares those and no other parameters."""
    return options_of(GivenNode(launched.parameters(executable)), READERS[executable])


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What setup.py says, run in the package's folder as colcon runs it."""
    said = dict[str, Any]()
    monkeypatch.setattr("setuptools.setup", lambda **words: said.update(words))
    monkeypatch.chdir(PACKAGE)
    exec(compile((PACKAGE / "setup.py").read_text(), "setup.py", "exec"), {"__name__": "__main__"})
    return said


def test_the_twin_is_launched_with_its_bridge_and_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch, "twin", speed="0.5", port="9000", suite="tabletop_goal")
    assert options(launched, "bridge") == BridgeOptions(robot="twin", resume_s=0.3, speed=0.5, port=9000)
    assert options(launched, "twin") == TwinOptions(suite="tabletop_goal", speed=0.5)
    assert launched.commands == [["embodied-rl", "serve", "shipped", "--port", "9000"]]
    assert "port" in {one.name for one in fields(ServeCommand)}
    assert Launched(monkeypatch, "twin", policy="", host="gpu-box").commands == []


def test_an_arm_is_launched_with_nothing_but_the_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch, "arm", robot="arm.yaml", host="gpu-box", record="a.mcap")
    assert options(launched, "bridge") == BridgeOptions(robot="arm.yaml", host="gpu-box", record="a.mcap")
    assert (list(launched.nodes), launched.commands) == (["bridge"], [])


def test_the_recorder_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch, "recorder", **NEEDED["recorder"])
    assert options(launched, "bridge") == BridgeOptions(robot="arm.yaml", mode="shadow", record="demo.mcap")


@pytest.mark.parametrize("name", NEEDED)
def test_a_launch_file_has_no_argument_that_does_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = Launched(monkeypatch, name, rviz="true", **NEEDED[name])
    for executable in launched.nodes:
        launched.parameters(executable)
    assert launched.used == launched.declared.keys()
    assert {one.name for one in launched.declared.values() if one.default_value is None} == NEEDED[name].keys()
    assert all(one.description for one in launched.declared.values())


@pytest.mark.parametrize("name", NEEDED)
def test_executables_are_the_packages_own_and_take_the_time_that_they_need(
    name: str, declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Launched(monkeypatch, name, rviz="true", **NEEDED[name]).nodes
    known = {script.partition(" = ")[0] for script in declared["entry_points"]["console_scripts"]}
    assert {one.executable for one in nodes.values() if one.package == declared["name"]} <= known
    assert {one.package for one in nodes.values()} == {declared["name"], "rviz2"}
    assert float(nodes["bridge"].sigterm_timeout) >= BridgeOptions(record="a.mcap").ending_s
    assert nodes["bridge"].on_exit is not None


@pytest.mark.parametrize("name", NEEDED)
def test_no_parameter_is_in_a_file_and_a_launch_argument_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what a person writes into the file would be overruled without a word."""
    launched = Launched(monkeypatch, name, **NEEDED[name])
    for executable, node in launched.nodes.items():
        (file, given) = node.parameters
        assert not yaml.safe_load(Path(launched.text(file)).read_text())["/**"]["ros__parameters"].keys() & given.keys()
        assert executable in READERS


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("config/bridge.yaml", "horizon:", "horizn:", "unknown key 'bridge.horizn'. Did you mean 'horizon'?"),
        ("config/twin.yaml", "friction:", "frictoin:", "unknown key 'twin.frictoin'. Did you mean 'friction'?"),
        ("config/bridge.yaml", "horizon: 2 ", "horizon: two ", "'bridge.horizon' must be a whole number, got 'two'"),
        ("launch/twin.launch.py", '"resume_s"', '"resum_s"', "unknown key 'bridge.resum_s'. Did you mean 'resume_s'?"),
        ("embodied_rl_bridge/actions.py", '{"host":', '{"hosts":', "unknown key 'bridge.hosts'. Did you mean 'host'?"),
        ("launch/twin.launch.py", '{"suite":', '{"suites":', "unknown key 'twin.suites'. Did you mean 'suite'?"),
        ("config/bridge.yaml", "requests: 1", "token: secret", "token is no parameter"),
    ],
)
def test_a_parameter_that_no_node_has_is_found(
    file: str, old: str, new: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = shutil.copytree(PACKAGE, tmp_path / PACKAGE.name)
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    launched = Launched(monkeypatch, "twin", package)
    with pytest.raises(UserError) as caught:
        [options(launched, executable) for executable in launched.nodes]
    assert words in str(caught.value)


def test_options_come_as_json_or_as_parameters() -> None:
    with pytest.raises(UserError, match="not both: remove robot"):
        options_of(GivenNode({"robot": "fr3"}), BridgeOptions.from_json, '{"robot": "ur5e"}')
    assert options_of(GivenNode({}), BridgeOptions.from_json, '{"robot": "ur5e"}').robot == "ur5e"
    assert options_of(GivenNode({"record": ""}), BridgeOptions.from_json) == BridgeOptions()


def test_every_option_of_the_twin_can_be_a_parameter() -> None:
    given = json.loads(TwinOptions(looks=("light",), friction=0.5).to_json())
    assert options_of(GivenNode(given), TwinOptions.from_json) == TwinOptions(looks=("light",), friction=0.5)


def test_all_files_are_installed(declared: dict[str, Any]) -> None:
    installed = {file for _, files in declared["data_files"] for file in files}
    there = {str(one.relative_to(PACKAGE)) for one in PACKAGE.rglob("*.*") if one.parent != PACKAGE and one.is_file()}
    assert installed == {one for one in there if one.endswith((".launch.py", ".yaml", ".rviz"))} | {
        "package.xml",
        "resource/embodied_rl_bridge",
    }
    assert all((PACKAGE / file).is_file() for file in installed)
    folders = {folder for folder, _ in declared["data_files"]}
    assert {"share/ament_index/resource_index/packages", "share/embodied_rl_bridge"} < folders


def test_console_scripts_are_functions(declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PACKAGE))
    for script in declared["entry_points"]["console_scripts"]:
        module, _, function = script.partition(" = ")[2].partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def imported_packages() -> set[str]:
    """ROS packages of which the nodes and the launch files import modules."""
    found = set[str]()
    for folder in ("real_robot/ros2", "real_robot/twin", str(PACKAGE.relative_to(ROOT))):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and node.module:
                    found.add(node.module.split(".")[0])
                elif isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
    ros = ("_msgs", "_srvs", "_interfaces", "rclpy", "launch", "launch_ros")
    return {name for name in found if name.endswith(ros)} - {"control_msgs"}  # which grippers and actions need alone


def test_package_xml_is_valid_and_says_what_the_nodes_import(declared: dict[str, Any]) -> None:
    warnings = list[str]()
    package = parse_package(str(PACKAGE), warnings=warnings)
    package.validate(warnings=warnings)
    assert warnings == []
    assert package.package_format == 3
    assert package.get_build_type() == "ament_python"
    assert (package.name, package.version) == (declared["name"], declared["version"])
    assert package.version == __version__
    assert {one.name for one in package.exec_depends} == imported_packages() | {"ros2launch", "rviz2"}


@pytest.mark.parametrize(("config", "robot"), [("twin", "twin"), ("arm", "generic")])
def test_rviz_shows_the_arms_cameras(config: str, robot: str) -> None:
    shown = yaml.safe_load((PACKAGE / f"rviz/{config}.rviz").read_text())["Visualization Manager"]["Displays"]
    topics = {one["Topic"]["Value"] for one in shown if one["Class"] == "rviz_default_plugins/Image"}
    assert topics == {camera.topic for camera in load_ros_config(robot).cameras}

"""What the launch files share."""

from __future__ import annotations

from collections.abc import Mapping

from launch import Action, Substitution
from launch.actions import DeclareLaunchArgument, Shutdown
from launch.conditions import IfCondition
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare

PACKAGE = "embodied_rl_bridge"
ENDING_S = "100"
"""How long the bridge may take from Ctrl-C on: the arm to rest, then the recording on a slow disk."""


def share(folder: str, name: str) -> Substitution:
    """A file that the package has installed."""
    return PathJoinSubstitution([FindPackageShare(PACKAGE), folder, name])


def given(name: str, kind: type = str) -> ParameterValue:
    """A launch argument as a parameter's value."""
    return ParameterValue(LaunchConfiguration(name), value_type=kind)


def bridge_arguments() -> list[Action]:
    """The launch arguments of every bridge."""
    return [
        DeclareLaunchArgument("host", default_value="127.0.0.1", description="the policy server's computer"),
        DeclareLaunchArgument("port", default_value="8000", description="the policy server's port"),
        DeclareLaunchArgument(
            "params",
            default_value=share("config", "bridge.yaml"),
            description="a YAML file of the bridge's other parameters",
        ),
        DeclareLaunchArgument("enclave", default_value="/", description="SROS 2: where the keystore has its keys"),
        DeclareLaunchArgument("rviz", default_value="false", description="true opens RViz"),
    ]


def bridge(parameters: Mapping[str, ParameterValue | str | float]) -> Node:
    """The bridge; all that was launched ends with it.

    Args:
        parameters: What this launch file is for, beside host and port.
    """
    return Node(
        package=PACKAGE,
        executable="bridge",
        parameters=[LaunchConfiguration("params"), {"host": given("host"), "port": given("port", int), **parameters}],
        ros_arguments=enclave(),
        output="screen",
        sigterm_timeout=ENDING_S,
        on_exit=Shutdown(),
    )


def enclave() -> list[str | Substitution]:
    """The argument that names a process' keys under SROS 2."""
    return ["--enclave", LaunchConfiguration("enclave")]


def rviz(config: str) -> Node:
    """RViz, where it is wanted, with a shipped configuration."""
    return Node(
        package="rviz2",
        executable="rviz2",
        arguments=["-d", share("rviz", config)],
        ros_arguments=enclave(),
        condition=IfCondition(LaunchConfiguration("rviz")),
    )

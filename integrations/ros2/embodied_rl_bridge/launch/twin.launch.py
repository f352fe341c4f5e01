"""The simulated twin, the bridge and the policy server on one computer."""

from __future__ import annotations

from embodied_rl_bridge.actions import PACKAGE, bridge, bridge_arguments, enclave, given, rviz, share
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, Shutdown
from launch.conditions import IfCondition
from launch.substitutions import LaunchConfiguration, NotEqualsSubstitution
from launch_ros.actions import Node


def generate_launch_description() -> LaunchDescription:
    """Ready to be armed by `ros2 service call /embodied_rl/arm std_srvs/srv/Trigger` once it has an instruction."""
    speed = {"speed": given("speed", float)}
    policy, port = LaunchConfiguration("policy"), LaunchConfiguration("port")
    server = ExecuteProcess(
        cmd=["embodied-rl", "serve", policy, "--port", port],
        condition=IfCondition(NotEqualsSubstitution(policy, "")),
        output="screen",
        on_exit=Shutdown(),
    )
    twin = Node(
        package=PACKAGE,
        executable="twin",
        parameters=[LaunchConfiguration("twin_params"), {"suite": given("suite"), **speed}],
        ros_arguments=enclave(),
        output="screen",
        on_exit=Shutdown(),
    )
    return LaunchDescription(
        [
            DeclareLaunchArgument(
                "policy", default_value="shipped", description="what is served here; '' for a server that runs already"
            ),
            DeclareLaunchArgument("suite", default_value="tabletop_spatial", description="the twin's tabletop suite"),
            DeclareLaunchArgument("speed", default_value="1.0", description="the twin's seconds in one of the wall's"),
            DeclareLaunchArgument("record", default_value="", description="an MCAP file to record into; '' for none"),
            DeclareLaunchArgument(
                "twin_params",
                default_value=share("config", "twin.yaml"),
                description="a YAML file of the twin's other parameters",
            ),
            *bridge_arguments(),
            server,
            twin,
            bridge({"robot": "twin", "resume_s": 0.3, "record": given("record"), **speed}),
            rviz("twin.rviz"),
        ]
    )

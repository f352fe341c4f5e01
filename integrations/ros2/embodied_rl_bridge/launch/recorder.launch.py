"""Records an arm that somebody else moves, and what the policy would have done: the bridge in shadow mode."""

from __future__ import annotations

from embodied_rl_bridge.actions import bridge, bridge_arguments, given, rviz
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument


def generate_launch_description() -> LaunchDescription:
    """Nothing is sent to the arm, which cannot be armed in this mode."""
    return LaunchDescription(
        [
            DeclareLaunchArgument("robot", description="the arm's file, or the name of a shipped one"),
            DeclareLaunchArgument("record", description="the MCAP file to record into; it must not exist yet"),
            *bridge_arguments(),
            bridge({"robot": given("robot"), "mode": "shadow", "record": given("record")}),
            rviz("arm.rviz"),
        ]
    )

"""The bridge beside a real arm, whose driver, controller and cameras run already, as the policy server does."""

from __future__ import annotations

from embodied_rl_bridge.actions import bridge, bridge_arguments, given, rviz
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument


def generate_launch_description() -> LaunchDescription:
    """The arm moves only once a person has called `/embodied_rl/arm` and `/embodied_rl/start`."""
    return LaunchDescription(
        [
            DeclareLaunchArgument("robot", description="the arm's file, or the name of a shipped one"),
            DeclareLaunchArgument("record", default_value="", description="an MCAP file to record into; '' for none"),
            DeclareLaunchArgument("mode", default_value="live", description="live, dry_run or shadow"),
            *bridge_arguments(),
            bridge({"robot": given("robot"), "mode": given("mode"), "record": given("record")}),
            rviz("arm.rviz"),
        ]
    )

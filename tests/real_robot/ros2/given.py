"""What a node of a process makes of the ROS arguments on its command line: its parameters, or why they are refused."""

from __future__ import annotations

import json
import sys
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.parameters import argument, declare_parameters, options_of
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.options import TwinOptions

_OWN = ("use_sim_time", "start_type_description_service")


def given(read: Any, *rules: str) -> Any:
    """Parameters of a node under these rules, and what becomes of setting some of them; or the refusal."""
    sys.argv = ["bridge", "--ros-args", *rules]
    try:
        with Session("embodied_rl", managed=True) as session:
            node = session.node
            declare_parameters(node, options_of(node, read, argument(sys.argv)))
            known = {name: one.value for name, one in node.get_parameters_by_prefix("").items() if name not in _OWN}
            return [known, _refusals(node)]
    except UserError as error:
        return str(error)


def _refusals(node: Any) -> list[str]:
    from rclpy.parameter import Parameter

    wishes = [Parameter("use_sim_time", value=True), *(Parameter(one, value=0.5) for one in ("speed",))]
    return [result.reason for result in node.set_parameters(wishes)]


def main() -> None:
    """Print it of each case."""
    bridge, twin = BridgeOptions.from_json, TwinOptions.from_json
    said = {
        "bridge": given(bridge, "-p", "robot:=fr3", "-p", "port:=9000", "-p", "latency_s:=0"),
        "twin": given(twin, "-p", "looks:=[light, texture]", "-p", "seed:=3"),
        "misspelt": given(bridge, "-p", "robt:=fr3"),
        "token": given(bridge, "-p", "token:=secret"),
        "simulated": given(bridge, "-p", "use_sim_time:=true"),
        "renamed": given(bridge, "-r", "__node:=other"),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()

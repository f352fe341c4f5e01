"""Server, twin and bridge through faults, as a process that has rclpy: prints one JSON line for the tests."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Any

from embodied_rl.real_robot.deploy.episodes import run_episode
from embodied_rl.real_robot.deploy.faults import Drills
from embodied_rl.real_robot.deploy.fleet import Fleet, FleetConfig
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.twin.options import TwinOptions


def main(speed: float) -> dict[str, Any]:
    """An episode, then every fault."""
    config = FleetConfig(
        environment=os.environ,
        server=("tests.real_robot.ros2.moving_server",),
        bridge=BridgeOptions(port=0, speed=speed),
        twin=TwinOptions(suite="tabletop_object", speed=speed, image_size=16),
    )
    fleet = Fleet(config)
    try:
        assert fleet.twin is not None
        drills = Drills(fleet, "tabletop_object/pick_up_the_bottle_and_place_it_in_the_basket", speed)
        episode = run_episode(fleet.bridge, fleet.twin, drills.task, 50, 1.0)
        checks = [asdict(check) for check in fleet.bridge.preflight()]
        said = [drills.emergency_stop(), drills.drop_camera()]
        said += [drills.stop(name) for name in ("server", "twin", "bridge")]
        said += [drills.kill(name) for name in ("server", "twin", "bridge")]
        outcomes = fleet.bridge.status["outcomes"]
        return {"episode": asdict(episode), "checks": checks, "drills": [asdict(drill) for drill in said], **outcomes}
    finally:
        fleet.close()


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]))))

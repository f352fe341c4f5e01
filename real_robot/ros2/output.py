"""What a control tick sends, and of two arms each arm's part."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from embodied_rl.real_robot.core.gate import Setpoint
from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.two_arms import TwoArmRobot


@dataclass(frozen=True)
class Output:
    """What a tick sends.

    Args:
        tick: The decision with its set point; nothing is sent where that is None.
        stop: The set points of a stop from there on.
        position: The tool's at the set point [3], m, base frame; of two arms [2, 3].
        quaternion: The same, x, y, z, w; of two arms [2, 4].
        width: The gripper's, m; None without one, and for two arms.
        widths: Of two arms both grippers', m.
    """

    tick: Tick
    stop: list[Setpoint]
    position: np.ndarray
    quaternion: np.ndarray
    width: float | None
    widths: tuple[float, ...] = ()


def each_arms(output: Output, robot: TwoArmRobot) -> tuple[Output, Output]:
    """Each arm's part of what two send, for its own controller."""
    setpoint = output.tick.setpoint
    halves = (None, None) if setpoint is None else _split(setpoint, robot)
    stops = [_split(one, robot) for one in output.stop]
    left, right = (
        Output(
            tick=replace(output.tick, setpoint=halves[arm]),
            stop=[one[arm] for one in stops],
            position=output.position[arm],
            quaternion=output.quaternion[arm],
            width=output.widths[arm] if output.widths else None,
        )
        for arm in (0, 1)
    )
    return left, right


def _split(setpoint: Setpoint, robot: TwoArmRobot) -> tuple[Setpoint, Setpoint]:
    positions, velocities = robot.of_each(setpoint.positions), robot.of_each(setpoint.velocities)
    return (
        Setpoint(setpoint.stamp_ns, positions[0], velocities[0]),
        Setpoint(setpoint.stamp_ns, positions[1], velocities[1]),
    )

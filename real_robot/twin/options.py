"""What the twin is told, as one JSON text between processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from embodied_rl.real_robot.ros2.options import read_options

TOPICS = {"episode": "/twin/episode", "state": "/twin/state", "faults": "/twin/faults", "person": "/twin/person"}
"""Beyond an arm's topics: which episode to begin, how it stands, which faults to inject, whether the scripted expert
takes the arm over as a person would (all JSON in String)."""


@dataclass(frozen=True, kw_only=True)
class TwinOptions:
    """How the twin runs.

    Args:
        suite: A tabletop suite; for a robot of two arms the path of an MJCF with the joints of its file.
        robot: `twin`, or the file of a robot of two arms.
        joint_hz: Joint states a second.
        camera_hz: Pictures a second.
        image_size: H = W of the pictures; 0, for two arms: the cameras send none.
        camera_latency_s: From a picture's stamp to its message.
        camera_drop: Share of pictures that never come.
        joint_drop: The same for joint states.
        command_latency_s: From a command's message to the arm.
        friction, damping, looks, level, noise: See `Difference`.
        speed: See `Clock`.
        seed: Of what is dropped and redrawn.
    """

    suite: str = "tabletop_spatial"
    robot: str = "twin"
    joint_hz: float = 100.0
    camera_hz: float = 20.0
    image_size: int = 64
    camera_latency_s: float = 0.0
    camera_drop: float = 0.0
    joint_drop: float = 0.0
    command_latency_s: float = 0.0
    friction: float = 1.0
    damping: float = 0.0
    looks: tuple[str, ...] = ()
    level: float = 1.0
    noise: float = 0.0
    speed: float = 1.0
    seed: int = 0

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TwinOptions:
        """What `to_json` wrote, or a person: what is left out has its default.

        Raises:
            UserError: It is no JSON, or an option is unknown or of another type.
        """
        return read_options(cls, text, "twin")

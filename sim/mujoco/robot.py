"""What a suite's robot takes and shows; the engine reads sizes, bounds, cameras and rate from a task's robot."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JointDrive:
    """What one number of an action does: position actuators hold joints at `scale * number + offset`.

    Args:
        joints: one, or two of which the second is held at minus that, such as the fingers of a gripper.
        scale, offset: in m or rad.
    """

    joints: tuple[str, ...]
    scale: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotSpec:
    """The interface of a robot, as `EnvInfo` describes it.

    Args:
        name: of the robot.
        cameras: of its scenes, in the order in which policies see them.
        proprio_dim: P.
        action_low, action_high: A bounds each, to which actions are clipped.
        control_hz: control steps a second of simulated time.
        drives: what each number of an action does, where actions are joint positions. (): the robot is LIBERO's Panda
            under operational space control.

    Example:
        >>> PANDA.action_dim, PANDA.cameras[0]
        (7, 'agentview')
    """

    name: str
    cameras: tuple[str, ...]
    proprio_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_hz: float
    drives: tuple[JointDrive, ...] = ()

    @property
    def action_dim(self) -> int:
        """A."""
        return len(self.action_low)


PANDA = RobotSpec(
    name="panda",
    cameras=("agentview", "robot0_eye_in_hand"),
    proprio_dim=8,
    action_low=(-1.0,) * 7,
    action_high=(1.0,) * 7,
    control_hz=20.0,
)
"""LIBERO's: changes of the pose of the grip site and the gripper, by operational space control."""

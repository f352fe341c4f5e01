"""ALOHA's two arms: 14 numbers at 50 Hz, as gym-aloha and LeRobot have them."""

from __future__ import annotations

from embodied_rl.sim.mujoco.robot import JointDrive, RobotSpec

SIDES = ("left", "right")
ARM_JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
ARM_RANGES = (
    (-3.14158, 3.14158),
    (-1.85005, 1.25664),
    (-1.76278, 1.6057),
    (-3.14158, 3.14158),
    (-1.8675, 2.23402),
    (-3.14158, 3.14158),
)
"""Of the joints and of their actuators in rad, in the order of ARM_JOINTS."""
FINGER_OPEN, FINGER_CLOSED = 0.05800, 0.01844
"""Where gym-aloha says that a finger is, in m, at a gripper's 1 and 0; the actuators stop at 0.057 and 0.021."""
NAMES = tuple(f"{side}_{part}" for side in SIDES for part in (*ARM_JOINTS, "gripper"))
"""Of the numbers of proprio and of actions."""
ARM_HOME = (0.0, -0.96, 1.16, 0.0, -0.3, 0.0)
FINGER_HOME = 0.02239
HOME = (*ARM_HOME, FINGER_HOME, -FINGER_HOME) * len(SIDES)
"""Joint positions with which every episode begins: 6 joints and 2 fingers an arm."""
_FINGERS = ("left_finger", "right_finger")


def _drives(side: str) -> tuple[JointDrive, ...]:
    fingers = tuple(f"vx300s_{side}/{finger}" for finger in _FINGERS)
    arm = (JointDrive((f"vx300s_{side}/{joint}",)) for joint in ARM_JOINTS)
    return (*arm, JointDrive(fingers, FINGER_OPEN - FINGER_CLOSED, FINGER_CLOSED))


_LOW, _HIGH = ((*(ends[i] for ends in ARM_RANGES), float(i)) * len(SIDES) for i in range(2))
ROBOT = RobotSpec(
    name="pair of ViperX arms",
    cameras=("top", "angle", "front_close", "left_pillar", "right_pillar", "left_wrist", "right_wrist"),
    proprio_dim=len(NAMES),
    action_low=_LOW,
    action_high=_HIGH,
    control_hz=50.0,
    drives=tuple(drive for side in SIDES for drive in _drives(side)),
)
"""An action is the joint positions to hold, in rad, and how far a gripper is open, 0 to 1; proprio is those of now."""

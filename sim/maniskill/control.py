"""What an action means: LIBERO's, mapped to ManiSkill's end-effector controller, or a controller of the task itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from embodied_rl.errors import UserError, suggest
from embodied_rl.types import Array

AUTO, LIBERO = "auto", "libero"
PROPRIO_DIM = 8
EE_DELTA_POSE = "pd_ee_delta_pose"
_LIBERO_METERS, _LIBERO_RADIANS = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class Control:
    """How actions are given to ManiSkill.

    Args:
        name: in words, for the stamp.
        mode: ManiSkill's control_mode.
        low, high: bounds of the policy's actions, float32 [A].
        scale: ManiSkill's action for an action of 1, float32 [A]; clipped to its bounds.
    """

    name: str
    mode: str
    low: Array
    high: Array
    scale: Array

    def map(self, actions: Array) -> Array:
        """Actions of a policy [..., A] as ManiSkill's, float32."""
        scaled = (actions * self.scale).astype(np.float32)
        return scaled.clip(-1, 1) if self.name == LIBERO else scaled

    def equals(self, other: Control) -> bool:
        """Whether a policy's actions mean the same."""
        parts = ((self.low, other.low), (self.high, other.high), (self.scale, other.scale))
        return (self.name, self.mode) == (other.name, other.mode) and all(np.array_equal(*pair) for pair in parts)


def pick_mode(wanted: str, env: Any, task: str) -> str:
    """ManiSkill's control_mode for what was asked for; `env` has any. UserError for what its robot has not."""
    if not hasattr(env.single_action_space, "low"):
        raise UserError(f"{task} has several robots, whose actions are no vector: it can't be trained here.")
    known = list(env.agent.supported_control_modes)
    fits = env.agent.uid.startswith("panda") and EE_DELTA_POSE in known and "stick" not in env.agent.uid
    if wanted == AUTO:
        return EE_DELTA_POSE if fits else env.control_mode
    if wanted == LIBERO and not fits:
        raise UserError(f"{task} has no gripper that LIBERO's actions fit: leave the control to 'auto'.")
    if wanted == LIBERO:
        return EE_DELTA_POSE
    if wanted not in known:
        raise UserError(f"{task} has no controller '{wanted}'.{suggest(wanted, [AUTO, LIBERO, *known])}")
    return wanted


def describe_control(wanted: str, env: Any, task: str) -> Control:
    """The control of `env`, which was made with `pick_mode`."""
    space = env.single_action_space
    low, high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise UserError(f"{task}'s actions have no bounds under {env.control_mode}: choose another control.")
    if wanted in (AUTO, LIBERO) and env.control_mode == EE_DELTA_POSE and low.shape == (7,):
        arm = env.agent.controller.configs["arm"]
        to_meters, to_radians = _LIBERO_METERS / arm.pos_upper, _LIBERO_RADIANS / arm.rot_upper
        # LIBERO closes its gripper with +1, ManiSkill opens it
        scale = np.asarray([to_meters] * 3 + [to_radians] * 3 + [-1.0], np.float32)
        return Control(LIBERO, EE_DELTA_POSE, -np.ones(7, np.float32), np.ones(7, np.float32), scale)
    return Control(env.control_mode, env.control_mode, low, high, np.ones(len(low), np.float32))


def libero_proprio(env: Any) -> torch.Tensor:
    """LIBERO's eight numbers of every world: position of the hand, its axis-angle, the fingers; float32 [N, 8]."""
    pose = env.agent.tcp.pose
    w, xyz = pose.q[:, :1], pose.q[:, 1:]
    sine = torch.linalg.vector_norm(xyz, dim=1, keepdim=True)
    turned = torch.where(sine > 1e-9, xyz / sine.clamp(min=1e-9) * 2 * torch.atan2(sine, w), 0.0)
    return torch.cat([pose.p, turned, env.agent.robot.get_qpos()[:, -2:]], dim=1).float()

"""Goals of tasks, judged for all worlds of a batch on its device: the rules of `sim/mujoco/goal.py` in torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from embodied_rl.sim.mujoco import goal as goal_rules
from embodied_rl.sim.mujoco.goal import Goal

_NOTHING = -1
"""Kind of a predicate that fills up a shorter goal: it holds."""


class Poses(NamedTuple):
    """What goals are judged on, of W worlds: positions and contacts of the last substep's start, joints now.

    Args:
        qpos, xpos, site_xpos, site_xmat: [W, nq], [W, nbody, 3], [W, nsite, 3], [W, nsite, 9].
        contact_geoms, contact_world: int32 [C, 2], [C], of all worlds.
        num_contacts: int32 [1], how many of the C are there.
    """

    qpos: torch.Tensor
    xpos: torch.Tensor
    site_xpos: torch.Tensor
    site_xmat: torch.Tensor
    contact_geoms: torch.Tensor
    contact_world: torch.Tensor
    num_contacts: torch.Tensor


class GoalTable:
    """The goals of T tasks of one model, on a device.

    Example:
        >>> table = GoalTable([compile_goal(task, model) for task in tasks], "cuda:0")
        >>> table.judge(poses, which)  # which int64 [W]: the task of each world; bool [W, G]
    """

    def __init__(self, goals: Sequence[Goal], device: str) -> None:
        most = max(len(goal.kind) for goal in goals)

        def stack(name: str, fill: float) -> torch.Tensor:
            arrays = [getattr(goal, name) for goal in goals]
            width = max(array.shape[1] for array in arrays) if arrays[0].ndim > 1 else None
            shape = (len(goals), most) if width is None else (len(goals), most, width)
            out = np.full(shape, fill, arrays[0].dtype)
            for i, array in enumerate(arrays):
                block = out[i, : len(array)]
                (block if width is None else block[:, : array.shape[1]])[:] = array
            return torch.from_numpy(out).to(device)

        self._kind = stack("kind", _NOTHING)
        self._body, self._other = stack("body", 0), stack("other", 0)
        self._size, self._threshold = stack("size", 0).float(), stack("threshold", 0).float()
        self._needs_contact, self._side = stack("needs_contact", False), stack("side", 0)
        self._joints = stack("joints", -1)
        self._above, self._inclusive = stack("above", False), stack("inclusive", False)
        self._need_all = stack("need_all", False)
        self._any_contact = any(bool(goal.needs_contact.any()) for goal in goals)

    def judge(self, poses: Poses, which: torch.Tensor) -> torch.Tensor:
        """Which predicates hold, bool [W, G]; those that fill up a goal do. which: int64 [W], the tasks."""
        worlds = torch.arange(len(which), device=which.device)[:, None]
        kind, size = self._kind[which], self._size[which]
        body, other = self._body[which], self._other[which]
        at = poses.xpos[worlds, body]
        base = poses.xpos[worlds, torch.where(_is(kind, goal_rules._ON, goal_rules._STACK), other, 0)]
        site = torch.where(_is(kind, goal_rules._IN, goal_rules._ON_SITE), other, 0)
        site_at, axes = poses.site_xpos[worlds, site], poses.site_xmat[worlds, site].unflatten(2, (3, 3))
        gap = at - base
        flat = (gap[..., 0] ** 2 + gap[..., 1] ** 2).sqrt() < goal_rules._ON_DISTANCE
        held = torch.where(kind == goal_rules._ON, (gap[..., 2] >= 0) & flat, kind == _NOTHING)
        held |= (kind == goal_rules._STACK) & _in_reach(gap, size) & (gap[..., 2] > 0)
        held |= (kind == goal_rules._ON_SITE) & _over_site(at - site_at, axes, size)
        held |= (kind == goal_rules._IN) & _in_reach(at - site_at, (axes * size[:, :, None]).sum(dim=3).abs())
        held |= (kind == goal_rules._UP) & (at[..., 2] >= goal_rules._UP_HEIGHT)
        if self._any_contact:
            held &= ~self._needs_contact[which] | self._touching(poses, which)
        return held | ((kind == goal_rules._JOINTS) & self._joints_hold(poses.qpos, which))

    def _touching(self, poses: Poses, which: torch.Tensor) -> torch.Tensor:
        """Whether geoms of both sides of each predicate touch: bool [W, G]."""
        world = poses.contact_world.long()
        real = torch.arange(len(world), device=world.device) < poses.num_contacts
        # What lies beyond `num_contacts` is left from earlier steps, and worlds beyond `which` are spare.
        real &= (poses.contact_geoms >= 0).all(dim=1) & (world >= 0) & (world < len(which))
        world = torch.where(real, world, 0)
        geoms = torch.where(real[:, None], poses.contact_geoms, 0).long()
        task, predicate = which[world][:, None], torch.arange(self._side.shape[1], device=world.device)
        one, two = (self._side[task, predicate, geoms[:, i, None]] for i in (0, 1))  # uint8 [C, G]
        hit = ((((one & 1) & (two >> 1)) | ((one >> 1) & (two & 1))) != 0) & real[:, None]
        found = torch.zeros((len(which), one.shape[1]), dtype=torch.int32, device=world.device)
        return found.index_add_(0, world, hit.int()) > 0

    def _joints_hold(self, qpos: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        joints = self._joints[which]
        there = joints >= 0
        worlds = torch.arange(len(which), device=which.device)[:, None, None]
        gap = qpos[worlds, joints.clamp(min=0)] - self._threshold[which][..., None]
        gap = torch.where(self._above[which][..., None], gap, -gap)
        holds = (gap > 0) | (self._inclusive[which][..., None] & (gap == 0))
        return torch.where(self._need_all[which], (holds | ~there).all(dim=2), (holds & there).any(dim=2))


def _is(kind: torch.Tensor, *kinds: int) -> torch.Tensor:
    found = kind == kinds[0]
    for other in kinds[1:]:
        found |= kind == other
    return found


def _over_site(gap: torch.Tensor, axes: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """LIBERO multiplies by the site's rotation, not by its transpose."""
    local = (axes * gap[..., None, :]).sum(dim=3)
    high = size[..., 2]
    level = (local[..., 2] > high - goal_rules._SITE_BELOW) & (local[..., 2] < high + goal_rules._SITE_ABOVE)
    return (local[..., :2].abs() < size[..., :2]).all(dim=2) & level


def _in_reach(gap: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    low = -reach
    low[..., 2] -= goal_rules._BOX_SLACK
    return ((gap > low) & (gap < reach)).all(dim=2)

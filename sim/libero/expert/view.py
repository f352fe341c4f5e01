"""What the scripted expert sees: the true state of the scene, and questions about it."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from embodied_rl.sim.libero.expert.geometry import ROBOT, Surface
from embodied_rl.sim.libero.expert.grasps import Grasp, Target
from embodied_rl.types import Array

SHOULDER = "robot0_link1"
_GRIP_SITE = "gripper0_grip_site"
_HANGS = 0.055
"""What begins so far (m) over an object's lower end, or higher, hangs over it."""


class View:
    """A scene. Points are those of the last `look`; poses are always the present ones.

    Args:
        model: of the task.
        surface: of the model.
        data: MuJoCo's state, read and never written.

    Attributes:
        points: float64 [n, 3], the surface's points.
        holding: the grasp by which the hand holds something, if it does.
        draws: for choices among equals.
    """

    def __init__(
        self, model: mujoco.MjModel, surface: Surface, data: mujoco.MjData, draws: np.random.Generator
    ) -> None:
        self.model, self.surface, self.data, self.draws = model, surface, data, draws
        self.holding: Grasp | None = None
        self._site = int(model.site(_GRIP_SITE).id)
        self.look()

    def look(self) -> None:
        """Take in where everything is."""
        self.points = self.surface.points(self.data)

    @property
    def grip(self) -> Array:
        """Position of the grip site, [3]."""
        return self.data.site_xpos[self._site]

    @property
    def hand(self) -> Array:
        """Rotation of the grip site, [3, 3]."""
        return self.data.site_xmat[self._site].reshape(3, 3)

    @property
    def fingers(self) -> float:
        """Distance (m) of each finger from the middle."""
        return float(self.data.qpos[7] - self.data.qpos[8]) / 2

    @property
    def shoulder(self) -> Array:
        """Position of the arm's shoulder, [3]."""
        return self.data.body(SHOULDER).xpos

    def position(self, body: str) -> Array:
        """Of a body's origin, [3]: MuJoCo's own array."""
        return self.data.body(body).xpos

    def root(self, body: str) -> int:
        """The topmost body of the tree that `body` belongs to."""
        return int(self.model.body(body).rootid[0])

    def of(self, root: int) -> Array:
        """bool [n]: the points of that tree."""
        return np.asarray(self.surface.root == root)

    def target(self, mine: Array, carry: Array | None = None) -> Target:
        """The points `mine` (bool [n]) as something to grasp and to carry by `carry` [3] (m)."""
        points = self.points[mine]
        return Target(
            points,
            self.surface.normals(self.data, mine),
            self.surface.area[mine],
            self.points[~mine],
            self.ground(points.mean(axis=0)),
            self.shoulder.copy(),
            np.zeros(3) if carry is None else carry,
        )

    def ground(self, at: Array) -> float:
        """Height (m) of the furniture under a point; 0 without."""
        points = self.points[self.surface.furniture]
        under = (np.linalg.norm(points[:, :2] - at[:2], axis=1) < 0.15) & (points[:, 2] < at[2])
        return float(points[under, 2].max()) if under.any() else 0.0

    def top(self, root: int, at: Array, radius: float) -> float:
        """Height (m) that a tree reaches within `radius` of a point; anywhere, if it isn't there."""
        points = self.points[self.of(root)]
        near = points[np.linalg.norm(points[:, :2] - at[:2], axis=1) < radius]
        return float((near if len(near) else points)[:, 2].max())

    def floor(self, root: int, centre: Array, half: Array) -> float:
        """Height (m) of a container's floor under the middle of its region, whose half extents are `half` [3]."""
        points = self.points[self.of(root)]
        near = (np.abs(points[:, :2] - centre[:2]) < np.minimum(half[:2], 0.03)).all(axis=1)
        near &= points[:, 2] < centre[2]
        return float(points[near, 2].max()) if near.any() else float(centre[2] - half[2])

    def clearance(self, start: Array, end: Array, skip: Sequence[int], width: float = 0.09) -> float:
        """Height (m) over everything within `width` of the way between two points, with 3 cm of room."""
        way = end[:2] - start[:2]
        along = np.clip((self.points[:, :2] - start[:2]) @ way / max(float(way @ way), 1e-9), 0.0, 1.0)
        off = np.linalg.norm(self.points[:, :2] - start[:2] - along[:, None] * way, axis=1)
        heights = self.points[(off < width) & ~np.isin(self.surface.root, skip), 2]
        return (float(heights.max()) if len(heights) else 0.0) + 0.03

    def overhung(self, at: Array, radius: float, low: float, root: int) -> bool:
        """Whether anything but the tree `root` hangs over a point where its lower end is at height `low`."""
        points = self.points[~self.of(root)]
        near = np.linalg.norm(points[:, :2] - at[:2], axis=1) < radius
        return bool((near & (points[:, 2] > low + _HANGS) & (points[:, 2] < low + 0.5)).any())

    def touches(self, body: str) -> bool:
        """Whether the tree of `body` touches anything but itself and the robot."""
        root, data, model = self.root(body), self.data, self.model
        for contact in data.contact[: data.ncon]:
            first, second = (int(model.body_rootid[model.geom_bodyid[g]]) for g in contact.geom)
            if first == second or root not in (first, second):
                continue
            if not model.body(second if first == root else first).name.startswith(ROBOT):
                return True
        return False

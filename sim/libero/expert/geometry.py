"""Rotations, and a model's collision surface as points: what the scripted expert plans on."""

from __future__ import annotations

import mujoco
import numpy as np

from embodied_rl.types import Array

UP = np.array([0.0, 0.0, 1.0])
ROBOT = ("robot0", "gripper0", "mount0")
"""How the names of the robot's bodies begin."""
_LARGE = 0.3
"""A geom with a longer half side (m) is furniture."""
_SPACINGS = ((0.06, 0.005), (_LARGE, 0.008), (np.inf, 0.02))
"""(longest half side, distance of points on it), m."""


def unit(vector: Array) -> Array:
    """`vector` at length 1."""
    return np.asarray(vector / np.linalg.norm(vector))


def flat(vector: Array) -> float:
    """Horizontal length of `vector` [3]."""
    return float(np.hypot(vector[0], vector[1]))


def rotation(axis: Array, angle: float) -> Array:
    """Rotation matrix [3, 3] by `angle` (rad) about `axis` [3]."""
    quat, matrix = np.zeros(4), np.zeros(9)
    mujoco.mju_axisAngle2Quat(quat, unit(axis), angle)
    mujoco.mju_quat2Mat(matrix, quat)
    return matrix.reshape(3, 3)


def rotation_vector(matrix: Array) -> Array:
    """Axis times angle [3] (rad, angle in [0, pi]) of a rotation matrix."""
    quat, vector = np.zeros(4), np.zeros(3)
    mujoco.mju_mat2Quat(quat, np.ascontiguousarray(matrix).ravel())
    mujoco.mju_quat2Vel(vector, quat, 1.0)
    return vector


def angle_between(first: Array, second: Array) -> float:
    """Angle (rad) of the rotation between two rotation matrices."""
    return float(np.linalg.norm(rotation_vector(first @ second.T)))


class Surface:
    """Points on every collision geom but planes and the robot's; a geom that is no box counts as its bounding box.

    Attributes:
        geom, body, root: int [n], whose point it is; root is the topmost body of its tree.
        area: float64 [n], m^2 of surface that a point stands for.
        furniture: bool [n], points of large geoms.

    Example:
        surface = Surface(model)
        points = surface.points(data)  # float64 [n, 3], world
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        geoms = [g for g in range(model.ngeom) if _counts(model, g)]
        local, normal, area, geom = [], [], [], []
        for g in geoms:
            points, normals, areas = _box(*_extent(model, g))
            local.append(points)
            normal.append(normals)
            area.append(areas)
            geom.append(np.full(len(points), g))
        self._local = np.concatenate(local)
        self._normal = np.concatenate(normal)
        self.area: Array = np.concatenate(area)
        self.geom: Array = np.concatenate(geom)
        self.body: Array = model.geom_bodyid[self.geom]
        self.root: Array = model.body_rootid[self.body]
        self.furniture: Array = np.array([_extent(model, g)[1].max() > _LARGE for g in range(model.ngeom)])[self.geom]

    def points(self, data: mujoco.MjData) -> Array:
        """Where the points are: float64 [n, 3], m."""
        return _turned(data, self.geom, self._local) + data.geom_xpos[self.geom]

    def normals(self, data: mujoco.MjData, which: Array) -> Array:
        """Outward normals of the points `which` (bool [n] or indices): float64 [k, 3]."""
        return _turned(data, self.geom[which], self._normal[which])


def _counts(model: mujoco.MjModel, geom: int) -> bool:
    collides = bool(model.geom_contype[geom] or model.geom_conaffinity[geom])
    plane = model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_PLANE
    return collides and not plane and not model.body(model.geom_bodyid[geom]).name.startswith(ROBOT)


def _extent(model: mujoco.MjModel, geom: int) -> tuple[Array, Array]:
    """Centre and half sides of the box around a geom, in its frame."""
    if model.geom_type[geom] == mujoco.mjtGeom.mjGEOM_BOX:
        return np.zeros(3), model.geom_size[geom]
    return model.geom_aabb[geom, :3], model.geom_aabb[geom, 3:]


def _box(centre: Array, half: Array) -> tuple[Array, Array, Array]:
    """Points, normals and areas of a grid over the six faces of a box."""
    spacing = next(spacing for longest, spacing in _SPACINGS if half.max() < longest)
    ticks = [np.linspace(-h, h, max(2, int(np.ceil(2 * h / spacing)) + 1)) for h in half]
    points, normals, areas = [], [], []
    for axis in range(3):
        i, j = (axis + 1) % 3, (axis + 2) % 3
        first, second = (grid.ravel() for grid in np.meshgrid(ticks[i], ticks[j], indexing="ij"))
        for side in (-1.0, 1.0):
            face, normal = np.empty((len(first), 3)), np.zeros((len(first), 3))
            face[:, i], face[:, j], face[:, axis] = first, second, side * half[axis]
            normal[:, axis] = side
            points.append(face + centre)
            normals.append(normal)
            areas.append(np.full(len(first), 4.0 * half[i] * half[j] / len(first)))
    return np.concatenate(points), np.concatenate(normals), np.concatenate(areas)


def _turned(data: mujoco.MjData, geoms: Array, vectors: Array) -> Array:
    return np.asarray(np.einsum("nij,nj->ni", data.geom_xmat.reshape(-1, 3, 3)[geoms], vectors))

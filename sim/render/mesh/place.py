"""First stage of the rasteriser: poses of parts and lights in a camera's frame, and what a mirror makes of them.

The camera's frame is right, down, forward: x and y grow as pixels do, z is the depth.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from embodied_rl.sim.render.mesh.pack import Scene
from embodied_rl.types import Array


@njit(nogil=True, error_model="numpy")
def _camera(scene: Scene, xpos: Array, xmat: Array, camera: int, axes: Array, eye: Array) -> None:
    """axes float64 [3, 3]: the frame's axes in the world, a row each; eye float64 [3]."""
    body = scene.camera_body[camera]
    for i in range(3):
        eye[i] = xpos[body, i]
        for k in range(3):
            eye[i] += xmat[body, i, k] * scene.camera_pos[camera, k]
        for j in range(3):
            total = 0.0
            for k in range(3):
                total += xmat[body, i, k] * scene.camera_mat[camera, k, j]
            axes[j, i] = total if j == 0 else -total  # MuJoCo's axes are right, up, back


@njit(nogil=True, error_model="numpy")
def _lights(scene: Scene, xpos: Array, xmat: Array, axes: Array, eye: Array, lights: Array) -> None:
    for n in range(scene.light_body.shape[0]):
        body = scene.light_body[n]
        for i in range(3):
            at, way = 0.0, 1.0 if i == 2 else 0.0
            if body >= 0:
                way = 0.0
                for k in range(3):
                    world, to = xpos[body, k] - eye[k], 0.0
                    for m in range(3):
                        world += xmat[body, k, m] * scene.light_pos[n, m]
                        to += xmat[body, k, m] * scene.light_dir[n, m]
                    at += axes[i, k] * world
                    way += axes[i, k] * to
            lights[n, i], lights[n, 3 + i] = at, way


@njit(cache=True, nogil=True, error_model="numpy")
def place(scene: Scene, xpos: Array, xmat: Array, camera: int, pose: Array, lights: Array, axes: Array) -> None:
    """Fill pose float32 [G, 3, 4] (rotation and position), lights float32 [L, 6] (position, direction) and axes.

    xpos float64 [nbody, 3], xmat float64 [nbody, 3, 3]: the bodies in the world. The headlight is at the camera.
    """
    eye, turn, shift = np.zeros(3), np.zeros((3, 3)), np.zeros(3)
    _camera(scene, xpos, xmat, camera, axes, eye)
    last = -1
    for g in range(scene.body.shape[0]):
        body = scene.body[g]
        if body != last:  # the body in the camera's frame; most bodies have several parts
            last = body
            for i in range(3):
                shift[i] = 0.0
                for k in range(3):
                    shift[i] += axes[i, k] * (xpos[body, k] - eye[k])
                for j in range(3):
                    turn[i, j] = axes[i, 0] * xmat[body, 0, j] + axes[i, 1] * xmat[body, 1, j]
                    turn[i, j] += axes[i, 2] * xmat[body, 2, j]
        for i in range(3):
            total = shift[i]
            for k in range(3):
                total += turn[i, k] * scene.pos[g, k]
            pose[g, i, 3] = total
            for j in range(3):
                total = 0.0
                for k in range(3):
                    total += turn[i, k] * scene.mat[g, k, j]
                pose[g, i, j] = total
    _lights(scene, xpos, xmat, axes, eye, lights)


@njit(cache=True, nogil=True, error_model="numpy")
def reflect(scene: Scene, pose: Array, lights: Array, out_pose: Array, out_lights: Array) -> bool:
    """Poses and lights as the mirror shows them; False when the camera is behind it."""
    g = scene.mirror
    high = scene.box[g, 2] + scene.box[g, 5] - 1e-3  # without the box's margin
    n0, n1, n2 = pose[g, 0, 2], pose[g, 1, 2], pose[g, 2, 2]
    gap = n0 * pose[g, 0, 3] + n1 * pose[g, 1, 3] + n2 * pose[g, 2, 3] + high
    if gap >= 0.0:
        return False
    for k in range(pose.shape[0]):
        for j in range(4):
            along = n0 * pose[k, 0, j] + n1 * pose[k, 1, j] + n2 * pose[k, 2, j]
            along = 2.0 * (along - gap if j == 3 else along)
            out_pose[k, 0, j] = pose[k, 0, j] - along * n0
            out_pose[k, 1, j] = pose[k, 1, j] - along * n1
            out_pose[k, 2, j] = pose[k, 2, j] - along * n2
    for k in range(lights.shape[0]):
        for j in range(0, 6, 3):
            along = n0 * lights[k, j] + n1 * lights[k, j + 1] + n2 * lights[k, j + 2]
            along = 2.0 * (along - gap if j == 0 else along)
            out_lights[k, j] = lights[k, j] - along * n0
            out_lights[k, j + 1] = lights[k, j + 1] - along * n1
            out_lights[k, j + 2] = lights[k, j + 2] - along * n2
    return True


@njit(cache=True, nogil=True, error_model="numpy")
def seen_mirror(scene: Scene, ids: Array, origin: Array, w: Array, cap: Array) -> tuple[int, int, int, int]:
    """Fill cap (float32, as w) with the depth of the mirror where its upper side is seen, else 0; see `raster`.

    Returns the rectangle that holds it: first row, row after the last, first column, column after the last.
    """
    rows, width = ids.shape
    top, bottom, left, right = rows, 0, width, 0
    for y in range(rows):
        for x in range(width):
            label = ids[y, x]
            cap[y, x] = 0.0
            if label >= 0 and origin[label, 3] == scene.mirror and scene.plane[origin[label, 2], 2] > 0.9:
                cap[y, x] = np.float32(0.9999) * w[y, x]  # what is reflected lies behind the surface
                top, bottom, left, right = min(top, y), max(bottom, y + 1), min(left, x), max(right, x + 1)
    return top, bottom, left, right

"""What is drawn of a model, part by part, for programs that draw it themselves: triangles, colours, places."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from embodied_rl.sim.render.mesh.ladder import Ladders
from embodied_rl.sim.render.mesh.pack import Packer, Scene
from embodied_rl.sim.render.scene import NO_TEXTURE
from embodied_rl.types import Array


@dataclass(frozen=True, slots=True)
class Part:
    """A geom, or a site, as it is drawn.

    Args:
        body: That it is fixed to.
        group: Of a site; -1 for a geom.
        position: [3], m, in the body's frame.
        rotation: [3, 3], likewise.
        points: float32 [V, 3], m, in its own frame; one for each different corner of a triangle.
        normals: float32 [V, 3].
        faces: int32 [T, 3].
        color: RGBA in [0, 1], as it is shown (not linear); a texture is multiplied by it.
        coords: float32 [V, 2], of the texture, (0, 0) the first texel of the first row; None without a texture.
        texture: uint8 [h, w, 3]; None without one.
    """

    body: int
    group: int
    position: Array
    rotation: Array
    points: Array
    normals: Array
    faces: Array
    color: tuple[float, float, float, float]
    coords: Array | None = None
    texture: Array | None = None


class _WholeMeshes(Ladders):
    """Ladders of one rung, the mesh itself."""

    def get(self, points: Array, normals: Array, coords: Array | None) -> list[Array]:
        """See `Ladders.get`."""
        return [np.arange(3 * len(points), dtype=np.int32).reshape(-1, 3)]


def drawn_parts(model: mujoco.MjModel) -> list[Part]:
    """Every geom that cameras show, and every site, which they show only where a task says so.

    A cube texture, which lies around a part and not on it, becomes its mean colour.

    Raises:
        UserError: The model has something that triangles do not show, such as a skin.

    Example:
        >>> geoms = [part for part in drawn_parts(task.build_visual()) if part.group < 0]
    """
    scene = Packer(_WholeMeshes(None)).pack(model)
    return [_part(scene, row) for row in range(len(scene.body))]


def _part(scene: Scene, row: int) -> Part:
    vertex, vertices, triangle, triangles = scene.lods[row, 0].tolist()
    corner = scene.corner[triangle : triangle + triangles].reshape(-1, 5)
    at = scene.vert[vertex : vertex + vertices][scene.tri[triangle : triangle + triangles].ravel()]
    corners, faces = np.unique(np.concatenate([at, corner], axis=1), axis=0, return_inverse=True)
    red, green, blue, alpha = scene.look[row, [0, 1, 2, 6]].tolist()
    texture = None if scene.texture[row] == NO_TEXTURE else _texels(scene, int(scene.texture[row]))
    if texture is not None and scene.cube[row].any():
        shade = texture.mean(axis=(0, 1)) / 255
        red, green, blue = (float(a * b) for a, b in zip((red, green, blue), shade, strict=True))
        texture = None
    return Part(
        body=int(scene.body[row]),
        group=int(scene.group[row]),
        position=scene.pos[row],
        rotation=scene.mat[row],
        points=corners[:, :3],
        normals=corners[:, 3:6],
        faces=faces.reshape(-1, 3).astype(np.int32),
        color=(red, green, blue, alpha),
        coords=None if texture is None else corners[:, 6:],
        texture=texture,
    )


def _texels(scene: Scene, texture: int) -> Array:
    """The finest level of a texture, uint8 [h, w, 3]; of a cube its six faces, one below the other."""
    offset, width, height = scene.table[scene.mips[texture, 0]].tolist()
    words = scene.texels[offset : offset + width * height].reshape(height, width)
    return np.stack([words & 255, words >> 8 & 255, words >> 16 & 255], axis=-1).astype(np.uint8)

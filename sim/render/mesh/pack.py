"""A model packed for the rasteriser, once: what is drawn, as MuJoCo's abstract scene lists it, in arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.render.mesh.decimate import ERRORS
from embodied_rl.sim.render.mesh.geometry import (
    BOX,
    MESH,
    PLANE,
    SPHERE,
    Triangles,
    mesh_corners,
    primitive,
    rung_triangles,
    unit,
)
from embodied_rl.sim.render.mesh.ladder import Ladders
from embodied_rl.sim.render.mesh.texture import Pyramid, Textures, words
from embodied_rl.sim.render.scene import (
    LIGHT_DIRECTIONAL,
    LIGHT_SPOT,
    NO_TEXTURE,
    VISIBLE_GROUPS,
    lights,
    matrices,
    pixels,
)
from embodied_rl.types import Array

OPAQUE = 0.995
"""Below this alpha MuJoCo takes a geom for transparent."""
_CUBE, _FLAT = mujoco.mjtTexture.mjTEXTURE_CUBE, mujoco.mjtTexture.mjTEXTURE_2D


class Scene(NamedTuple):
    """G drawn geoms and sites ("parts"), K rungs, V vertices, T triangles, L lights, B mip levels, C cameras.

    body int32 [G]; pos, mat: pose in the body; box [G, 6]: centre and half sides; group int32 [G]: a site's group, -1
    for a geom. look float32 [G, 7]: rgb, emission, specular, exponent, alpha. texture int32 [G]: -1 or a row of mips;
    cube float32 [G, 3]: scale of the direction in a cube texture, 0 for a 2d one. errors [K]: metres; lods int32
    [G, K, 4]: first vertex, vertices, first triangle, triangles. corner float32 [T, 3, 5]: normal, texture coordinates;
    plane float32 [T, 4]: normal and offset in the part's frame.
    table int64 [B, 3]: offset into texels, width, height; mips int32 [?, 3]: first level, levels, faces. sky: level of
    the background cube, or -1. order int32: transparent parts. mirror: a part whose upper side reflects, or -1.
    The lights' and cameras' arrays are as in `embodied_rl.sim.render.scene.Scene`.
    """

    body: Array
    pos: Array
    mat: Array
    box: Array
    group: Array
    look: Array
    texture: Array
    cube: Array
    errors: Array
    lods: Array
    vert: Array
    tri: Array
    corner: Array
    plane: Array
    texels: Array
    table: Array
    mips: Array
    sky: int
    light_body: Array
    light_kind: Array
    light_pos: Array
    light_dir: Array
    light_color: Array
    light_shape: Array
    camera_body: Array
    camera_pos: Array
    camera_mat: Array
    camera_tan: Array
    clip: Array
    mirror: int
    reflectance: np.float32


def unsupported(model: mujoco.MjModel) -> str | None:
    """Say what in `model` the rasteriser cannot draw (the first such thing), or None when it can draw everything."""
    if model.nskin or model.nflex:
        return "it has a skin or a flex, which body poses do not give"
    for light in range(model.nlight):
        name = f"light '{model.light(light).name or light}'"
        if model.light_active[light] and model.light_mode[light] != mujoco.mjtCamLight.mjCAMLIGHT_FIXED:
            return f"{name} tracks a body"
        if model.light_active[light] and model.light_type[light] not in (LIGHT_SPOT, LIGHT_DIRECTIONAL):
            return f"{name} is neither directional nor a spot"
    for part in _parts(model):
        if part.type == PLANE or SPHERE <= part.type <= MESH:
            continue
        name = model.geom(part.objid).name if part.objtype == mujoco.mjtObj.mjOBJ_GEOM else model.site(part.objid).name
        return f"'{name or part.objid}' is a {mujoco.mjtGeom(part.type).name.removeprefix('mjGEOM_').lower()}"
    return None


def refusal(problem: str) -> str:
    """The error for a scene that cannot be drawn."""
    return f"the rasteriser cannot draw this scene: {problem}; choose the renderer 'egl' or 'osmesa'"


def _parts(model: mujoco.MjModel) -> list[mujoco.MjvGeom]:
    """What MuJoCo would draw: geoms of the visible groups and all sites, with material, size and colour resolved."""
    data, option, camera = mujoco.MjData(model), mujoco.MjvOption(), mujoco.MjvCamera()
    mujoco.mj_kinematics(model, data)
    scene = mujoco.MjvScene(model, maxgeom=model.ngeom + model.nsite + 100)
    option.flags[:] = 0
    option.flags[[int(mujoco.mjtVisFlag.mjVIS_TEXTURE), int(mujoco.mjtVisFlag.mjVIS_STATIC)]] = 1
    option.geomgroup[:] = [group < VISIBLE_GROUPS for group in range(mujoco.mjNGROUP)]
    option.sitegroup[:] = 1
    mujoco.mjv_updateScene(model, data, option, None, camera, mujoco.mjtCatBit.mjCAT_ALL, scene)
    return [part for part in scene.geoms[: scene.ngeom] if part.rgba[3] > 0]


class Packer:
    """Packs models; meshes and textures that models share are prepared once. Not for two threads at once."""

    def __init__(self, ladders: Ladders) -> None:
        self._ladders, self._textures = ladders, Textures()

    def pack(self, model: mujoco.MjModel) -> Scene:
        """UserError for what cannot be drawn."""
        if problem := unsupported(model):
            raise UserError(refusal(problem))
        parts, mesh = _parts(model), _Arrays()
        textures = [_texture_of(model, part) for part in parts]
        maps = [_mapping(model, part, texture) for part, texture in zip(parts, textures, strict=True)]
        lods, boxes = np.zeros((len(parts), len(ERRORS), 4), np.int32), np.zeros((len(parts), 6))
        for row, (part, texture, (cube, scale)) in enumerate(zip(parts, textures, maps, strict=True)):
            flat = texture >= 0 and not cube.any()
            explicit = bool(part.texcoord) and flat
            is_mesh = part.type == MESH
            key = (part.dataid, flat, tuple(scale)) if is_mesh else (part.type, tuple(part.size), flat, tuple(scale))
            make = partial(self._rungs, model, part, scale if flat and not explicit else None, flat)
            lods[row], boxes[row] = mesh.rows(key, make)
        site = mujoco.mjtObj.mjOBJ_SITE
        return Scene(
            **_poses(model, parts),
            box=boxes,
            group=np.array([model.site_group[p.objid] if p.objtype == site else -1 for p in parts], np.int32),
            look=np.array(
                [[*p.rgba[:3], p.emission, p.specular, 128 * p.shininess, p.rgba[3]] for p in parts], np.float32
            ).reshape(-1, 7),
            cube=np.array([cube for cube, _ in maps], np.float32).reshape(-1, 3),
            errors=np.array(ERRORS),
            lods=lods,
            **mesh.packed(),
            **self._texels(model, textures),
            **lights(model),
            camera_body=model.cam_bodyid.astype(np.int32),
            camera_pos=model.cam_pos.astype(np.float64),
            camera_mat=matrices(model.cam_quat),
            camera_tan=np.tan(np.radians(model.cam_fovy.astype(np.float64)) / 2),
            clip=np.array([model.vis.map.znear, model.vis.map.zfar]) * model.stat.extent,
            **_mirror(parts),
        )

    def _rungs(self, model: mujoco.MjModel, part: mujoco.MjvGeom, scale: Array | None, flat: bool) -> list[Triangles]:
        """One Triangles a rung. scale: repeats a metre of a texture that is projected along z; flat: it is 2d."""
        if part.type == MESH:
            mesh = part.dataid // 2  # the odd ones are convex hulls
            points, normals, coords = mesh_corners(model, mesh)
            coords = coords if flat else None
            ladder = self._ladders.get(points, normals, coords)
            rungs = [rung_triangles(points, normals, coords, rung) for rung in ladder]
        else:
            rungs = [primitive(part.type, _own_size(part), model.vis.map.zfar * model.stat.extent)]
        if scale is not None:
            for rung in rungs:
                at = rung.vert[rung.tri]
                rung.corner[..., 3] = 0.5 * scale[0] * at[..., 0] - 0.5
                rung.corner[..., 4] = -0.5 * scale[1] * at[..., 1] - 0.5
        return rungs

    def _texels(self, model: mujoco.MjModel, textures: list[int]) -> dict[str, Any]:
        used = sorted({t for t in textures if t >= 0})
        pyramids = [self._textures.pyramid(model, t) for t in used]
        sky = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)[:1].tolist()
        pyramids += [Pyramid([pixels(model, t)], 6) for t in sky]
        levels = [level for pyramid in pyramids for level in pyramid.levels]
        firsts = np.cumsum([0, *(len(pyramid.levels) for pyramid in pyramids)])
        offsets = np.cumsum([0, *(level.shape[0] * level.shape[1] for level in levels)])
        sizes = [(at, level.shape[1], level.shape[0]) for at, level in zip(offsets, levels, strict=False)]
        mips = [(first, len(p.levels), p.faces) for first, p in zip(firsts, pyramids, strict=False)]
        return {
            "texture": np.array([used.index(t) if t >= 0 else NO_TEXTURE for t in textures], np.int32),
            "texels": np.concatenate([words(level) for level in levels]) if levels else np.zeros(1, np.uint32),
            "table": np.array(sizes, np.int64).reshape(-1, 3),
            "mips": np.array(mips, np.int32).reshape(-1, 3),
            "sky": len(levels) - 1 if sky else -1,
        }


class _Arrays:
    """Vertices and triangles of all rungs, one behind the other; parts that look alike share theirs."""

    def __init__(self) -> None:
        self._rungs: list[Triangles] = []
        self._vert = self._tri = 0
        self._known: dict[Any, tuple[Array, Array]] = {}

    def rows(self, key: Any, make: Callable[[], list[Triangles]]) -> tuple[Array, Array]:
        """Rows of `Scene.lods` [K, 4] and of `Scene.box` [6] of a part; `make` gives its rungs when the key is new.

        The box has a millimetre to spare.
        """
        if key not in self._known:
            rows, rungs = np.zeros((len(ERRORS), 4), np.int32), make()
            for k in range(len(ERRORS)):
                if k < len(rungs):
                    rows[k] = self._vert, len(rungs[k].vert), self._tri, len(rungs[k].tri)
                    self._rungs.append(rungs[k])
                    self._vert, self._tri = self._vert + len(rungs[k].vert), self._tri + len(rungs[k].tri)
                else:
                    rows[k] = rows[k - 1]
            low, high = _extent(rungs[0].vert)
            self._known[key] = rows, np.concatenate([(low + high) / 2, (high - low) / 2 + 1e-3])
        return self._known[key]

    def packed(self) -> dict[str, Any]:
        """Fields of `Scene`."""
        vert, tri, corner = (np.concatenate(each) for each in zip(*self._rungs, strict=True))
        at = np.concatenate([rung.vert[rung.tri] for rung in self._rungs]).astype(np.float64)
        normal = unit(np.cross(at[:, 1] - at[:, 0], at[:, 2] - at[:, 0]))
        return {
            "vert": vert,
            "tri": tri,
            "corner": corner,
            "plane": np.concatenate([normal, (normal * at[:, 0]).sum(-1, keepdims=True)], -1).astype(np.float32),
        }


def _extent(vert: Array) -> tuple[Array, Array]:
    if not len(vert):
        return np.zeros(3), np.zeros(3)
    return vert.min(0), vert.max(0)


def _own_size(part: mujoco.MjvGeom) -> Array:
    """A geom's size as MjModel has it: the abstract scene repeats the radius of round ones."""
    size = np.array(part.size, np.float64)
    if part.type in (mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_CYLINDER):
        return np.array([size[0], size[2], 0.0])
    return size


def _texture_of(model: mujoco.MjModel, part: mujoco.MjvGeom) -> int:
    if part.matid < 0:
        return NO_TEXTURE
    texture = int(model.mat_texid[part.matid, mujoco.mjtTextureRole.mjTEXROLE_RGB])
    if texture >= 0 and part.texcoord and model.tex_type[texture] != _FLAT:
        return NO_TEXTURE  # a cube cannot be bound to explicit coordinates: OpenGL draws none
    return texture


def _mapping(model: mujoco.MjModel, part: mujoco.MjvGeom, texture: int) -> tuple[Array, Array]:
    """As `settexture` of MuJoCo's renderer: cube float [3] and, for a projected 2d texture, repeats a metre [2]."""
    size = np.array(part.size, np.float64)
    if texture < 0:
        return np.zeros(3), np.zeros(2)
    uniform, is_mesh = bool(model.mat_texuniform[part.matid]), part.type == MESH
    # primitives are drawn at size 1 and scaled; meshes are not
    each = np.where(size > 0, 1 / np.maximum(size, 1e-9), 1.0)
    if model.tex_type[texture] != _FLAT:
        if is_mesh:
            return (size if uniform else np.ones(3)), np.zeros(2)
        return (np.ones(3) if uniform else each), np.zeros(2)
    return np.zeros(3), np.asarray(model.mat_texrepeat[part.matid]) * (1.0 if uniform else each[:2])


def _poses(model: mujoco.MjModel, parts: list[mujoco.MjvGeom]) -> dict[str, Array]:
    """Body, position and rotation of each part."""
    kinds = ["site" if part.objtype == mujoco.mjtObj.mjOBJ_SITE else "geom" for part in parts]
    pick = [(kind, part.objid) for kind, part in zip(kinds, parts, strict=True)]
    quats = np.array([getattr(model, f"{kind}_quat")[i] for kind, i in pick]).reshape(-1, 4)
    return {
        "body": np.array([getattr(model, f"{kind}_bodyid")[i] for kind, i in pick], np.int32),
        "pos": np.array([getattr(model, f"{kind}_pos")[i] for kind, i in pick], np.float64).reshape(-1, 3),
        "mat": matrices(quats),
    }


def _mirror(parts: list[mujoco.MjvGeom]) -> dict[str, Any]:
    """MuJoCo lets the first opaque box or plane of a reflective material mirror; of a box, the upper side."""
    for row, part in enumerate(parts):
        if part.type in (PLANE, BOX) and part.reflectance > 0 and part.rgba[3] >= OPAQUE:
            return {"mirror": row, "reflectance": np.float32(part.reflectance)}
    return {"mirror": -1, "reflectance": np.float32(0)}

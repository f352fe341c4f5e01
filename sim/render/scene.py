"""What the ray caster needs to know of a model, packed in arrays once: geoms, lights, cameras, textures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import mujoco
import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.types import Array

PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 2, 3, 4, 5, 6
"""mjtGeom values that the ray caster draws."""
VISIBLE_GROUPS = 3
"""Geom groups 0, 1 and 2 are drawn, as mujoco.Renderer does by default."""
LIGHT_SPOT, LIGHT_DIRECTIONAL = 0, 1
"""mjtLightType values that the ray caster draws."""
NO_TEXTURE = -1
_BASE_TYPES = (PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX)
_FIXED, _TRACK, _TARGET = 0, 1, 3
"""mjtCamLight values of cameras that body poses place."""
_SPECULAR_FLOOR = 1.0 / 512.0
_ENCODED = np.arange(256) / 255
_LINEAR_OF_SRGB = np.round(
    255 * np.where(_ENCODED <= 0.04045, _ENCODED / 12.92, ((_ENCODED + 0.055) / 1.055) ** 2.4)
).astype(np.uint8)
"""Linear intensity of an sRGB byte (IEC 61966-2-1)."""


class Scene(NamedTuple):
    """Constants of one visual model. G drawn geoms, L lights, C cameras, T textures, B mip levels.

    Poses are relative to the body. geom_look: rgb, emission, specular, exponent, squared cosine below which a highlight
    is black. geom_texture: index into textures or -1; geom_texscale: texture coordinates a metre. light_color: ambient,
    diffuse, specular; light_shape: attenuation (3), cos cutoff, exponent. Light 0 may be the headlight (body -1).
    camera_tan: tan(fovy / 2). mip_table: offset into texels, width, height; texture_mips: first level, how many.
    sky: mip level index of the background cube (six square faces one below the other), or -1. clip: near, far in m.
    """

    geom_kind: Array
    geom_id: Array
    geom_body: Array
    geom_pos: Array
    geom_mat: Array
    geom_size: Array
    geom_look: Array
    geom_texture: Array
    geom_texscale: Array
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
    texels: Array
    mip_table: Array
    texture_mips: Array
    sky: int
    clip: Array


class _WithCameras(Protocol):
    """What the ray caster's scenes and the rasteriser's share."""

    @property
    def camera_body(self) -> Array: ...
    @property
    def camera_pos(self) -> Array: ...
    @property
    def camera_mat(self) -> Array: ...
    def _replace(self, **fields: Any) -> Self: ...


SceneT = TypeVar("SceneT", bound=_WithCameras)


def unsupported(model: mujoco.MjModel) -> str | None:
    """Say what in `model` the ray caster cannot draw (the first such thing), or None when it can draw everything."""
    for geom in _visible_geoms(model):
        name = f"geom '{model.geom(geom).name or geom}'"
        if model.geom_type[geom] not in _BASE_TYPES:
            return f"{name} is a {mujoco.mjtGeom(model.geom_type[geom]).name.removeprefix('mjGEOM_').lower()}"
        if _rgba(model, geom)[3] < 1:
            return f"{name} is transparent (alpha {_rgba(model, geom)[3]:.2f})"
        texture = _texture_of(model, geom)
        flat = model.geom_type[geom] in (PLANE, BOX)
        if texture >= 0 and not (flat and model.tex_type[texture] == mujoco.mjtTexture.mjTEXTURE_2D):
            return f"{name} has a texture that is not a 2d texture on a plane or a box"
    fixed = mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    for light in range(model.nlight):
        if model.light_active[light] and model.light_mode[light] != fixed:
            return f"light '{model.light(light).name or light}' tracks a body"
        # MuJoCo's OpenGL renderer takes a point light for a directional one, so there is nothing to agree with.
        if model.light_active[light] and model.light_type[light] not in (LIGHT_SPOT, LIGHT_DIRECTIONAL):
            return f"light '{model.light(light).name or light}' is neither directional nor a spot"
    return None


def camera_index(model: mujoco.MjModel, name: str) -> int:
    """Index of a perspective camera; UserError when there is none, or it follows a centre of mass."""
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
    if index < 0:
        known = ", ".join(model.camera(i).name for i in range(model.ncam)) or "none"
        raise UserError(f"the scene has no camera '{name}'; its cameras: {known}")
    if model.cam_mode[index] not in (_FIXED, _TRACK, _TARGET):
        raise UserError(f"camera '{name}' follows a centre of mass, which body poses do not give: modes end in 'com'")
    if model.cam_projection[index] != mujoco.mjtProjection.mjPROJ_PERSPECTIVE or model.cam_sensorsize[index].any():
        raise UserError(f"camera '{name}' must be a perspective camera given by fovy")
    return index


def camera_pose(model: mujoco.MjModel, camera: int, xpos: Array, xmat: Array) -> tuple[Array, Array]:
    """Where a camera is: position [3] and axes [3, 3] (columns right, up, back), as mj_camlight computes them.

    xpos, xmat: as in `Renderer.render`.
    """
    body, rotations = model.cam_bodyid[camera], xmat.reshape(-1, 3, 3)
    if model.cam_mode[camera] == _TRACK:  # it keeps its distance and its direction in the world
        return xpos[body] + model.cam_pos0[camera], model.cam_mat0[camera].reshape(3, 3)
    at = xpos[body] + rotations[body] @ model.cam_pos[camera]
    target = model.cam_targetbodyid[camera]
    if model.cam_mode[camera] == _FIXED or target < 0:
        return at, rotations[body] @ matrices(model.cam_quat[camera : camera + 1])[0]
    back = at - xpos[target]
    mujoco.mju_normalize3(back)
    right = np.cross((0.0, 0.0, 1.0), back)
    mujoco.mju_normalize3(right)  # makes it (1, 0, 0) where it is nothing: of a camera straight above its target
    up = np.cross(back, right)
    mujoco.mju_normalize3(up)
    return at, np.stack([right, up, back], axis=1)


def placed_cameras(
    scene: SceneT, model: mujoco.MjModel, cameras: Sequence[int] | Array, xpos: Array, xmat: Array
) -> SceneT:
    """`scene` with those of `cameras` that follow a body fixed where they are now; itself where none does.

    xpos, xmat: as in `Renderer.render`.
    """
    moving = [camera for camera in cameras if model.cam_mode[camera] != _FIXED]
    if not moving:
        return scene
    body, pos, mat = scene.camera_body.copy(), scene.camera_pos.copy(), scene.camera_mat.copy()
    for camera in moving:
        body[camera] = 0  # the world
        pos[camera], mat[camera] = camera_pose(model, camera, xpos, xmat)
    return scene._replace(camera_body=body, camera_pos=pos, camera_mat=mat)


def pack(model: mujoco.MjModel) -> Scene:
    """Pack `model`. Raises UserError naming the first thing that cannot be drawn and which renderer can."""
    problem = unsupported(model)
    if problem:
        raise UserError(f"the ray caster cannot draw this scene: {problem}; choose the renderer 'egl' or 'osmesa'")
    geoms = _visible_geoms(model)
    index = np.array(geoms, np.int32)
    textures = sorted({t for g in geoms if (t := _texture_of(model, g)) >= 0})
    env_id = {texture: i for i, texture in enumerate(textures)}
    levels, mips = _pyramids(model, textures)
    sky = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX).tolist()
    levels.extend(pixels(model, texture) for texture in sky[:1])
    extent = model.stat.extent
    return Scene(
        geom_kind=model.geom_type[index].astype(np.int32),
        geom_id=index,
        geom_body=model.geom_bodyid[index].astype(np.int32),
        geom_pos=model.geom_pos[index].astype(np.float64),
        geom_mat=matrices(model.geom_quat[index]),
        geom_size=model.geom_size[index].astype(np.float64),
        geom_look=np.array([_look(model, g) for g in geoms], np.float32).reshape(-1, 7),
        geom_texture=np.array([env_id.get(_texture_of(model, g), NO_TEXTURE) for g in geoms], np.int32),
        geom_texscale=np.array([_texture_scale(model, g) for g in geoms], np.float32).reshape(-1, 2),
        **lights(model),
        camera_body=model.cam_bodyid.astype(np.int32),
        camera_pos=model.cam_pos.astype(np.float64),
        camera_mat=matrices(model.cam_quat),
        camera_tan=np.tan(np.radians(model.cam_fovy.astype(np.float64)) / 2),
        texels=np.concatenate([level.ravel() for level in levels] or [np.zeros(3, np.uint8)]),
        mip_table=_mip_table(levels),
        texture_mips=np.array(mips, np.int32).reshape(-1, 2),
        sky=len(levels) - 1 if sky else -1,
        clip=np.array([model.vis.map.znear * extent, model.vis.map.zfar * extent]),
    )


def _visible_geoms(model: mujoco.MjModel) -> list[int]:
    return [g for g in range(model.ngeom) if model.geom_group[g] < VISIBLE_GROUPS and _rgba(model, g)[3] > 0]


def _rgba(model: mujoco.MjModel, geom: int) -> Array:
    """A geom's own colour wins over its material's, unless it is MuJoCo's default grey (MuJoCo's rule)."""
    own, material = model.geom_rgba[geom], model.geom_matid[geom]
    if material >= 0 and np.array_equal(own, np.array([0.5, 0.5, 0.5, 1], np.float32)):
        return model.mat_rgba[material]
    return own


def _texture_of(model: mujoco.MjModel, geom: int) -> int:
    material = model.geom_matid[geom]
    return int(model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB]) if material >= 0 else -1


def _look(model: mujoco.MjModel, geom: int) -> list[float]:
    material = model.geom_matid[geom]
    # MuJoCo's values for a geom without a material
    emission, specular, shininess = 0.0, 0.5, 0.5
    if material >= 0:
        emission = float(model.mat_emission[material])
        specular = float(model.mat_specular[material])
        shininess = float(model.mat_shininess[material])
    exponent = 128 * shininess
    floor = _SPECULAR_FLOOR ** (2 / exponent) if exponent > 0 else 0.0
    return [*_rgba(model, geom)[:3], emission, specular, exponent, floor]


def _texture_scale(model: mujoco.MjModel, geom: int) -> list[float]:
    """Repeats a metre, so that u = 0.5 (scale x - 1): once over a finite side unless texuniform (MuJoCo's rule)."""
    material = model.geom_matid[geom]
    if material < 0:
        return [1.0, 1.0]
    repeat, size = model.mat_texrepeat[material], model.geom_size[geom]
    if model.mat_texuniform[material]:
        return [float(r) for r in repeat]
    return [float(repeat[i] / size[i] if size[i] > 0 else repeat[i]) for i in range(2)]


def matrices(quats: Array) -> Array:
    out = np.empty((len(quats), 9))
    for row, quat in zip(out, quats, strict=True):
        mujoco.mju_quat2Mat(row, quat)
    return out.reshape(-1, 3, 3)


def lights(model: mujoco.MjModel) -> dict[str, Any]:
    """Active lights in MuJoCo's order; the abstract scene (no GL needed) says whether the headlight is on."""
    scene, camera = mujoco.MjvScene(model, maxgeom=max(100, 2 * model.ngeom)), mujoco.MjvCamera()
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mjv_updateScene(model, data, mujoco.MjvOption(), None, camera, mujoco.mjtCatBit.mjCAT_STATIC, scene)
    lights = scene.lights[: scene.nlight]
    # the headlight has id -1; it moves with the camera, so its pose is not looked at
    body = [model.light_bodyid[light.id] if light.id >= 0 else -1 for light in lights]
    kind = [light.type if light.id >= 0 else LIGHT_DIRECTIONAL for light in lights]
    pos = [model.light_pos[light.id] if light.id >= 0 else (0, 0, 0) for light in lights]
    direction = [model.light_dir[light.id] if light.id >= 0 else (0, 0, -1) for light in lights]
    color = [[*light.ambient, *light.diffuse, *light.specular] for light in lights]
    shape = [[*light.attenuation, np.cos(np.radians(light.cutoff)), light.exponent] for light in lights]
    return {
        "light_body": np.array(body, np.int32),
        "light_kind": np.array(kind, np.int32),
        "light_pos": np.array(pos, np.float64).reshape(-1, 3),
        "light_dir": np.array(direction, np.float64).reshape(-1, 3),
        "light_color": np.array(color, np.float32).reshape(-1, 9),
        "light_shape": np.array(shape, np.float32).reshape(-1, 5),
    }


def _pyramids(model: mujoco.MjModel, textures: list[int]) -> tuple[list[Array], list[tuple[int, int]]]:
    """Levels uint8 [h, w, 3] of 2d textures, by 2 x 2 means down to one texel; first and number of levels of each."""
    levels: list[Array] = []
    mips: list[tuple[int, int]] = []
    for texture in textures:
        first, image = len(levels), pixels(model, texture)
        levels.append(image)
        while min(image.shape[:2]) > 1:
            height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
            quads = image[:height, :width].reshape(height // 2, 2, width // 2, 2, 3)
            image = np.round(quads.mean(axis=(1, 3))).astype(np.uint8)
            levels.append(image)
        mips.append((first, len(levels) - first))
    return levels, mips


def _mip_table(levels: list[Array]) -> Array:
    offsets = np.cumsum([0, *(level.size for level in levels[:-1])])
    rows = [
        (offset, level.shape[1], level.shape[0]) for offset, level in zip(offsets[: len(levels)], levels, strict=True)
    ]
    return np.array(rows, np.int64).reshape(-1, 3)


def pixels(model: mujoco.MjModel, texture: int) -> Array:
    height, width, channels = model.tex_height[texture], model.tex_width[texture], model.tex_nchannel[texture]
    start = model.tex_adr[texture]
    image = model.tex_data[start : start + height * width * channels].reshape(height, width, channels)
    if model.tex_colorspace[texture] == mujoco.mjtColorSpace.mjCOLORSPACE_SRGB:
        image = _LINEAR_OF_SRGB[image]  # OpenGL decodes such texels when it samples, before filtering
    return np.ascontiguousarray(image[:, :, :3] if channels >= 3 else np.repeat(image[:, :, :1], 3, axis=2))

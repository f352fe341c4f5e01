"""The ray caster against mj_ray (geometry, pixel by pixel) and against hand-worked colours."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.sim.render.raycast import RaycastRenderer

CAMERAS = ("front", "low", "wrist")


def load(xml: str) -> tuple[mujoco.MjModel, mujoco.MjData]:
    """Compile a scene and put its bodies in place."""
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def draw(xml: str, cameras: tuple[str, ...], size: int, samples: int = 1) -> np.ndarray:
    model, data = load(xml)
    renderer = RaycastRenderer(samples)
    out = np.zeros((len(cameras), size, size, 3), np.uint8)
    renderer.render(renderer.add_scene(model), data.xpos, data.xmat, cameras, out)
    return out


def cast(model: mujoco.MjModel, data: mujoco.MjData, camera: str, height: int, width: int):
    """Geom id [H, W] (-1: nothing) and depth along the camera's axis [H, W], by one mj_ray a pixel."""
    index = model.camera(camera).id
    eye, axes = data.cam_xpos[index], data.cam_xmat[index].reshape(3, 3)
    tan = np.tan(np.radians(model.cam_fovy[index]) / 2)
    ids, depth = np.full((height, width), -1), np.full((height, width), np.inf)
    groups = np.array([1, 1, 1, 0, 0, 0], np.uint8)
    found = np.zeros(1, np.int32)
    for y in range(height):
        for x in range(width):
            u = (2 * (x + 0.5) / width - 1) * tan * width / height
            v = (1 - 2 * (y + 0.5) / height) * tan
            ray = axes @ np.array([u, v, -1.0])
            length = float(np.linalg.norm(ray))
            distance = mujoco.mj_ray(model, data, eye, ray / length, groups, 1, -1, found, None)
            if found[0] >= 0 and distance / length < model.vis.map.zfar * model.stat.extent:
                ids[y, x], depth[y, x] = found[0], distance / length
    return ids, depth


def compare(model: mujoco.MjModel, data: mujoco.MjData, camera: str, height: int, width: int) -> tuple[float, float]:
    """Share of pixels whose geom agrees with mj_ray, and the largest relative depth error where it agrees.

    Where surfaces lie in one another either geom is right.
    """
    renderer = RaycastRenderer()
    ids, depth = renderer.geometry(renderer.add_scene(model), data.xpos, data.xmat, camera, height, width)
    true_ids, true_depth = cast(model, data, camera, height, width)
    both = (ids >= 0) & (true_ids >= 0)
    same = (ids == true_ids) | (both & np.isclose(depth, true_depth, rtol=1e-5, atol=0))
    solid = same & (ids >= 0)
    return float(same.mean()), float(np.max(np.abs(depth[solid] / true_depth[solid] - 1), initial=0))


@pytest.mark.parametrize("camera", CAMERAS)
def test_geometry_is_mj_rays(primitives: str, camera: str) -> None:
    model, data = load(primitives)
    agreement, error = compare(model, data, camera, 72, 96)
    assert agreement > 0.999
    assert error < 1e-4


def test_the_comparison_sees_one_centimetre(primitives: str) -> None:
    model, data = load(primitives)
    renderer = RaycastRenderer()
    shifted = data.xpos + (0.01, 0, 0) * (np.arange(model.nbody) > 0)[:, None]
    ids, _ = renderer.geometry(renderer.add_scene(model), shifted, data.xmat, "low", 72, 96)
    assert (ids == cast(model, data, "low", 72, 96)[0]).mean() < 0.997


KINDS = {"sphere": 1, "capsule": 2, "cylinder": 2, "ellipsoid": 3, "box": 3}
GEOMS = st.lists(
    st.tuples(
        st.sampled_from(sorted(KINDS)),
        st.lists(st.floats(0.02, 0.4), min_size=3, max_size=3),
        st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3),
        st.lists(st.floats(-180, 180), min_size=3, max_size=3),
    ),
    min_size=1,
    max_size=4,
)


def _numbers(values) -> str:
    return " ".join(f"{value:.6f}" for value in values)


@settings(max_examples=60)
@example(  # two surfaces in one another
    geoms=[
        ("capsule", [0.25, 0.25, 0.25], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]),
        ("capsule", [0.25, 0.25, 0.25], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]),
    ],
    place=[0.0, 0.0, 0.0],
    fovy=20.0,
)
@given(geoms=GEOMS, place=st.lists(st.floats(-1, 1), min_size=3, max_size=3), fovy=st.floats(20, 100))
def test_geometry_of_any_scene_is_mj_rays(geoms, place, fovy) -> None:
    """The camera stands 1.75 m from the origin, outside every geom (centres within 0.87, reach at most 0.8)."""
    direction = np.array([place[0] + 1e-3, place[1], place[2]])
    eye = 1.75 * direction / np.linalg.norm(direction)
    back = eye + np.roll(place, 1)
    up = np.cross(back, np.cross((0.1, 0.2, 1.0), back))
    axes = f"{_numbers(np.cross(up, back))} {_numbers(up)}"
    bodies = "".join(
        f'<geom type="{kind}" size="{_numbers(size[: KINDS[kind]])}" pos="{_numbers(pos)}" euler="{_numbers(turn)}"/>'
        for kind, size, pos, turn in geoms
    )
    model, data = load(f"""<mujoco><statistic extent="1"/><worldbody>
        <geom type="plane" size="0 0 1" pos="0 0 -2"/>{bodies}
        <camera name="eye" pos="{_numbers(eye)}" xyaxes="{axes}" fovy="{fovy}"/></worldbody></mujoco>""")
    agreement, error = compare(model, data, "eye", 32, 32)
    assert agreement > 0.99
    assert error < 1e-3


def test_a_camera_inside_a_geom_looks_through_it() -> None:
    """As with OpenGL, which draws front faces only: each kind is drawn around the camera and must not be seen."""
    for kind, count in KINDS.items():
        size = _numbers([0.3, 0.4, 0.5][:count])
        model, data = load(f"""<mujoco><worldbody><geom type="box" size="1 1 .1" pos="0 0 -3"/>
            <geom type="{kind}" size="{size}"/><camera name="eye" pos=".02 .01 .1"/></worldbody></mujoco>""")
        renderer = RaycastRenderer()
        ids, _ = renderer.geometry(renderer.add_scene(model), data.xpos, data.xmat, "eye", 9, 9)
        assert set(np.unique(ids)) <= {-1, 0}, kind
        assert ids[4, 4] == 0, kind


def test_planes_are_seen_from_above_only() -> None:
    xml = '<mujoco><worldbody><geom type="plane" size="1 1 1"/><camera name="up" pos="0 0 1"/>{}</worldbody></mujoco>'
    model, data = load(xml.format('<camera name="down" pos="0 0 -1" euler="180 0 0"/>'))
    renderer = RaycastRenderer()
    scene = renderer.add_scene(model)
    assert renderer.geometry(scene, data.xpos, data.xmat, "up", 5, 5)[0][2, 2] == 0
    assert renderer.geometry(scene, data.xpos, data.xmat, "down", 5, 5)[0][2, 2] == -1


HEADLIGHT = """<mujoco><visual>
<headlight ambient=".1 .22 .3" diffuse=".41 .4 .4" specular="{specular} 0 0" active="1"/></visual>
<asset><material name="m" rgba="1 .5 .25 1" specular="1" shininess=".5" emission="{emission}"/></asset>
<worldbody><geom type="plane" size="1 1 1" material="m"/><camera name="eye" pos="0 0 1"/></worldbody></mujoco>"""


def test_colour_under_the_headlight_by_hand() -> None:
    """Facing the plane, n.l = n.h = 1: colour = rgba (emission + ambient + diffuse) + specular."""
    centre = draw(HEADLIGHT.format(specular=0, emission=0), ("eye",), 33)[0, 16, 16]
    np.testing.assert_array_equal(centre, np.round([255 * 0.51, 255 * 0.5 * 0.62, 255 * 0.25 * 0.7]))
    centre = draw(HEADLIGHT.format(specular=0.18, emission=0.3), ("eye",), 33)[0, 16, 16]
    np.testing.assert_array_equal(centre, np.round([255 * (0.81 + 0.18), 255 * 0.5 * 0.92, 255 * 0.25 * 1.0]))


def test_a_highlight_lies_under_the_texture_by_hand() -> None:
    """A texture of one colour: colour = texel (ambient + diffuse + specular), as OpenGL's single colour has it."""
    xml = HEADLIGHT.replace(
        '<material name="m" rgba="1 .5 .25 1"',
        '<texture name="t" type="2d" builtin="flat" rgb1=".4 .8 1" width="8" height="8"/>'
        '<material name="m" texture="t" rgba="1 .5 .25 1"',
    )
    centre = draw(xml.format(specular=0.18, emission=0), ("eye",), 33)[0, 16, 16]
    lit = [0.51 + 0.18, 0.5 * 0.62, 0.25 * 0.7]
    np.testing.assert_allclose(
        centre, [255 * texel * light for texel, light in zip((0.4, 0.8, 1), lit, strict=True)], atol=1
    )


def test_an_srgb_texture_is_decoded_by_hand() -> None:
    """0.5 encoded is 0.2140 linear."""
    xml = """<mujoco><visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0" active="1"/></visual><asset>
    <texture name="t" type="2d" builtin="flat" rgb1=".5 .5 .5" width="8" height="8" colorspace="{}"/>
    <material name="m" texture="t"/></asset><worldbody><geom type="plane" size="1 1 1" material="m"/>
    <camera name="eye" pos="0 0 1"/></worldbody></mujoco>"""
    for colorspace, value in (("sRGB", 0.214), ("linear", 0.5), ("auto", 0.5)):
        centre = draw(xml.format(colorspace), ("eye",), 9)[0, 4, 4]
        np.testing.assert_allclose(centre, 255 * value, atol=1.5, err_msg=colorspace)


def test_an_attenuated_spot_by_hand() -> None:
    """A light 2 m above the point: 0.9 / (0.5 + 0.25 * 2 + 0.125 * 4) = 0.6. Outside the cone: black."""
    xml = """<mujoco><visual><headlight active="0"/></visual><worldbody>
    <light type="spot" pos="0 0 2" dir="0 0 -1" diffuse=".9 .9 .9" ambient="0 0 0" specular="0 0 0"
     attenuation=".5 .25 .125" cutoff="10" exponent="3"/>
    <geom type="plane" size="9 9 9" rgba="1 1 1 1"/><camera name="eye" pos="0 0 4" fovy="60"/></worldbody></mujoco>"""
    image = draw(xml, ("eye",), 33)[0]
    assert image[16, 16, 0] == round(255 * 0.6)
    assert 0 < image[16, 17, 0] < round(255 * 0.6)
    assert image[16, 2, 0] == 0


def test_a_2d_texture_lies_once_across_the_plane() -> None:
    """A 2 x 2 checker over a plane of 2 m: one colour a quadrant."""
    xml = """<mujoco><visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0" active="1"/></visual><asset>
    <texture name="t" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="64" height="64"/>
    <material name="m" texture="t" texrepeat="1 1" rgba="1 1 1 1"/></asset><worldbody>
    <geom type="plane" size="1 1 1" material="m"/><camera name="eye" pos="0 0 2" fovy="45"/></worldbody></mujoco>"""
    image = draw(xml, ("eye",), 64)[0]
    quadrants = image[[16, 16, 48, 48], [16, 48, 16, 48]]
    red, blue = (255, 0, 0), (0, 0, 255)
    assert [tuple(int(v) for v in q) for q in quadrants] in ([red, blue, blue, red], [blue, red, red, blue])


def test_supersampling_is_the_mean_of_the_finer_image(primitives: str) -> None:
    fine = draw(primitives, CAMERAS, 64).astype(float).reshape(3, 32, 2, 32, 2, 3).mean(axis=(2, 4))
    assert np.abs(draw(primitives, CAMERAS, 32, samples=2) - fine).max() <= 1


def test_threads_draw_what_one_thread_draws(primitives: str) -> None:
    model, data = load(primitives)
    renderer = RaycastRenderer()
    scene = renderer.add_scene(model)
    poses = [(data.xpos + 0.01 * i * (np.arange(model.nbody) > 0)[:, None], data.xmat.copy()) for i in range(16)]

    def one(pose: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        out = np.zeros((3, 48, 48, 3), np.uint8)
        renderer.render(scene, *pose, CAMERAS, out)
        return out

    with ThreadPoolExecutor(4) as pool:
        images = list(pool.map(one, poses))
    np.testing.assert_array_equal(images, [one(pose) for pose in poses])
    assert (images[0] != images[15]).any()


@pytest.mark.parametrize(
    ("xml", "words"),
    [
        ('<geom name="glass" size=".1" rgba="1 1 1 .5"/>', "'glass' is transparent"),
        ('<geom name="rock" type="mesh" mesh="rock"/>', "'rock' is a mesh"),
        ('<light name="lamp" mode="trackcom"/>', "'lamp' tracks a body"),
        ('<light name="bulb" type="point"/>', "'bulb' is neither directional nor a spot"),
        ('<geom name="crate" type="box" size="1 1 1" material="wood"/>', "'crate' has a texture"),
    ],
)
def test_what_cannot_be_drawn_is_refused_by_name(xml: str, words: str) -> None:
    assets = """<asset><mesh name="rock" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>
    <texture name="wood" type="cube" builtin="flat" width="8" height="8"/>
    <material name="wood" texture="wood"/></asset>"""
    model, _ = load(f"<mujoco>{assets}<worldbody>{xml}</worldbody></mujoco>")
    with pytest.raises(UserError, match=f"{words}.*'egl' or 'osmesa'"):
        RaycastRenderer().add_scene(model)


def test_wrong_cameras_and_shapes_are_refused(primitives: str) -> None:
    model, data = load(primitives)
    renderer = RaycastRenderer()
    scene = renderer.add_scene(model)
    with pytest.raises(UserError, match=r"no camera 'frnt'.*front, low"):
        renderer.render(scene, data.xpos, data.xmat, ("frnt",), np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match=r"out must be uint8 \[2"):
        renderer.render(scene, data.xpos, data.xmat, ("front", "low"), np.zeros((1, 8, 8, 3), np.uint8))
    with pytest.raises(ValueError, match="xpos must be"):
        renderer.render(scene, data.xpos[1:], data.xmat, ("front",), np.zeros((1, 8, 8, 3), np.uint8))

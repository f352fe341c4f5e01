"""The CPU rasteriser against MuJoCo's own frames, antialiased and with reflections, on OSMesa."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import mujoco
import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.render import make_renderer
from embodied_rl.sim.render.mesh.renderer import RasterRenderer
from tests.sim.render.gl_script import run_script

SIZE = 64


def wavy(count: int = 40) -> str:
    """An OBJ of a wavy sheet of 20 x 20 cm with texture coordinates and smooth normals."""
    lines, side = [], np.linspace(-0.1, 0.1, count)
    for y in side:
        for x in side:
            slope = 0.3 * np.cos(30 * x)
            lines += [f"v {x} {y} {0.01 * np.sin(30 * x)}", f"vt {5 * x + 0.5} {5 * y + 0.5}", f"vn {-slope} 0 1"]
    for j in range(count - 1):
        for i in range(count - 1):
            a, b, c, d = (
                1 + k for k in (j * count + i, j * count + i + 1, (j + 1) * count + i + 1, (j + 1) * count + i)
            )
            lines += [f"f {a}/{a}/{a} {b}/{b}/{b} {c}/{c}/{c}", f"f {a}/{a}/{a} {c}/{c}/{c} {d}/{d}/{d}"]
    return "\n".join(lines)


XML = """
<mujoco>
  <statistic extent="1" center="0 0 .1"/>
  <visual><quality offsamples="4"/><headlight ambient=".2 .2 .2" diffuse=".3 .3 .3" specular="0 0 0"/></visual>
  <asset>
    <mesh name="sheet" file="sheet.obj"/>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".5 .7 .9" rgb2=".1 .1 .3" width="64" height="64"/>
    <texture name="check" type="2d" builtin="checker" rgb1=".9 .8 .2" rgb2=".2 .3 .6" width="128" height="128"/>
    <texture name="cube" type="cube" builtin="checker" rgb1=".7 .5 .4" rgb2=".4 .5 .7" width="64" height="64"/>
    <material name="check" texture="check" specular="1" shininess=".2"/>
    <material name="wood" texture="cube" texuniform="true"/>
    <material name="steel" rgba=".3 .3 .3 1" reflectance=".6" specular=".2"/>
    <material name="floor" texture="check" texrepeat="8 8" specular="0"/>
  </asset>
  <worldbody>
    <light pos=".2 -.3 .9" dir="-.2 .3 -.9" diffuse=".6 .6 .6" specular="1 1 1"
      cutoff="40" exponent="3" castshadow="false"/>
    <geom type="plane" size="1 1 .1" material="floor"/>
    <body>
    <geom type="mesh" mesh="sheet" material="check" pos="-.15 0 .15"/>
    <geom name="plate" type="box" size=".12 .12 .02" pos=".15 0 .1" MATERIAL/>
    <geom type="box" size=".03 .03 .05" pos=".15 .03 .2" material="wood"/>
    <geom type="ellipsoid" size=".04 .03 .05" pos=".05 -.1 .2" rgba=".8 .3 .3 1"/>
    <geom name="glass" type="cylinder" size=".05 .05" pos="-.02 -.15 .16" rgba=".2 .6 .9 .4"/>
    <site name="burner" type="cylinder" size=".06 .005" pos=".15 -.06 .125" rgba="1 .1 0 1" group="3"/>
    </body>
    <camera name="front" pos="0 -.7 .6" xyaxes="1 0 0 0 .6 .8" fovy="45"/>
    <camera name="near" pos="-.1 -.05 .3" xyaxes="1 0 0 0 .4 .9" fovy="75"/>
  </worldbody>
</mujoco>
"""
CAMERAS = ("front", "near")


def scene(plate: str = 'material="steel"') -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_string(XML.replace("MATERIAL", plate), {"sheet.obj": wavy().encode()})
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def draw(renderer: RasterRenderer, model, data, sites: tuple[int, ...] = (), size: int = SIZE) -> np.ndarray:
    out = np.zeros((len(CAMERAS), size, size, 3), np.uint8)
    renderer.render(renderer.add_scene(model), data.xpos, data.xmat, CAMERAS, out, sites)
    return out


def difference(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one.astype(np.float64) - other).mean())


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(np.float64) - other) ** 2)))


SCRIPT = """
import sys
import mujoco, numpy as np
from embodied_rl.sim.render.gl import GlRenderer
backend, model_file, out_file = sys.argv[1:]
model = mujoco.MjModel.from_binary_path(model_file)
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = GlRenderer(backend, images=True)
scene = renderer.add_scene(model)
frames = np.zeros((2, 2, 64, 64, 3), np.uint8)
renderer.render(scene, data.xpos, data.xmat, ("front", "near"), frames[0])
renderer.render(scene, data.xpos, data.xmat, ("front", "near"), frames[1], (3,))
np.save(out_file, frames)
"""


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """MuJoCo's frames uint8 [2, V, H, W, 3]: without and with the burner's site."""
    folder = tmp_path_factory.mktemp("official")
    mujoco.mj_saveModel(scene()[0], str(folder / "scene.mjb"))
    run_script(SCRIPT, "osmesa", folder / "scene.mjb", folder / "frames.npy")
    return np.load(folder / "frames.npy")


@pytest.mark.process
@pytest.mark.parametrize("lit", [0, 1])
def test_frames_are_close_to_mujocos(official: np.ndarray, lit: int) -> None:
    frames = draw(RasterRenderer(), *scene(), sites=(3,) * lit)
    for frame, true in zip(frames, official[lit], strict=True):
        assert psnr(frame, true) > 27
        assert difference(frame, true) < 4


def no_texture(model: mujoco.MjModel) -> None:
    model.mat_texid[:] = -1


def no_mirror(model: mujoco.MjModel) -> None:
    model.mat_reflectance[:] = 0


def no_glass(model: mujoco.MjModel) -> None:
    model.geom_rgba[model.geom("glass").id, 3] = 0


def opaque_glass(model: mujoco.MjModel) -> None:
    model.geom_rgba[model.geom("glass").id, 3] = 1


def no_spot(model: mujoco.MjModel) -> None:
    model.light_active[:] = 0


def narrow_spot(model: mujoco.MjModel) -> None:
    model.light_cutoff[:] = 15


def no_highlight(model: mujoco.MjModel) -> None:
    model.light_specular[:] = 0


def encoded_texture(model: mujoco.MjModel) -> None:
    model.tex_colorspace[model.texture("check").id] = mujoco.mjtColorSpace.mjCOLORSPACE_SRGB


BROKEN = (no_texture, no_mirror, no_glass, opaque_glass, no_spot, narrow_spot, no_highlight, encoded_texture)


@pytest.mark.process
@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_is_left_out_is_seen(official: np.ndarray, broken) -> None:
    model, data = scene()
    whole = draw(RasterRenderer(), model, data)
    broken(model)
    frames = draw(RasterRenderer(), model, data)
    changed = np.abs(frames.astype(int) - whole).max(axis=-1) > 8
    assert changed.any()
    assert difference(frames[changed], official[0][changed]) > 1.5 * difference(whole[changed], official[0][changed])


@pytest.mark.process
def test_a_site_is_drawn_only_when_it_is_asked_for(official: np.ndarray) -> None:
    renderer, (model, data) = RasterRenderer(), scene()
    lit, dark = draw(renderer, model, data, (3,)), draw(renderer, model, data)
    other = draw(renderer, model, data, (4,))
    assert np.array_equal(other, dark)
    assert difference(lit, official[1]) < 0.7 * difference(dark, official[1])


@pytest.mark.process
def test_four_samples_are_nearer_than_one(official: np.ndarray) -> None:
    model, data = scene()
    errors = [difference(draw(RasterRenderer(samples), model, data), official[0]) for samples in (4, 1)]
    assert errors[0] < 0.8 * errors[1]


def test_threads_draw_what_one_draws() -> None:
    model, data = scene()
    renderer = RasterRenderer()
    number = renderer.add_scene(model)
    poses = [data.xpos + 0.01 * k * (np.arange(model.nbody) > 0)[:, None] for k in range(6)]

    def frames(k: int) -> np.ndarray:
        out = np.zeros((2, SIZE, SIZE, 3), np.uint8)
        renderer.render(number, poses[k], data.xmat, CAMERAS, out, (3,) * (k % 2))
        return out

    serial = [frames(k) for k in range(6)]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            assert all(np.array_equal(a, b) for a, b in zip(pool.map(frames, range(6)), serial, strict=True))
    assert not np.array_equal(serial[0], serial[2])


def test_the_tolerance_decides_the_rung() -> None:
    model, data = scene()
    fine, coarse = (draw(RasterRenderer(tolerance=t), model, data) for t in (0.1, 50))
    assert difference(fine, coarse) > 0.1


@pytest.mark.parametrize(
    ("xml", "why"),
    [
        ("<mujoco><worldbody><light mode='trackcom'/></worldbody></mujoco>", "tracks a body"),
        ("<mujoco><worldbody><light type='point'/></worldbody></mujoco>", "neither directional nor a spot"),
        (
            "<mujoco><asset><hfield name='h' nrow='2' ncol='2' size='1 1 1 1'/></asset><worldbody>"
            "<geom name='hill' type='hfield' hfield='h'/></worldbody></mujoco>",
            "'hill' is a hfield",
        ),
    ],
)
def test_what_it_cannot_draw_is_refused(xml: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        RasterRenderer().add_scene(mujoco.MjModel.from_xml_string(xml))


def test_it_draws_no_exact_frames() -> None:
    with pytest.raises(UserError, match="render-quality fast"):
        make_renderer("raster", (), images=True)
    assert isinstance(make_renderer("raster", ()), RasterRenderer)


def test_a_removed_scene_is_gone() -> None:
    model, data = scene()
    renderer = RasterRenderer()
    number = renderer.add_scene(model)
    renderer.remove_scene(number)
    with pytest.raises(KeyError):
        renderer.render(number, data.xpos, data.xmat, CAMERAS, np.zeros((2, 8, 8, 3), np.uint8))

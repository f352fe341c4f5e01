"""The old library's installation, and what an older era makes of a LIBERO task."""

from __future__ import annotations

import zipfile
from pathlib import Path

import mujoco
import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.install import era as assets_era
from embodied_rl.sim.libero.install.era import install_era_library
from embodied_rl.sim.libero.tasks import load_suite, load_task
from embodied_rl.sim.mujoco.era import LIBRARY, era_of
from tests import era_library
from tests.sim.libero.exported_tasks import NAME, SITE, contents, install_fake, saved
from tests.sim.render.gl_script import run_script

SRGB, LINEAR = int(mujoco.mjtColorSpace.mjCOLORSPACE_SRGB), int(mujoco.mjtColorSpace.mjCOLORSPACE_LINEAR)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Path:
    if reason := era_library.missing():
        pytest.skip(reason)
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(era_library.CACHE))
    return era_library.CACHE / "era" / LIBRARY


def _pip(monkeypatch: pytest.MonkeyPatch, wheel: bytes | None) -> list[tuple[str, ...]]:
    """pip downloads `wheel`, or fails; returns the arguments that it was called with."""
    calls: list[tuple[str, ...]] = []

    def pip(python: Path, *words: str, what: str) -> None:
        calls.append(words)
        if wheel is None:
            raise UserError(f"pip could not {what}: the package index cannot be reached")
        (Path(words[words.index("--dest") + 1]) / "mujoco-3.3.2-cp312.whl").write_bytes(wheel)

    monkeypatch.setattr(assets_era, "pip", pip)
    monkeypatch.setattr(assets_era, "wrong_platform", lambda: None)
    return calls


def _wheel(folder: Path, name: str, data: bytes) -> bytes:
    path = folder / "made.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"mujoco/{name}", data)
    return path.read_bytes()


def test_the_library_alone_is_kept_and_fetched_once(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = _pip(monkeypatch, _wheel(tmp_path, LIBRARY, library.read_bytes()))
    cache = tmp_path / "cache"
    assert install_era_library(cache)
    assert [path.name for path in cache.rglob("*")] == ["era", LIBRARY]
    assert not install_era_library(cache)
    (cache / "era" / LIBRARY).write_bytes(b"damaged")
    assert install_era_library(cache)
    assert len(commands) == 2
    assert {"--no-deps", "mujoco==3.3.2"} < set(commands[0])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (LIBRARY, b"another", "another checksum"),
        ("libmujoco.so.9", b"", "is damaged"),
        (None, b"not a wheel", "is damaged"),
    ],
)
def test_what_is_not_the_official_library_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None, data: bytes, message: str
) -> None:
    _pip(monkeypatch, data if name is None else _wheel(tmp_path, name, data))
    with pytest.raises(UserError, match=message):
        install_era_library(tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*"))


def test_a_failed_download_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pip(monkeypatch, None)
    with pytest.raises(UserError, match=r"pip could not download mujoco==3\.3\.2"):
        install_era_library(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_other_platforms_fetch_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _pip(monkeypatch, None)
    monkeypatch.setattr(assets_era, "wrong_platform", lambda: "another machine")
    assert not install_era_library(tmp_path)
    assert not commands


def _with_srgb_texture(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported task whose first texture has sRGB colours, as MuJoCo reads a PNG with such a chunk."""
    texture = '<texture name="t" type="2d" builtin="flat" width="8" height="8"/><material name="m" texture="t"/>'
    bodies = f'<geom size="1" material="m"/><site name="{SITE}"/>'
    visual = mujoco.MjModel.from_xml_string(f"<mujoco><asset>{texture}</asset><worldbody>{bodies}</worldbody></mujoco>")
    visual.tex_colorspace[0] = SRGB
    real = contents.__globals__["binary"]
    changed = saved(visual)
    monkeypatch.setitem(contents.__globals__, "binary", lambda short, kind: changed if kind else real(short, kind))
    install_fake(root, (NAME,))


def test_an_older_era_is_in_both_models_of_a_task(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _with_srgb_texture(tmp_path, monkeypatch)
    plain, old = load_task(tmp_path, NAME), load_task(tmp_path, NAME, "mujoco-3.3")
    assert (plain.era, old.era) == ("current", "mujoco-3.3")
    assert plain.fingerprint == old.fingerprint
    assert plain.build_visual().tex_colorspace[0] == SRGB
    assert (old.build_visual().tex_colorspace == LINEAR).all()
    assert (era_of(plain.build_physics()), era_of(old.build_physics())) == ("current", "mujoco-3.3")
    (second,) = load_suite(tmp_path, "libero_goal", "mujoco-2.3.7")
    assert (second.era, era_of(second.build_physics())) == ("mujoco-2.3.7", "mujoco-2.3.7")
    np.testing.assert_array_equal(plain.init_states, old.init_states)


DRAW = '''
import sys
import mujoco, numpy as np
from embodied_rl.sim.render.gl import GlRenderer
backend, *spaces = sys.argv[1:]
xml = """<mujoco><asset><texture name="t" type="2d" builtin="flat" rgb1=".5 .4 .3" width="8" height="8"/>
<material name="m" texture="t" emission="1"/></asset><worldbody><geom type="box" size="1 1 .1" material="m"/>
<camera name="c" pos="0 0 2"/></worldbody></mujoco>"""
for space in spaces:
    model = mujoco.MjModel.from_xml_string(xml)
    model.tex_colorspace[:] = int(space)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    renderer = GlRenderer(backend, images=True)
    out = np.zeros((1, 16, 16, 3), np.uint8)
    renderer.render(renderer.add_scene(model), data.xpos, data.xmat, ("c",), out)
    print(out.mean())
'''


@pytest.mark.process
def test_the_colour_space_of_a_loaded_texture_reaches_the_picture() -> None:
    srgb, linear = map(float, run_script(DRAW, "osmesa", str(SRGB), str(LINEAR)).split())
    assert linear > srgb + 20, "sRGB colours are decoded, and so darker"


def test_an_era_that_cannot_run_is_refused_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake(tmp_path / "libero")
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"--env\.physics-version current"):
        load_task(tmp_path / "libero", NAME, "mujoco-3.3")

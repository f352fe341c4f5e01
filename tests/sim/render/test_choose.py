"""The choice of a renderer, for every state a machine can be in."""

from __future__ import annotations

import mujoco
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.render import Probe, choose, make_renderer
from embodied_rl.sim.render import choose as _choose_function
from embodied_rl.sim.render.gl_shared import SharedGlRenderer
from embodied_rl.sim.render.raycast import RaycastRenderer

BALL = mujoco.MjModel.from_xml_string("<mujoco><worldbody><geom size='.1'/></worldbody></mujoco>")
ROCK = mujoco.MjModel.from_xml_string(
    "<mujoco><asset><mesh name='rock' vertex='0 0 0 1 0 0 0 1 0 0 0 1'/></asset>"
    "<worldbody><geom name='rock' type='mesh' mesh='rock'/></worldbody></mujoco>"
)
HARDWARE, SOFTWARE, MISSING = Probe("hardware", "NVIDIA"), Probe("software", "llvmpipe"), Probe("missing", "no library")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    def set_up(egl: Probe, osmesa: Probe) -> None:
        states = {"egl": egl, "osmesa": osmesa}
        monkeypatch.setitem(_choose_function.__globals__, "probe", states.__getitem__)

    return set_up


@pytest.mark.parametrize(
    ("egl", "osmesa", "model", "name", "why"),
    [
        (HARDWARE, SOFTWARE, BALL, "raycast", "primitives"),
        (HARDWARE, SOFTWARE, ROCK, "egl", "GPU"),
        (SOFTWARE, SOFTWARE, BALL, "raycast", "primitives"),
        (MISSING, MISSING, BALL, "raycast", "primitives"),
        (SOFTWARE, SOFTWARE, ROCK, "osmesa", "'rock' is a mesh"),
        (SOFTWARE, MISSING, ROCK, "egl", "'rock' is a mesh"),
    ],
)
def test_auto(machine, egl: Probe, osmesa: Probe, model, name: str, why: str) -> None:
    machine(egl, osmesa)
    choice = choose("auto", [BALL, model])
    assert choice.name == name
    assert why in choice.reason


def test_nothing_can_draw(machine) -> None:
    machine(MISSING, MISSING)
    with pytest.raises(UserError, match="apt-get install libosmesa6"):
        choose("auto", [ROCK])


def test_an_explicit_choice_is_never_replaced(machine) -> None:
    machine(MISSING, SOFTWARE)
    with pytest.raises(UserError, match=r"'egl' does not work here \(no library\).*apt-get install libegl1"):
        choose("egl", [BALL])
    assert choose("osmesa", [BALL]).name == "osmesa"
    with pytest.raises(UserError, match="'rock' is a mesh"):
        choose("raycast", [ROCK])
    with pytest.raises(UserError, match="Did you mean 'raycast'"):
        choose("raycaster", [BALL])


@pytest.mark.parametrize(("egl", "shared"), [(HARDWARE, True), (SOFTWARE, False)])
def test_on_a_gpu_one_thread_draws_for_all(machine, monkeypatch, egl: Probe, shared: bool) -> None:
    machine(egl, MISSING)
    monkeypatch.setattr("embodied_rl.sim.render.probe", lambda backend: egl)
    monkeypatch.setenv("PYOPENGL_PLATFORM", "egl")
    monkeypatch.setattr("embodied_rl.sim.render.gl._context_class", lambda backend: None)
    assert isinstance(make_renderer("egl", [ROCK]), SharedGlRenderer) == shared


def test_make_renderer() -> None:
    renderer = make_renderer("raycast", [BALL])
    assert isinstance(renderer, RaycastRenderer)
    assert renderer.name == "raycast"
    assert renderer.add_scene(BALL) == 0
    assert renderer.add_scene(BALL) == 1

"""The page of `view`: what is in its scene, and the whole command in headless Chromium."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rich.console import Console

from embodied_rl.errors import UserError
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.jobs.eval_request import resolved
from embodied_rl.jobs.evaluation_setup import evaluation_env, make_plan, prepare
from embodied_rl.jobs.viewer import Viewer
from embodied_rl.sim.render.mesh.parts import Part
from tests.browser import BROWSER, opened, until
from tests.embodied_rl.jobs.test_viewer import COMMAND, UP
from tests.sim.optional import needs

pytestmark = needs("viser")
CLICK = "[...document.querySelectorAll('button')].find(each => each.textContent == '{}').click()"
DRAWN = 1800
"""Different colours of the scene: there are 500 without one, 1000 with all its bodies at one place, and 2900 of it."""
TEXT = "document.body?.innerText ?? ''"


@pytest.fixture(scope="module")
def shown() -> Iterator[tuple[SuiteEnv, Viewer, Any]]:
    """Env, viewer and page; nobody looks at it."""
    from embodied_rl.jobs.view_page import Page

    command = resolved("tabletop", COMMAND, COMMAND.suite)
    plan = make_plan("tabletop", command, Console(quiet=True))
    ready = prepare(plan, command)
    with evaluation_env(plan, ready.policy, ready.renderer) as env:
        viewer = Viewer(env, ready.policy, plan.specs, "greedy")
        page = Page(viewer, "127.0.0.1", free_port(), env.info.cameras, {spec.task: 150 for spec in plan.specs})
        try:
            yield env, viewer, page
        finally:
            page.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def test_the_scene_has_every_geom_once_and_bodies_are_where_the_simulator_has_them(
    shown: tuple[SuiteEnv, Viewer, Any],
) -> None:
    env, viewer, page = shown
    page.show(viewer)
    model = env.mujoco.task(0).build_visual()
    geoms = [geom for geom in range(model.ngeom) if model.geom_group[geom] < 3]
    assert sorted(part.body for part, _ in page.parts) == sorted(model.geom_bodyid[geoms].tolist())
    first = {body: frame.position.copy() for body, frame in page.bodies.items()}
    for _ in range(6):
        viewer.step()
    page.show(viewer)
    data = env.mujoco.data(0)
    for body, frame in page.bodies.items():
        np.testing.assert_allclose(frame.position, data.xpos[body], rtol=2e-5, atol=1e-7)  # what moved less is not sent
        np.testing.assert_allclose(frame.wxyz, data.xquat[body], rtol=2e-5, atol=1e-7)
    moved = [body for body, before in first.items() if np.abs(before - page.bodies[body].position).max() > 0.01]
    assert {model.body(body).name for body in moved} >= {"robot0_right_hand"}
    assert 0 not in moved


def test_another_task_has_another_scene(shown: tuple[SuiteEnv, Viewer, Any]) -> None:
    _, viewer, page = shown
    viewer.choose("open the drawer of the cabinet")
    page.show(viewer)
    before = page.parts
    viewer.reset()
    page.show(viewer)
    assert page.parts is before
    viewer.choose("put the bowl on the plate")
    page.show(viewer)
    assert page.parts is not before


def test_what_is_said(shown: tuple[SuiteEnv, Viewer, Any]) -> None:
    _, viewer, page = shown
    viewer.choose("open the drawer of the cabinet")
    page.show(viewer)
    assert page._status.content == (
        "**open the drawer of the cabinet**\n\ninitial state 50, control step 0 of 150, decision 1\n\nstanding still"
    )
    assert (page._play.label, page._step.disabled, page._release.disabled) == ("Play", False, True)
    viewer.move(UP)
    page.show(viewer)
    assert page._status.content.endswith("\n\nyou move the arm")
    assert (page._step.disabled, page._release.disabled) == (True, False)
    viewer.problem = "it broke"
    page.show(viewer)
    assert page._status.content.endswith("\n\nit broke")
    np.testing.assert_array_equal(page._pictures[0].image, viewer.episode.observation.images[0, 0].numpy())


def test_a_key_that_is_held_does_not_go_on_after_it(shown: tuple[SuiteEnv, Viewer, Any]) -> None:
    _, viewer, page = shown
    commands = {each.label: each for each in page._server.gui._command_handle_from_uuid.values()}
    assert len(commands) == 9 + 3
    up = commands["move: up"]
    for _ in range(50):
        up._impl.trigger_cb[0](None)
    asked = list(iter(lambda: page.next(0), None))
    assert len(asked) == 2
    viewer.reset()
    asked[0](viewer)
    assert viewer.by_hand


def test_a_part_is_the_same_in_gltf() -> None:
    """Textures lie as they do in MuJoCo, whose first row glTF counts from as well; colours are linear there."""
    from embodied_rl.jobs.view_page import triangles

    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], np.float32)
    coords, texture = np.array([[0, 0.25], [1, 0.25], [0, 1]], np.float32), np.zeros((2, 2, 3), np.uint8)
    up = np.tile(np.array([0, 0, 1], np.float32), (3, 1))
    faces = np.array([[0, 1, 2]], np.int32)
    part = Part(0, -1, np.zeros(3), np.eye(3), corners, up, faces, (0.5, 1.0, 0.0, 0.5), coords, texture)
    data: Any = triangles(part).export(file_type="glb")
    length = int.from_bytes(data[12:16], "little")
    tree, binary = json.loads(data[20 : 20 + length]), data[28 + length :]
    attributes = tree["meshes"][0]["primitives"][0]["attributes"]
    for name, wanted in (("POSITION", corners), ("NORMAL", up), ("TEXCOORD_0", coords)):
        view = tree["bufferViews"][tree["accessors"][attributes[name]]["bufferView"]]
        found = np.frombuffer(binary, np.float32, wanted.size, view.get("byteOffset", 0)).reshape(wanted.shape)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    (material,) = tree["materials"]
    assert material["alphaMode"] == "BLEND"
    factor = material["pbrMetallicRoughness"]["baseColorFactor"]
    np.testing.assert_allclose(factor, (0.5**2.2, 1, 0, 0.5), atol=0.01)


def test_nobody_can_ask_for_a_public_address(shown: tuple[SuiteEnv, Viewer, Any]) -> None:
    assert shown[2]._server.request_share_url() is None


def test_a_port_that_is_taken_is_one_line(shown: tuple[SuiteEnv, Viewer, Any]) -> None:
    from embodied_rl.jobs.view_page import Page

    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="name another --port"):
        Page(shown[1], "127.0.0.1", taken.getsockname()[1], (), {})


@pytest.mark.process
@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
def test_a_person_looks_steps_and_takes_over(tmp_path: Path) -> None:
    words = ["view", "tabletop", "--suite", "goal", "--task", "open_the_drawer_of_the_cabinet"]
    counts = ["env", "--default-signal=INT"]  # Ctrl-C: a shell has it ignored by what runs in its background
    command = [*counts, sys.executable, "-m", "embodied_rl", *words, "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            address = re.search(r"ready: (http://127\.0\.0\.1:\d+) ", next(iter(program.stdout)))
            assert address is not None
            with opened(address[1], tmp_path / "profile", gl=True) as tab:
                until(lambda: "control step 0 of 150" in tab.value(TEXT))
                until(lambda: colours(tab) > DRAWN)
                tab.value(CLICK.format("Step"))
                until(lambda: "control step 1 of 150" in tab.value(TEXT))
                tab.press("9")
                until(lambda: "control step 2 of 150" in tab.value(TEXT))
                assert "you move the arm" in tab.value(TEXT)
                tab.value(CLICK.format("Give the arm back"))
                until(lambda: "standing still" in tab.value(TEXT))
                assert [error for error in tab.errors if "'level': 'error'" in error] == []
        finally:
            program.send_signal(signal.SIGINT)
        assert program.wait() == 130


def colours(tab: Any) -> int:
    """How many different ones the page's left half has."""
    image = cv2.imdecode(np.frombuffer(tab.picture(), np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return len(np.unique(image[:, : image.shape[1] // 2].reshape(-1, 3), axis=0))

"""Perturbed episodes: drawn from the episode's seed alone, visible where meant, and never an unfair start."""

from __future__ import annotations

import json
from dataclasses import replace

import mujoco
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.perturb import KINDS, Perturber, variant_spec
from embodied_rl.sim.perturb.objects import move_objects
from embodied_rl.sim.perturb.visual import (
    change_colours,
    change_light,
    draw_camera,
    draw_colours,
    draw_light,
    move_camera,
)
from embodied_rl.sim.perturb.words import paraphrase
from embodied_rl.sim.tabletop import load_suite, suites
from embodied_rl.types import Array

SUITE = load_suite("tabletop_goal")
TASK = SUITE[0]
SPECS = evaluation_specs({TASK.name: [50, 51, 52]}, 3)
EVERYTHING = Perturber([TASK], KINDS)


def rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))


@pytest.fixture(scope="module")
def looks() -> mujoco.MjModel:
    return TASK.build_visual()


def camera_of(model: mujoco.MjModel) -> tuple[Array, Array]:
    """Position, and direction in which it looks."""
    matrix = np.empty(9)
    mujoco.mju_quat2Mat(matrix, model.cam_quat[model.camera("agentview").id])
    return model.cam_pos[model.camera("agentview").id].copy(), -matrix.reshape(3, 3)[:, 2]


def test_a_variant_depends_on_its_episode_alone() -> None:
    first = [EVERYTHING.variant(spec) for spec in SPECS]
    again = [Perturber([TASK], reversed_kinds()).variant(spec) for spec in reversed(SPECS)][::-1]
    for one, two in zip(first, again, strict=True):
        assert one.drawn == two.drawn
        assert one.task.instruction == two.task.instruction
        np.testing.assert_array_equal(one.task.init_states, two.task.init_states)
        np.testing.assert_array_equal(one.task.build_visual().geom_rgba, two.task.build_visual().geom_rgba)
    assert first[0].drawn != first[1].drawn
    assert EVERYTHING.variant(replace(SPECS[0], seed=SPECS[0].seed + 1)).drawn != first[0].drawn
    assert set(json.loads(json.dumps(first[0].drawn))) == set(KINDS)


def reversed_kinds() -> tuple[str, ...]:
    return KINDS[::-1]


def test_one_kind_draws_the_same_whatever_else_is_perturbed() -> None:
    alone = Perturber([TASK], ["light"]).variant(SPECS[0])
    assert alone.drawn == {"light": EVERYTHING.variant(SPECS[0]).drawn["light"]}
    assert alone.task.instruction == TASK.instruction
    np.testing.assert_array_equal(alone.task.init_states[0], TASK.init_states[50])


def test_a_variant_is_what_an_environment_is_reset_to() -> None:
    spec = variant_spec(SPECS[1])
    variant = EVERYTHING.variant(SPECS[1]).task
    assert (spec.task, spec.init_state, spec.seed) == (variant.name, 0, SPECS[1].seed)
    assert len(variant.init_states) == 1
    assert (variant.suite, variant.goal, variant.max_episode_steps) == (TASK.suite, TASK.goal, TASK.max_episode_steps)


def test_the_original_models_stay_as_they_are(looks: mujoco.MjModel) -> None:
    perturber = Perturber([replace(TASK, build_visual=lambda: looks)], KINDS)
    before = looks.geom_rgba.copy(), looks.cam_pos.copy(), looks.light_diffuse.copy()
    headlight = looks.vis.headlight.diffuse.copy()
    assert perturber.variant(SPECS[0]).task.build_visual() is not looks
    for was, now in zip(before, (looks.geom_rgba, looks.cam_pos, looks.light_diffuse), strict=True):
        np.testing.assert_array_equal(was, now)
    np.testing.assert_array_equal(headlight, looks.vis.headlight.diffuse)


@given(st.integers(0, 2**31), st.floats(0.1, 2.0))
@settings(max_examples=15)
def test_the_camera_still_looks_at_the_table(seed: int, level: float) -> None:
    model = TASK.build_visual()
    at, towards = camera_of(model)
    middle = at + 0.9 * towards
    drawn = draw_camera(rng(seed), level)
    move_camera(model, drawn)
    new, now_towards = camera_of(model)
    np.testing.assert_allclose(new + 0.9 * drawn["distance"] * now_towards, middle, atol=1e-9)
    assert abs(drawn["turn_deg"]) <= 12 * level
    assert abs(drawn["distance"] - 1) <= 0.1 * level


def test_level_nought_changes_no_pixel_and_no_state(looks: mujoco.MjModel) -> None:
    still = Perturber([TASK], ["camera", "light", "texture", "object"], level=0.0).variant(SPECS[0]).task
    model = still.build_visual()
    np.testing.assert_allclose(model.cam_pos, looks.cam_pos, atol=1e-12)
    np.testing.assert_allclose(model.light_dir, looks.light_dir, atol=1e-12)
    np.testing.assert_array_equal(model.light_diffuse, looks.light_diffuse)
    np.testing.assert_array_equal(still.init_states[0], TASK.init_states[50])


def test_colours_change_on_what_stands_still_only() -> None:
    model = TASK.build_visual()
    before = model.geom_rgba.copy()
    change_colours(model, draw_colours(rng(1), 1.0))
    changed = (model.geom_rgba != before).any(axis=1)
    fixed = model.body_weldid[model.geom_bodyid] == 0
    robot = np.array([model.body(b).name.startswith(("robot0", "gripper0")) for b in model.geom_bodyid])
    assert changed.any()
    assert not changed[~fixed | robot].any()
    np.testing.assert_array_equal(model.geom_rgba[:, 3], before[:, 3])


def test_a_tint_reaches_a_textured_geom() -> None:
    model = mujoco.MjModel.from_xml_string(
        """<mujoco><asset><texture name="t" type="2d" builtin="checker" width="8" height="8" rgb1="1 1 1" rgb2="0 0 0"/>
        <material name="m" texture="t" rgba="0.8 0.6 0.4 1"/></asset>
        <worldbody><geom type="plane" size="1 1 1" material="m"/></worldbody></mujoco>"""
    )
    change_colours(model, draw_colours(rng(2), 1.0))
    tinted = model.geom_rgba[0, :3] / np.array([0.8, 0.6, 0.4])
    assert np.all(np.abs(tinted - 1) <= 0.35 + 1e-6)
    assert np.abs(tinted - 1).max() > 0.01


def test_light_stays_a_colour_and_reaches_the_headlight() -> None:
    model = TASK.build_visual()
    head = model.vis.headlight.ambient.copy()
    change_light(model, draw_light(rng(4), 3.0))
    assert not np.array_equal(head, model.vis.headlight.ambient)
    for part in (model.light_diffuse, model.vis.headlight.diffuse):
        assert np.all((part >= 0) & (part <= 1))
    np.testing.assert_allclose(np.linalg.norm(model.light_dir, axis=1), 1)


def supports(model: mujoco.MjModel, state: Array) -> dict[str, set[int]]:
    """Geoms that each object touches."""
    data = mujoco.MjData(model)
    data.qpos[:] = state[1 : 1 + model.nq]
    mujoco.mj_forward(model, data)
    found: dict[str, set[int]] = {}
    for contact in data.contact:
        for mine, other in (contact.geom, contact.geom[::-1]):
            body = int(model.geom_bodyid[mine])
            if model.body_weldid[body] != 0:
                found.setdefault(model.body(model.body_weldid[body]).name, set()).add(int(other))
    return found


@pytest.mark.parametrize("suite", suites())
def test_moved_objects_stand_where_they_stood_and_touch_nothing_new(suite: str) -> None:
    moved_any = 0
    for task in load_suite(suite)[:2]:
        model = task.build_physics()
        for row in (0, 50):
            state = task.init_states[row]
            new, moved = move_objects(model, state, rng(row), 1.0)
            assert supports(model, new) == supports(model, state)
            assert new[0] == state[0]
            np.testing.assert_array_equal(new[1 + model.nq :], state[1 + model.nq :])
            np.testing.assert_array_equal(new[1:10], state[1:10])  # the robot
            for name, (x, y, _) in moved.items():
                at = model.jnt_qposadr[model.body_jntadr[model.body(name).id]]
                np.testing.assert_allclose(new[1 + at : 3 + at] - state[1 + at : 3 + at], (x, y), atol=1e-12)
                assert max(abs(x), abs(y)) <= 0.03
            moved_any += len(moved)
    assert moved_any > 0


def stacked() -> tuple[mujoco.MjModel, Array]:
    """A cup on a tray, and a box hemmed in by walls."""
    wall = '<geom type="box" size=".01 .1 .1" pos="{} 1 .1"/>'
    model = mujoco.MjModel.from_xml_string(
        f"""<mujoco><worldbody><geom type="plane" size="0 0 1"/>{wall.format(0.0605)}{wall.format(-0.0605)}
        <geom type="box" size=".2 .01 .1" pos="0 1.0605 .1"/><geom type="box" size=".2 .01 .1" pos="0 .9395 .1"/>
        <body name="tray" pos="0 0 .01"><freejoint/><geom type="box" size=".1 .1 .01"/></body>
        <body name="cup" pos="0 0 .05"><freejoint/><geom type="box" size=".03 .03 .03"/></body>
        <body name="box" pos="0 1 .05"><freejoint/><geom type="box" size=".05 .05 .05"/></body>
        <body name="free" pos="2 0 .05"><freejoint/><geom type="box" size=".05 .05 .05"/></body>
        <body name="hovers" pos="3 0 .12"><freejoint/><geom type="box" size=".05 .05 .05"/></body>
        <body name="falls" pos="4 0 .5"><freejoint/><geom type="box" size=".05 .05 .05"/></body></worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    return model, np.concatenate([[0.0], data.qpos, data.qvel])


def test_what_carries_or_has_no_room_stays() -> None:
    model, state = stacked()
    for seed in range(5):
        new, moved = move_objects(model, state, rng(seed), 1.0)
        np.testing.assert_array_equal(new[3 : 1 + model.nq : 7], state[3 : 1 + model.nq : 7])  # heights
        assert {"free", "hovers"} <= set(moved)
        assert not {"tray", "cup", "falls"} & set(moved)
        if "box" in moved:  # half a millimetre of play: a draw that fits is small
            assert max(abs(moved["box"][0]), abs(moved["box"][1])) < 0.0016


@given(st.sampled_from([task.instruction for name in suites() for task in load_suite(name)]), st.integers(0, 2**31))
@settings(max_examples=60)
def test_a_paraphrase_says_something_else_about_the_same_things(text: str, seed: int) -> None:
    said = paraphrase(text, rng(seed))
    assert said != text
    assert said == paraphrase(text, rng(seed))
    for noun in ("bowl", "plate", "drawer", "basket", "bottle", "mug", "stove", "cabinet", "ramekin", "box"):
        assert (f" {noun}" in text) == (f" {noun}" in said)


def test_many_wordings() -> None:
    said = {paraphrase("pick up the mug and place it in the basket", rng(seed)) for seed in range(60)}
    assert len(said) > 20
    assert paraphrase("xyz", rng(0)) != "xyz"


@pytest.mark.parametrize(
    ("kinds", "level", "message"),
    [
        (["camera"], -1.0, "must not be negative"),
        (["camera"], float("nan"), "must not be negative"),
        (["camera", "camera"], 1.0, "named twice"),
        (["camra"], 1.0, "Did you mean 'camera'"),
    ],
)
def test_bad_options_are_one_line(kinds: list[str], level: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Perturber([TASK], kinds, level)


def test_a_scene_without_that_camera_is_an_error() -> None:
    bare = mujoco.MjModel.from_xml_string("<mujoco/>")
    task: MujocoTask = replace(TASK, build_visual=lambda: bare)
    with pytest.raises(UserError, match="no camera 'agentview'"):
        Perturber([task], ["camera"]).variant(SPECS[0]).task.build_visual()

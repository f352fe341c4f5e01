"""What the scripted expert plans on: surface points, the hand's shape, grasps and places on scenes made by hand."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.libero.expert.geometry import Surface, angle_between, rotation, rotation_vector
from embodied_rl.sim.libero.expert.grasps import Grasp, downward_frames, plan_grasps
from embodied_rl.sim.libero.expert.hand import LONGEST_STRETCH, OPENING, PALM, TIP, hand_frame, hits, stretch
from embodied_rl.sim.libero.expert.pick import YAWS, choose_grasp, square_yaws
from embodied_rl.sim.libero.expert.place import HeightMap
from embodied_rl.sim.libero.expert.plan import _within_reach
from embodied_rl.sim.libero.expert.view import View
from embodied_rl.types import Array

TABLE = 0.90
SCENE = """<mujoco><worldbody>
  <geom name="floor" type="plane" size="5 5 0.1"/>
  <body name="robot0_link1" pos="-0.66 0 1.24"><geom size="0.05"/></body>
  <body name="gripper0_hand" pos="-0.2 0 1.2" quat="0 1 0 0"><geom size="0.01"/><site name="gripper0_grip_site"/></body>
  <body name="table"><geom type="box" size="0.5 0.5 0.02" pos="0 0 0.88"/></body>
  <body name="block" pos="0 0 0.93" euler="0 0 {yaw}"><freejoint/><geom type="box" size="{size}"/></body>
  {more}
</worldbody></mujoco>"""


def scene(size: str = "0.02 0.05 0.03", yaw: float = 0.0, more: str = "") -> View:
    """A block on a table, and `more`."""
    model = mujoco.MjModel.from_xml_string(SCENE.format(size=size, yaw=yaw, more=more))
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return View(model, Surface(model), data, np.random.default_rng(0))


def grasps(view: View, limit: int = 4) -> list[Grasp]:
    """The best ones of the block by hands that point down."""
    root = view.root("block")
    yaws = (*YAWS, *square_yaws(view, root))
    return plan_grasps(view.target(view.of(root)), downward_frames(np.array([1.0, 0.0, 0.0]), yaws), limit=limit)


def test_points_cover_every_shape_but_planes_and_the_robot() -> None:
    view = scene(yaw=30)
    surface, data = view.surface, view.data
    assert {view.model.body(b).name for b in surface.body} == {"table", "block"}
    mine = view.of(view.root("block"))
    local = (view.points[mine] - data.body("block").xpos) @ data.body("block").xmat.reshape(3, 3)
    half = np.array([0.02, 0.05, 0.03])
    on_a_face = np.isclose(np.abs(local), half, atol=1e-9).any(axis=1)
    assert on_a_face.all()
    assert (np.abs(local) <= half + 1e-9).all()
    assert surface.area[mine].sum() == pytest.approx(8 * (0.02 * 0.05 + 0.05 * 0.03 + 0.02 * 0.03))
    normals = surface.normals(data, mine) @ data.body("block").xmat.reshape(3, 3)
    assert np.linalg.norm(normals, axis=1) == pytest.approx(1.0)
    assert ((normals * local).sum(axis=1) > 0).all()  # outwards
    assert surface.furniture[~mine].all()
    assert not surface.furniture[mine].any()


def test_rotation_vector_undoes_rotation() -> None:
    draws = np.random.default_rng(1)
    for _ in range(50):
        axis, angle = draws.standard_normal(3), draws.uniform(0.01, 3.1)
        matrix = rotation(axis, angle)
        np.testing.assert_allclose(rotation_vector(matrix), axis / np.linalg.norm(axis) * angle, atol=1e-7)
        assert angle_between(matrix, np.eye(3)) == pytest.approx(angle)
    frame = hand_frame(np.array([0.3, 0.1, -0.8]), np.array([0.0, 1.0, 0.0]))
    np.testing.assert_allclose(frame.T @ frame, np.eye(3), atol=1e-12)
    assert np.linalg.det(frame) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("point", "touched"),
    [
        ((0.0, 0.0, 0.0), False),  # between the pads
        ((OPENING + 0.01, 0.0, 0.0), True),  # a finger
        ((OPENING + 0.01, 0.03, 0.0), False),  # beside it
        ((0.0, 0.0, PALM - 0.01), True),
        ((0.0, 0.0, TIP + 0.02), False),  # beyond the tips
        ((0.09, 0.0, -0.05), True),  # under the palm's end
    ],
)
def test_the_hand_has_two_fingers_and_a_palm(point: tuple[float, float, float], touched: bool) -> None:
    assert bool(hits(np.array([point]), OPENING, 0.002)[0]) is touched


@pytest.mark.parametrize("yaw", [0.0, 20.0, 70.0])
def test_a_block_is_held_across_its_narrow_side(yaw: float) -> None:
    view = scene(yaw=yaw)
    best = grasps(view)[0]
    narrow = view.data.body("block").xmat.reshape(3, 3)[:, 0]
    assert abs(best.rotation[:, 0] @ narrow) > np.cos(np.radians(11))  # a smaller turn of the wrist may be worth it
    assert np.linalg.norm(best.position[:2]) < 0.02
    assert best.position[2] - TIP > TABLE
    for grasp in grasps(view):
        own = (view.points - grasp.position) @ grasp.rotation
        assert not hits(own, grasp.opening, 0.0).any()


def test_what_stands_beside_it_decides_the_grasp() -> None:
    wall = '<body name="wall"><geom type="box" size="0.005 0.2 0.06" pos="0.032 0 0.96"/></body>'
    free, beside = grasps(scene())[0], grasps(scene(more=wall))
    assert all(not grasp.like(free) for grasp in beside)
    low = '<body name="roof"><geom type="box" size="0.2 0.2 0.01" pos="0 0 0.98"/></body>'
    assert grasps(scene(more=low)) == []


def test_too_wide_a_block_is_not_spanned() -> None:
    assert all(np.linalg.norm(grasp.position[:2]) > 0.04 for grasp in grasps(scene(size="0.05 0.05 0.03")))


def test_the_grasp_is_drawn_among_the_best_by_the_episodes_seed() -> None:
    view = scene()
    chosen = []
    for seed in (0, 0, 1, 2, 3):
        view.draws = np.random.default_rng(seed)
        grasp = choose_grasp(view, "block", None, (), None)
        assert grasp is not None
        chosen.append((*grasp.position, *grasp.rotation.ravel()))
    assert chosen[0] == chosen[1]
    assert len(set(chosen)) > 1


def test_a_far_destination_asks_for_a_hand_that_reaches_it() -> None:
    view = scene()
    far = np.array([0.16, 0.2, 0.93])
    near, reaching = (choose_grasp(view, "block", None, (), where) for where in (None, far))
    assert near is not None
    assert reaching is not None
    assert near.rotation[2, 2] < -0.99
    there = [stretch(g.position + far - (0, 0, 0.93), g.rotation, view.shoulder) for g in (near, reaching)]
    assert there[1] < there[0]


def test_a_height_map_says_how_deep_a_shape_would_sink() -> None:
    view = scene()
    heights = HeightMap(view.points, np.array([0.0, 0.0, TABLE]))
    assert heights.overlap(np.array([[0.0, 0.0, 0.95]])) == pytest.approx(0.01)
    assert heights.overlap(np.array([[0.15, 0.0, 0.95]])) == pytest.approx(TABLE - 0.95)
    assert heights.overlap(np.array([[5.0, 0.0, 0.0]])) == -np.inf


def test_something_overhead_is_seen() -> None:
    view = scene(more='<body name="shelf"><geom type="box" size="0.1 0.1 0.01" pos="0.2 0 1.0"/></body>')
    root = view.root("block")
    assert view.overhung(np.array([0.2, 0.0, TABLE]), 0.05, TABLE, root)
    assert not view.overhung(np.array([-0.2, 0.0, TABLE]), 0.05, TABLE, root)
    assert view.ground(np.array([0.0, 0.3, 1.0])) == pytest.approx(TABLE)
    assert view.clearance(np.zeros(3), np.array([0.2, 0.0, 0.0]), [root]) == pytest.approx(1.01 + 0.03)


def test_commands_never_straighten_the_elbow() -> None:
    view = scene()
    hand: Array = view.hand
    for move in ([0.5, 0.0, -0.1], [0.3, 0.4, 0.0], [0.0, 0.0, -0.3]):
        place = view.grip.copy()
        for _ in range(40):
            view.data.site_xpos[view._site] = place
            place = place + 0.5 * np.clip(_within_reach(view, np.array(move)), -0.05, 0.05)
        assert stretch(place, hand, view.shoulder) < LONGEST_STRETCH + 0.005

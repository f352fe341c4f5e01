"""The arm against an independent computation from Franka Emika's published Denavit-Hartenberg table."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.tabletop import load_suite
from embodied_rl.sim.tabletop.panda import HOME
from embodied_rl.sim.tabletop.scene import ROBOT_BASE
from embodied_rl.types import Array

HALF = math.pi / 2
# a (m), d (m), alpha (rad) of joints 1-7 and the flange, Craig's convention
DH = (
    (0, 0.333, 0),
    (0, 0, -HALF),
    (0, 0.316, HALF),
    (0.0825, 0, HALF),
    (-0.0825, 0.384, -HALF),
    (0, 0, HALF),
    (0.088, 0, HALF),
    (0, 0.107, 0),
)


def flange(q: Array) -> Array:
    """Pose of the flange in the base frame, [4, 4]."""
    pose = np.eye(4)
    for (a, d, alpha), angle in zip(DH, [*q, 0.0], strict=True):
        ca, sa, ct, stheta = math.cos(alpha), math.sin(alpha), math.cos(angle), math.sin(angle)
        pose = pose @ np.array(
            [
                [ct, -stheta, 0, a],
                [stheta * ca, ct * ca, -sa, -d * sa],
                [stheta * sa, ct * sa, ca, d * ca],
                [0, 0, 0, 1],
            ]
        )
    return pose


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return load_suite("tabletop_object")[0].build_physics()


def test_kinematics(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    low, high = model.jnt_range[:7].T
    turn = np.array([[math.sqrt(0.5), math.sqrt(0.5)], [-math.sqrt(0.5), math.sqrt(0.5)]])
    for _ in range(50):
        data.qpos[:7] = rng.uniform(low, high)
        mujoco.mj_kinematics(model, data)
        want = flange(data.qpos[:7])
        hand = data.body("robot0_right_hand")
        np.testing.assert_allclose(hand.xpos, want[:3, 3] + ROBOT_BASE, atol=1e-12)
        rotated = want[:3, :3].copy()
        rotated[:, :2] = rotated[:, :2] @ turn  # the hand is mounted at -45 degrees
        np.testing.assert_allclose(hand.xmat.reshape(3, 3), rotated, atol=1e-6)


def test_limits_and_drives(model: mujoco.MjModel) -> None:
    np.testing.assert_array_equal(model.jnt_range[0], [-2.8973, 2.8973])
    np.testing.assert_array_equal(model.jnt_range[3], [-3.0718, -0.0698])
    np.testing.assert_array_equal(model.actuator_ctrlrange[:7, 1], [87, 87, 87, 87, 87, 12, 12])
    np.testing.assert_array_equal(model.actuator_ctrlrange[7:], [[0, 0.04], [-0.04, 0]])
    assert model.opt.timestep == 0.002


def test_hand_points_down_at_home_with_fingers_along_y(model: mujoco.MjModel) -> None:
    data = mujoco.MjData(model)
    data.qpos[:7] = HOME
    mujoco.mj_kinematics(model, data)
    rotation = data.site("gripper0_grip_site").xmat.reshape(3, 3)
    assert rotation[2, 2] < -0.99
    assert abs(rotation[1, 1]) > 0.999


def test_inertias_are_physical(model: mujoco.MjModel) -> None:
    for body in range(1, model.nbody):
        moments = np.sort(model.body_inertia[body])
        if model.body_mass[body] > 0:
            assert moments[0] > 0
            assert moments[2] <= moments[0] + moments[1] + 1e-9, model.body(body).name


def test_free_objects_have_their_centre_of_mass_inside() -> None:
    for suite in ("tabletop_object", "tabletop_goal", "tabletop_long"):
        model = load_suite(suite)[0].build_physics()
        for joint in range(model.njnt):
            if model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE:
                np.testing.assert_array_equal(model.body_ipos[model.jnt_bodyid[joint]], 0.0)

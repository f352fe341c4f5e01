"""Forward kinematics against MuJoCo's, against the maker's Denavit-Hartenberg figures, and for any axis."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest

from embodied_rl.factory.tasks import load_tasks
from embodied_rl.real_robot.core.kinematics import Chain, Origin
from embodied_rl.real_robot.core.robot import load_robot


def turn(axis: int, angle: float) -> np.ndarray:
    """Homogeneous rotation about a coordinate axis [4, 4]."""
    matrix, (i, j) = np.eye(4), ((axis + 1) % 3, (axis + 2) % 3)
    matrix[i, i] = matrix[j, j] = np.cos(angle)
    matrix[i, j], matrix[j, i] = -np.sin(angle), np.sin(angle)
    return matrix


def shift(x: float = 0.0, z: float = 0.0) -> np.ndarray:
    matrix = np.eye(4)
    matrix[[0, 2], 3] = x, z
    return matrix


def test_the_fr3_is_the_tabletops_panda() -> None:
    """The two arms have the same links; the model's base and grip site give the frames."""
    model = load_tasks("tabletop_goal", ["turn_on_the_stove"])[0].build_physics()
    data = mujoco.MjData(model)
    chain, limits = load_robot("fr3").chain, load_robot("fr3").limits
    base = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_BODY, "robot0_link0")
    site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, "gripper0_grip_site")
    joints = [model.joint(f"robot0_joint{i}").qposadr[0] for i in range(1, 8)]
    angles = np.random.default_rng(0).uniform(limits.lower, limits.upper, (20, 7))
    positions, rotations = chain.pose(angles)
    for angle, position, rotation in zip(angles, positions, rotations, strict=True):
        data.qpos[joints] = angle
        mujoco.mj_kinematics(model, data)
        frame = data.xmat[base].reshape(3, 3).T
        np.testing.assert_allclose(position, frame @ (data.site_xpos[site] - data.xpos[base]), atol=1e-6)
        np.testing.assert_allclose(rotation, frame @ data.site_xmat[site].reshape(3, 3), atol=1e-6)


def test_the_ur5e_is_universal_robots_table() -> None:
    """Universal Robots, "DH parameters for calculations of kinematics and dynamics", UR5e; base_link is turned."""
    table = (
        (0, 0.1625, np.pi / 2),
        (-0.425, 0, 0),
        (-0.3922, 0, 0),
        (0, 0.1333, np.pi / 2),
        (0, 0.0997, -np.pi / 2),
        (0, 0.0996, 0),
    )
    chain = load_robot("ur5e").chain
    for angles in np.random.default_rng(0).uniform(-3, 3, (10, 6)):
        frame = turn(2, np.pi)
        for angle, (a, d, alpha) in zip(angles, table, strict=True):
            frame = frame @ turn(2, angle) @ shift(z=d) @ shift(x=a) @ turn(0, alpha)
        position, rotation = chain.pose(angles)
        np.testing.assert_allclose(position, frame[:3, 3], atol=1e-9)
        np.testing.assert_allclose(rotation, frame[:3, :3], atol=1e-9)


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, -1, 0), (0, 0, 1), (0, 0, -2), (1, 2, 3)])
def test_joints_turn_about_any_axis(axis: tuple[float, ...]) -> None:
    unit = np.array(axis) / np.linalg.norm(axis)
    cross = np.cross(np.eye(3), unit)
    up, arm, tip = np.eye(3)[2], np.array([0.3, -0.2, 0.5]), Origin((0.3, -0.2, 0.5))
    for angle in (0.0, 0.7, -2.0):
        rotation = np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross  # Rodrigues
        position, found = Chain([Origin((0, 0, 1))] * 2, [axis, axis], tip).pose(np.array([angle, 0.0]))
        np.testing.assert_allclose(found, rotation, atol=1e-12)
        np.testing.assert_allclose(position, up + rotation @ (up + arm), atol=1e-12)


# MuJoCo 4.0.0 on SO-ARM100's Simulation/SO101/so101_new_calib.xml: its site gripperframe.
@pytest.mark.parametrize(
    ("angles", "position"),
    [
        ([0.0, 0.0, 0.0, 0.0, 0.0], [0.39136, -0.00001, 0.22647]),
        ([0.5177, -0.7898, -1.524, -1.5742, 1.7795], [-0.17436, 0.11227, 0.20237]),
        ([1.5601, 0.3658, 0.7619, 0.142, 2.4525], [0.03578, -0.21232, -0.05823]),
        ([-1.2259, 1.2459, 0.1377, -0.6522, -0.3785], [0.13411, 0.27378, -0.11735]),
    ],
)
def test_so101s_kinematics_are_those_of_its_model(angles: list[float], position: list[float]) -> None:
    np.testing.assert_allclose(load_robot("so101").chain.position(np.array(angles)), position, atol=2e-4)

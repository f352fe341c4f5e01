"""The reference of Cartesian deltas against the simulator in which policies learn, and the law's solution."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import embodied_rl
from embodied_rl.real_robot.core.cartesian import ControlLaw, PoseReference, quaternion_xyzw, rotation_matrix
from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.types import EpisodeSpec

LAW = ControlLaw()


def at_rest() -> PoseReference:
    return PoseReference(LAW, np.array([0.5, 0.0, 0.3]), np.diag([1.0, -1.0, -1.0]))


@pytest.fixture(scope="module")
def simulated() -> tuple[np.ndarray, np.ndarray]:
    """Actions [24, 7] and the tool's pose before and after each in the tabletop, as LIBERO's proprio [25, 8]."""
    steps = np.arange(24)
    actions = np.zeros((24, 7), np.float32)
    actions[:, :3] = np.stack([np.sin(steps / 4), np.cos(steps / 5), -0.5 * np.sin(steps / 3)], 1) * 0.6
    actions[:, 5], actions[:, 4] = 0.2 * np.sin(steps / 6), 0.1 * np.cos(steps / 4)
    actions[:, 6] = np.where(steps < 12, 1, -1)
    with embodied_rl.make_vec_env("tabletop_goal", 1, tasks=["turn_on_the_stove"], cameras=0, state=True) as env:
        env.reset([0], [EpisodeSpec(0, next(iter(env.train_states)), 0, 0)])
        seen, poses = env.new_observation(1), []
        env.observe([0], seen)
        poses.append(seen.proprio[0].numpy().copy())
        for action in actions:
            env.step([0], torch.from_numpy(action)[None, None])
            env.observe([0], seen)
            poses.append(seen.proprio[0].numpy().copy())
    return actions, np.array(poses, np.float64)


def test_the_reference_moves_as_the_simulated_arm(simulated: tuple[np.ndarray, np.ndarray]) -> None:
    actions, poses = simulated
    reference = PoseReference(LAW, poses[0, :3], rotation_matrix(poses[0, 3:6]))
    path, turns = [], []
    for action, pose in zip(actions, poses[1:], strict=True):
        reference.act(action)
        reference.advance(0.05)
        path.append(reference.position)
        turns.append(np.trace(reference.rotation @ rotation_matrix(pose[3:6]).T))
    moved = np.abs(poses[1:, :3] - poses[0, :3]).max()
    assert moved > 0.05
    # The law is exact for a tool that is a free mass; the arm's inertia couples its directions.
    assert np.abs(np.array(path) - poses[1:, :3]).max() < 0.3 * moved
    assert np.degrees(np.arccos(np.clip((np.array(turns) - 1) / 2, -1, 1))).max() < 4
    naive = poses[0, :3] + np.cumsum(actions[:, :3], 0) * 0.05
    assert np.abs(naive - poses[1:, :3]).max() > 2 * moved, "sending the asked pose is another motion"


def test_full_deltas_get_27_percent_of_the_way() -> None:
    reference = at_rest()
    for _ in range(40):
        before = reference.position
        reference.act(np.array([1.0, 0, 0, 0, 0, 0, 0]))
        reference.advance(0.05)
    share = (reference.position - before)[0] / 0.05
    assert share == pytest.approx(LAW.kp / (LAW.kd + LAW.kp * 0.025) * 0.05, rel=0.02)
    assert 0.26 < share < 0.28
    assert pytest.approx(share, rel=1e-9) == LAW.share
    np.testing.assert_allclose(LAW.speeds(np.array([1.0, 0, 0, 0, -1.0, 0, 0])), [[share, 0, 0], [0, -10 * share, 0]])


def test_one_delta_is_reached_as_a_critically_damped_mass_does() -> None:
    reference = at_rest()
    reference.act(np.array([0, 1.0, 0, 0, 0, 0, 0]))
    reference.advance(0.1)
    w = np.sqrt(LAW.kp)
    assert reference.position[1] == pytest.approx(0.05 * (1 - (1 + w * 0.1) * np.exp(-w * 0.1)), rel=0.03)
    reference.advance(2.0)
    np.testing.assert_allclose(reference.position, [0.5, 0.05, 0.3], atol=1e-6)
    np.testing.assert_allclose(reference.twist, 0, atol=1e-6)


def test_a_turn_is_about_the_bases_axes_and_zero_keeps_the_goal() -> None:
    reference, start = at_rest(), at_rest().rotation
    reference.act(np.array([0, 0, 0, 0, 0, 1.0, 0]))
    reference.act(np.zeros(7))
    reference.advance(3.0)
    np.testing.assert_allclose(reference.rotation, rotation_matrix(np.array([0, 0, 0.5])) @ start, atol=1e-6)


def test_the_gripper_follows_the_sign() -> None:
    reference = at_rest()
    assert reference.width(0.0, 0.08) == pytest.approx(0.08)
    reference.act(np.array([0, 0, 0, 0, 0, 0, 0.3]))
    reference.advance(0.05)
    assert reference.grip == pytest.approx(-0.75)
    reference.advance(1.0)
    assert reference.width(0.0, 0.08) == 0
    reference.hold()
    reference.advance(1.0)
    assert reference.grip == 1


def test_it_goes_on_from_where_the_gate_left_it() -> None:
    reference = at_rest()
    reference.act(np.array([1.0, 0, 0, 0, 0, 0, 0]))
    reference.advance(0.05)
    left = 0.55 - reference.position[0]
    reference.moved_to(np.array([0.4, 0.1, 0.3]), reference.rotation)
    reference.advance(3.0)
    np.testing.assert_allclose(reference.position, [0.4 + left, 0.1, 0.3], atol=1e-6)


@pytest.mark.parametrize("action", [np.zeros(6), np.full(7, np.nan), np.zeros((1, 7))])
def test_what_is_no_action_is_refused(action: np.ndarray) -> None:
    with pytest.raises(ValueError, match="7 finite numbers"):
        at_rest().act(action)


def test_quaternions_are_ros_and_survive_every_turn() -> None:
    np.testing.assert_allclose(
        quaternion_xyzw(rotation_matrix(np.array([0, 0, 0.6]))), [0, 0, np.sin(0.3), np.cos(0.3)]
    )
    rng = np.random.default_rng(0)
    turns = [*(rng.normal(size=(50, 3)) * 2), *(np.pi * np.eye(3)), np.zeros(3), np.array([np.pi - 1e-9, 0, 0])]
    for turn in turns:
        rotation = rotation_matrix(turn)
        x, y, z, w = quaternion_xyzw(rotation)
        v = np.array([x, y, z])
        cross = np.cross(np.eye(3), v)
        np.testing.assert_allclose(
            (w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * cross, rotation, atol=1e-9
        )


def test_a_reference_that_ran_ahead_comes_back_to_its_leash() -> None:
    reference, position, rotation = at_rest(), np.array([0.5, 0.0, 0.3]), np.diag([1.0, -1.0, -1.0])
    reference.act(np.array([1, 0, 0, 0, 0, 1, 0]))
    for _ in range(40):
        reference.advance(0.05)
    reference.keep_near(position, rotation, 0.06, 0.6)
    np.testing.assert_allclose(reference.position, [0.55, 0, 0.3], atol=1e-5)
    np.testing.assert_allclose(reference.rotation, rotation_matrix(np.array([0, 0, 0.5])) @ rotation, atol=1e-5)
    reference.keep_near(position, rotation, 0.02, 0.1)
    np.testing.assert_allclose(reference.position, [0.52, 0, 0.3], atol=1e-9)
    np.testing.assert_allclose(reference.rotation, rotation_matrix(np.array([0, 0, 0.1])) @ rotation, atol=1e-9)
    reference.moved_to(position, np.diag([-1.0, 1.0, -1.0]))
    reference.keep_near(position, rotation, 0.02, 0.1)
    assert np.trace(reference.rotation @ rotation.T) == pytest.approx(1 + 2 * np.cos(0.1)), "half a turn has an axis"


def test_actions_point_along_trainings_axes_however_the_base_is_turned() -> None:
    base = Origin((-0.66, 0.0, 0.912), (0.3, -0.4, 2.0))
    turn, action = base.rotation(), np.array([1.0, 1.0, -0.4, 0.3, -1.0, 0.2, 1.0])
    position, rotation = np.array([0.5, 0.0, 0.3]), np.diag([1.0, -1.0, -1.0])
    trained = PoseReference(LAW, turn @ position, turn @ rotation)
    turned = PoseReference(LAW, position, rotation, base=base)
    for _ in range(5):
        for reference in (trained, turned):
            reference.act(action)
            reference.advance(0.05)
    assert np.linalg.norm(trained.position - turn @ position) > 0.05
    np.testing.assert_allclose(turn @ turned.position, trained.position, atol=1e-12)
    np.testing.assert_allclose(turn @ turned.rotation, trained.rotation, atol=1e-12)

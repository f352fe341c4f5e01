"""The twin's trajectory controller, against what joint_trajectory_controller documents."""

from __future__ import annotations

import numpy as np

from embodied_rl.real_robot.twin.follower import Point, TrajectoryFollower

ONE = 1_000_000_000


def point(seconds: float, position: float, velocity: float) -> Point:
    return Point(round(seconds * ONE), np.array([position]), np.array([velocity]))


def test_it_passes_every_point_with_its_velocity_and_rests_at_the_end() -> None:
    follower = TrajectoryFollower(np.array([0.0]))
    points = [point(0.1, 0.02, 0.3), point(0.2, 0.05, 0.2), point(0.4, 0.06, 0.0)]
    follower.take(points, 0)
    for wanted in points:
        position, velocity = follower.at(wanted.time_ns)
        assert np.allclose([*position, *velocity], [*wanted.positions, *wanted.velocities])
    position, velocity = follower.at(9 * ONE)
    assert (position[0], velocity[0]) == (0.06, 0.0)


def test_a_cubic_is_found_again() -> None:
    follower = TrajectoryFollower(np.array([0.0]))
    follower.take([Point(ONE, np.array([1.0]), np.array([0.0]))], 0)
    for share in np.linspace(0, 1, 11):
        position, velocity = follower.at(int(share * ONE))
        assert np.isclose(position[0], 3 * share**2 - 2 * share**3)
        assert np.isclose(velocity[0], 6 * share - 6 * share**2)


def test_a_new_trajectory_goes_on_from_where_the_arm_should_be() -> None:
    follower = TrajectoryFollower(np.array([0.0]))
    follower.take([point(1, 1.0, 0.0)], 0)
    before = follower.at(ONE // 2)
    follower.take([point(0.7, 0.2, 0.0)], ONE // 2)
    assert np.allclose(follower.at(ONE // 2), before)


def test_points_that_are_past_are_dropped_and_a_past_trajectory_changes_nothing() -> None:
    follower = TrajectoryFollower(np.array([0.0]))
    follower.take([point(0.1, 5.0, 0.0), point(0.4, 1.0, 0.0)], round(0.2 * ONE))
    assert follower.at(round(0.3 * ONE))[0][0] < 1.0
    follower.take([point(0.1, 9.0, 0.0)], round(0.2 * ONE))
    assert follower.at(ONE)[0][0] == 1.0

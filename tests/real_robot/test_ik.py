"""Inverse kinematics follows the reference of training within the gate's limits, and stays bounded where it can't."""

from __future__ import annotations

import importlib.util
import os
import sys

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.cartesian import ControlLaw, PoseReference
from embodied_rl.real_robot.core.gate import Command, GateOutcome
from embodied_rl.real_robot.core.robot import Robot, load_robot
from embodied_rl.real_robot.ik import InverseKinematics

needs_mink = pytest.mark.skipif(
    importlib.util.find_spec("mink") is None and os.environ.get("CI") != "true", reason="mink is not installed"
)


def apart(robot: Robot, angles: np.ndarray, position: np.ndarray, rotation: np.ndarray) -> tuple[float, float]:
    """Distance (m) and angle (rad) between the tool and a pose."""
    at, turned = robot.chain.pose(angles)
    cos = (np.trace(turned.T @ rotation) - 1) / 2
    return float(np.linalg.norm(at - position)), float(np.arccos(np.clip(cos, -1, 1)))


@needs_mink
@pytest.mark.parametrize("name", ["fr3", "ur5e", "generic"])
def test_poses_are_reached(name: str) -> None:
    robot, rng = load_robot(name), np.random.default_rng(0)
    ik = InverseKinematics(robot)
    for _ in range(3):
        goal = robot.chain.pose(robot.home + rng.uniform(-0.3, 0.3, len(robot.home)))
        angles = robot.home
        for _ in range(400):
            step = ik.towards(angles, *goal, seconds=0.02)
            assert step is not None
            angles, velocities = step
            assert (np.abs(velocities) <= robot.limits.velocity * (1 + 1e-6)).all()
            assert ((angles >= robot.limits.lower - 1e-9) & (angles <= robot.limits.upper + 1e-9)).all()
        assert max(apart(robot, angles, *goal)) < 2e-3


@needs_mink
def test_a_policys_deltas_pass_the_gate_unchanged() -> None:
    robot = load_robot("fr3")
    gate, ik, now = robot.gate(), InverseKinematics(robot), 0
    gate.start(robot.home, now)
    reference, angles = PoseReference(ControlLaw(), *robot.chain.pose(robot.home)), robot.home
    outcomes, worst = [], [0.0, 0.0]
    for step in range(40):
        reference.act(
            np.array([0.4 * np.sin(step / 8), 0.4 * np.sin(step / 6), -0.2, 0, 0, 0.1 * np.sin(step / 9), -1])
        )
        for _ in range(5):
            now += gate.period_ns
            reference.advance(0.01)
            found = ik.towards(angles, reference.position, reference.rotation, 0.01)
            assert found is not None
            decision = gate.decide(Command(now, robot.limits.names, *found), now)
            assert decision.setpoint is not None
            angles = decision.setpoint.positions
            outcomes.append(decision.outcome)
            worst = np.maximum(worst, apart(robot, angles, reference.position, reference.rotation))
    assert worst[0] < 2e-3
    assert worst[1] < 0.01
    assert np.mean([outcome is GateOutcome.ALLOW for outcome in outcomes]) > 0.9


@needs_mink
def test_what_is_out_of_reach_keeps_velocities_bounded() -> None:
    robot = load_robot("fr3")
    ik, angles = InverseKinematics(robot), robot.home
    for _ in range(150):
        step = ik.towards(angles, np.array([2.0, 1.0, 1.5]), np.eye(3), 0.02)
        assert step is not None
        angles, velocities = step
        assert np.isfinite(angles).all()
        assert (np.abs(velocities) <= robot.limits.velocity * (1 + 1e-6)).all()


def test_without_mink_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mink", None)
    with pytest.raises(UserError, match=r"pip install 'embodied-rl\[ik\]'"):
        InverseKinematics(load_robot("fr3"))

"""The controller against an independent numpy version, and its rounding of rotations."""

# pyright: reportCallIssue=false
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.sim.mujoco import osc
from embodied_rl.sim.mujoco.gains import LIBERO_GAINS
from embodied_rl.sim.mujoco.lapack.torque import make_scratch, torques
from embodied_rl.types import Array


def _random(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(7, 7))
    return {
        "force": rng.normal(size=6),
        "jac": rng.normal(size=(6, 7)),
        "mass": root @ root.T + np.eye(7),
        "bias": rng.normal(size=7),
        "posture": rng.normal(size=7),
        "q": rng.normal(size=7),
        "qd": rng.normal(size=7),
    }


def _reference(force: Array, jac: Array, mass: Array, bias: Array, posture: Array, q: Array, qd: Array) -> Array:
    inverse = np.linalg.inv(mass)
    core = jac @ inverse @ jac.T
    wrench = np.concatenate([np.linalg.solve(core[:3, :3], force[:3]), np.linalg.solve(core[3:, 3:], force[3:])])
    null = np.eye(7) - inverse @ jac.T @ np.linalg.inv(core) @ jac
    return jac.T @ wrench + bias + null.T @ mass @ (10.0 * (posture - q) - 2.0 * np.sqrt(10.0) * qd)


@pytest.mark.parametrize("form", ["fast", "exact"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=50)
def test_torque_is_the_operational_space_law(form: str, seed: int) -> None:
    case, out = _random(seed), np.empty(7)
    if form == "fast":
        osc.torque_fast(LIBERO_GAINS, *case.values(), out, make_scratch())
    else:
        torques(LIBERO_GAINS, *case.values(), out, make_scratch())
    expected = _reference(**case)
    np.testing.assert_allclose(out, expected, atol=1e-6 * max(1.0, np.abs(expected).max()))


def _full_of(scratch: tuple[Any, ...], number: float) -> None:
    for part in scratch:
        if isinstance(part, tuple):
            _full_of(part, number)
        else:
            part.fill(3 if part.dtype == np.int64 else number)


@pytest.mark.parametrize("form", ["fast", "exact"])
@pytest.mark.parametrize("left", [np.nan, 1e300])
def test_what_a_call_left_in_scratch_changes_nothing(form: str, left: float) -> None:
    """And force, bias and torque may lie in it, as the kernel has them."""
    torque, case, expected = (osc.torque_fast if form == "fast" else torques), _random(7), np.empty(7)
    torque(LIBERO_GAINS, *case.values(), expected, make_scratch())
    scratch = make_scratch()
    _full_of(scratch, left)
    scratch.force[:], scratch.bias[:] = case["force"], case["bias"]
    case |= {"force": scratch.force, "bias": scratch.bias}
    torque(LIBERO_GAINS, *case.values(), scratch.torque, scratch)
    np.testing.assert_array_equal(scratch.torque, expected)


def _angle_matrix(turn: Array) -> Array:
    angle = np.linalg.norm(turn)
    x, y, z = turn / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


@given(st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=3).filter(lambda v: np.linalg.norm(v) > 1e-6))
@settings(max_examples=50)
def test_rotation_is_rodrigues_formula_in_single_precision(turn: list[float]) -> None:
    out = np.empty((3, 3))
    osc.delta_rotation(np.array(turn), out)
    np.testing.assert_allclose(out, _angle_matrix(np.array(turn)), atol=3e-7)
    off_diagonal = out[~np.eye(3, dtype=bool)]
    np.testing.assert_array_equal(off_diagonal, off_diagonal.astype(np.float32))


def test_no_turn_is_the_identity() -> None:
    out = np.empty((3, 3))
    osc.delta_rotation(np.zeros(3), out)
    np.testing.assert_array_equal(out, np.eye(3))


@pytest.mark.parametrize("axis", range(3))
def test_moment_turns_towards_the_goal(axis: int) -> None:
    goal, out = np.eye(3), np.empty(6)
    turn = np.zeros(3)
    turn[axis] = 0.1
    osc.delta_rotation(turn, goal)
    pos = np.array([0.1, 0, 0])
    osc.desired_force(LIBERO_GAINS, pos, goal, np.zeros(3), np.eye(3), np.zeros(6), out)
    expected = np.zeros(6)
    expected[0] = 150 * 0.1
    expected[3 + axis] = 150 * np.sin(0.1)  # 0.5 * sum of crosses = sin(angle) axis
    np.testing.assert_allclose(out, expected, atol=1e-4)


def test_damping_opposes_motion() -> None:
    out = np.empty(6)
    osc.desired_force(LIBERO_GAINS, np.zeros(3), np.eye(3), np.zeros(3), np.eye(3), np.arange(6.0), out)
    np.testing.assert_allclose(out, -2 * np.sqrt(150.0) * np.arange(6.0))

"""Each decision of the gate: its outcome, its reason, its set point and its time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.gate import Command, GateDecision, GateOutcome, SafetyGate
from embodied_rl.real_robot.core.limits import AxisLimits
from embodied_rl.real_robot.core.robot import load_robot
from tests.real_robot.commands import spoil, targets

FR3 = load_robot("fr3")
NAMES, HOME, TICK = FR3.limits.names, FR3.home, 10_000_000


def started() -> SafetyGate:
    gate = FR3.gate()
    gate.start(HOME, now_ns=0)
    return gate


def send(gate: SafetyGate, tick: int, positions: Any = HOME, **other: Any) -> GateDecision:
    """A well-formed command at a tick, but for what `other` says."""
    return gate.decide(
        Command(**{"stamp_ns": tick * TICK, "names": NAMES, "positions": positions} | other), tick * TICK
    )


def kinds(decision: GateDecision) -> set[str]:
    return {reason.kind for reason in decision.reasons}


def test_rest_is_allowed_and_a_far_target_rewritten() -> None:
    gate = started()
    rest = send(gate, 1)
    assert (rest.outcome, rest.reasons) == (GateOutcome.ALLOW, ())
    assert rest.setpoint is not None
    assert (rest.setpoint.positions == HOME).all()
    far = send(gate, 2, HOME + 0.1)
    assert far.outcome is GateOutcome.REWRITE
    assert "velocity" in kinds(far)
    assert far.setpoint is not None
    assert far.setpoint.stamp_ns == 2 * TICK
    assert (far.setpoint.positions > HOME).all()


@pytest.mark.parametrize(
    ("other", "kind", "detail"),
    [
        ({"names": NAMES[::-1]}, "order", "expected fr3_joint1"),
        ({"names": NAMES[:6]}, "names", "got fr3_joint1"),
        ({"names": None}, "names", "no list"),
        ({"positions": HOME[:6]}, "shape", "7 numbers"),
        ({"positions": HOME * np.nan}, "not_finite", "fr3_joint1"),
        ({"positions": ["0"] * 7}, "shape", "numbers"),
        ({"positions": [True] * 7}, "shape", "numbers"),
        ({"velocities": np.full(7, np.inf)}, "not_finite", "velocities"),
        ({"stamp_ns": -150_000_000}, "stamp", "not newer"),
        ({"stamp_ns": 200_000_000}, "stamp", "-0.180 s old"),
        ({"stamp_ns": 0.5}, "stamp", "0.5"),
        ({"stamp_ns": True}, "stamp", "True"),
    ],
)
def test_void_commands_are_blocked_and_brake(other: dict[str, Any], kind: str, detail: str) -> None:
    gate = started()
    send(gate, 1, HOME + 0.1)
    decision = send(gate, 2, **other)
    assert decision.outcome is GateOutcome.BLOCK
    assert [reason.kind for reason in decision.reasons] == [kind]
    assert detail in decision.reasons[0].detail
    assert decision.setpoint is not None
    path = [send(gate, tick, **other).setpoint for tick in range(3, 40)]
    assert path[-1] is not None
    assert gate.at_rest
    assert not path[-1].velocities.any()
    json.dumps(decision.record(), allow_nan=False)


@pytest.mark.parametrize(
    ("positions", "kind"),
    [(FR3.limits.upper + 0.1, "position"), (HOME + np.eye(7)[1], "workspace"), (np.full(7, 1e300), "position")],
)
def test_what_lies_outside_is_approached_and_named(positions: np.ndarray, kind: str) -> None:
    gate, found = started(), set()
    for tick in range(1, 300):
        decision = send(gate, tick, positions)
        found |= kinds(decision)
        assert decision.setpoint is not None
        assert FR3.workspace.inside(decision.setpoint.positions)
    assert kind in found
    assert decision.setpoint is not None
    assert np.abs(decision.setpoint.velocities).max() < 0.05


def test_one_set_point_per_tick() -> None:
    gate = started()
    send(gate, 1, HOME + 0.1)
    again = gate.decide(Command(TICK + 1, NAMES, HOME + 0.2), TICK + 1)
    assert (again.outcome, again.setpoint, kinds(again)) == (GateOutcome.BLOCK, None, {"rate"})
    assert gate.hold(TICK + 2) is None
    earlier = gate.decide(Command(TICK, NAMES, HOME), -5 * TICK)
    assert kinds(earlier) == {"rate"}
    assert send(gate, 2, HOME + 0.1).setpoint is not None


def test_missed_ticks_are_braked_through() -> None:
    late, held = started(), started()
    for tick in range(1, 20):
        send(late, tick, HOME + 0.1)
        send(held, tick, HOME + 0.1)
    for tick in range(20, 25):
        assert held.hold(tick * TICK) is not None
    decision = send(late, 25, HOME + 0.1)
    expected = send(held, 25, HOME + 0.1)
    assert kinds(decision) == kinds(expected) | {"late"}
    assert decision.setpoint is not None
    assert expected.setpoint is not None
    np.testing.assert_allclose(decision.setpoint.positions, expected.setpoint.positions, atol=1e-12)
    assert send(late, 10**9, HOME + 0.1).setpoint is not None  # an endless pause costs no time


def test_a_replayed_command_is_void() -> None:
    gate = started()
    command = Command(TICK, NAMES, HOME)
    assert gate.decide(command, TICK).outcome is GateOutcome.ALLOW
    assert kinds(gate.decide(command, 2 * TICK)) == {"stamp"}


def test_the_stop_path_is_what_hold_does() -> None:
    gate = started()
    for tick in range(1, 15):
        send(gate, tick, HOME + 0.1)
    path = gate.stop_path()
    assert len(path) > 3
    for tick, point in enumerate(path, 15):
        held = gate.hold(tick * TICK)
        assert held is not None
        assert held.stamp_ns == point.stamp_ns
        np.testing.assert_allclose(held.positions, point.positions, atol=1e-12)
    assert gate.at_rest
    assert gate.stop_path() == []


@pytest.mark.parametrize("place", [FR3.limits.upper + 0.01, HOME * np.nan, HOME[:3], HOME + 1.5 * np.eye(7)[1]])
def test_an_arm_outside_its_limits_does_not_start(place: np.ndarray) -> None:
    with pytest.raises(UserError, match=r"by hand|check the joint states"):
        FR3.gate().start(place, 0)


def test_nothing_is_decided_before_the_start() -> None:
    with pytest.raises(UserError, match="start"):
        send(FR3.gate(), 1)


def test_the_gripper_has_a_gate_too() -> None:
    gate = FR3.gripper_gate()
    assert gate is not None
    gate.start(np.array([0.04]), 0)
    reached = [gate.decide(Command(t * TICK, ("fr3_finger_width",), [0.2]), t * TICK) for t in range(1, 100)]
    widths = [decision.setpoint.positions[0] for decision in reached if decision.setpoint is not None]
    assert np.diff(widths).max() <= 0.1 * 0.01
    assert 0.0799 < widths[-1] <= 0.08


def test_a_mixed_stream_through_the_whole_gate() -> None:
    """As the million, for one arm and with times: what is emitted keeps the limits between every two ticks."""
    rng, gate = np.random.default_rng(5), started()
    emitted, tick = [HOME, HOME], 0
    for count in range(1500):
        step = int(rng.choice([0, 1, 1, 1, 1, 1, 1, 1, 1, 2]))
        tick += step
        held = (FR3.limits.upper if count // 50 % 2 else HOME)[None]
        wanted = targets(rng, FR3.limits, 0.01, held, (emitted[-1][None], emitted[-2][None]))[0]
        command = spoil(rng, NAMES, wanted, tick * TICK) if rng.random() < 0.1 else Command(tick * TICK, NAMES, wanted)
        decision = gate.decide(command, tick * TICK + int(rng.integers(-TICK // 2 + 1, TICK // 2)))
        assert (decision.setpoint is None) == (step == 0 and count > 0) or tick == 0
        if decision.setpoint is not None:
            speed = np.abs(decision.setpoint.positions - emitted[-1]) / (0.01 * step)
            assert (speed <= FR3.limits.velocity).all()
            assert FR3.workspace.inside(decision.setpoint.positions)
            emitted.append(decision.setpoint.positions)
    assert len(emitted) > 1000


@pytest.mark.parametrize(
    "figures",
    [
        {"velocity": [0.0]},
        {"jerk": [np.nan]},
        {"lower": [1.0]},
        {"names": ("a", "a")},
        {"names": ()},
        {"acceleration": [1.0, 2.0]},
    ],
)
def test_limits_must_make_sense(figures: dict[str, Any]) -> None:
    good: dict[str, Any] = {"names": ("a",), "lower": [0.0], "upper": [1.0]}
    good |= {"velocity": [1.0], "acceleration": [1.0], "jerk": [1.0]}
    with pytest.raises(UserError):
        AxisLimits(**(good | figures))

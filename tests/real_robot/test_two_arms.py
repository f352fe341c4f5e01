"""Two arms under one gate: no command brings either beyond a limit, or both nearer than their file says."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.gate import Command, GateDecision, GateOutcome
from embodied_rl.real_robot.core.robot import ROBOTS, load_robot
from embodied_rl.real_robot.core.two_arms import TwoArmGate, TwoArmRobot, load_two_arms
from tests.real_robot.commands import spoil, targets
from tests.real_robot.two_arms_model import TwoArmModel

ALOHA = load_two_arms("aloha")
NAMES, HOME = ALOHA.limits.names, ALOHA.home
FILE = yaml.safe_load((ROBOTS / "aloha.yaml").read_text())
RATES = (20.0, 37.0, 60.0)
BETWEEN = np.linspace(0, 1, 3, endpoint=False)
NEAR = np.array([0.0, 0.1, 0.3, 0.0, -0.25, 0.0] * 2)
"""Hands in the middle of the table, one in the other: a pose that no gate may lead to."""
START = HOME + 0.4 * (NEAR - HOME)
DOWN = START + np.eye(12)[7] * 0.6 + np.eye(12)[8] * 0.75
"""The right arm's fingertips below the table."""
PHASES = (0, 1, 1, 4, 4, 2, 3, 5)
"""What `run` asks for, one after the other."""


def at_rate(rate_hz: float) -> TwoArmRobot:
    left, right = (replace(arm, rate_hz=rate_hz) for arm in ALOHA.arms)
    return replace(ALOHA, arms=(left, right))


def wanted_at(rng: np.random.Generator, phase: int, history: deque[np.ndarray], tick_s: float) -> np.ndarray:
    """What is asked: rest, one arm into the table, both into each other, anywhere at once, extremes."""
    here, limits = history[-1], ALOHA.limits
    goal = {1: DOWN, 2: NEAR, 3: NEAR + rng.normal(size=12) * 0.3, 4: START}.get(phase, START)
    if phase == 0:
        return START
    if phase == 5:
        last = (here[None], history[-2][None])
        return targets(rng, limits, tick_s, goal[None], last)[0]
    return np.clip(here + np.clip(goal - here, -1, 1) * rng.uniform(0.2, 0.4), limits.lower, limits.upper)


@dataclass
class Worst:
    """Largest share of each limit, the least distance, and the furthest that a tool was outside: of set points, the
    ways between them and the stops, by MuJoCo and by differences alone."""

    shares: dict[str, float] = field(default_factory=dict)
    distance: float = 9.0
    outside: float = -9.0
    outcomes: set[str] = field(default_factory=set)
    reasons: set[str] = field(default_factory=set)
    stops: int = 0

    @property
    def kept(self) -> bool:
        return max(self.shares.values()) <= 1 and self.distance >= ALOHA.distance and self.outside <= 0


MODEL = TwoArmModel(FILE)


def run(gate: TwoArmGate, seconds: float, seed: int) -> Worst:
    """Random commands at random moments, up to the first that leads where none may: what came of them."""
    rng, limits = np.random.default_rng(seed), ALOHA.limits
    tick_s, worst = gate.period_ns / 1e9, Worst()
    gate.start(START, 0)
    history, tick = deque([START] * 4, maxlen=4), 0
    half = (limits.upper - limits.lower) / 2
    while tick * tick_s < seconds and (not worst.shares or worst.kept):
        step = int(rng.choice([1, 2, 4], p=[0.9, 0.07, 0.03]))
        tick += step
        stamp, phase = tick * gate.period_ns, PHASES[int(tick * tick_s / seconds * len(PHASES)) % len(PHASES)]
        missed = [one.positions for one in gate.stop_path()][: step - 1]  # ticks that nobody decided
        history.extend([*missed, *[(missed or history)[-1]] * (step - 1 - len(missed))])
        command = Command(stamp, NAMES, wanted_at(rng, phase, history, tick_s))
        if phase and rng.random() < 0.02:
            command = spoil(rng, NAMES, history[-1], stamp)
        decision = gate.decide(command, stamp + int(rng.integers(-gate.period_ns // 2 + 1, gate.period_ns // 2)))
        assert decision.setpoint is not None
        worst.outcomes.add(str(decision.outcome))
        worst.reasons |= {reason.kind for reason in decision.reasons}
        history.append(decision.setpoint.positions)
        _look(worst, history, tick_s, half)
        if rng.random() < 0.1:
            _look_at_stop(worst, gate)
    return worst


def _look(worst: Worst, history: deque[np.ndarray], tick_s: float, half: np.ndarray) -> None:
    limits, now = ALOHA.limits, history[-1]
    assert np.isfinite(now).all()
    shares = {"position": (now - limits.lower - half) / half}
    for order, name in enumerate(("velocity", "acceleration", "jerk"), 1):
        difference = np.diff(np.stack(list(history)[-order - 1 :]), order, axis=0)[0]
        shares[name] = difference / tick_s**order / getattr(limits, name)
    for name, share in shares.items():
        worst.shares[name] = max(worst.shares.get(name, 0.0), float(np.abs(share).max()))
    for share in BETWEEN:
        worst.distance = min(worst.distance, MODEL.distance(history[-2] + share * (now - history[-2])))
    worst.outside = max(worst.outside, MODEL.outside(now))


def _look_at_stop(worst: Worst, gate: TwoArmGate) -> None:
    path = [one.positions for one in gate.stop_path()]
    worst.stops += len(path) > 2
    for position in path:
        worst.distance = min(worst.distance, MODEL.distance(position))
        worst.outside = max(worst.outside, MODEL.outside(position))
    assert not path or np.abs(gate.stop_path()[-1].velocities).max() < 1e-9


@pytest.mark.parametrize("rate_hz", RATES)
def test_no_command_leads_beyond_a_limit_or_the_arms_together(rate_hz: float) -> None:
    found = run(TwoArmGate(at_rate(rate_hz)), 4.0, seed=round(rate_hz))
    assert found.kept, found
    assert {"allow", "rewrite", "block", "hold"} <= found.outcomes
    assert {"workspace", "distance", "velocity"} <= found.reasons
    assert found.stops > 0
    assert found.distance < ALOHA.distance + 0.1, "the test brings them together"
    assert found.outside > -0.05


class NoStop(TwoArmGate):
    """Looks at the next set point alone: the arms may be too fast to stop."""

    def _ahead(self) -> np.ndarray:
        return self._running().position


class NoDistance(TwoArmGate):
    """Keeps each arm's limits, as two gates of one arm would."""

    def __init__(self, robot: TwoArmRobot) -> None:
        super().__init__(replace(robot, distance=-1.0))


class OneWorkspace(TwoArmGate):
    """Looks at the first arm's workspace only."""

    def __init__(self, robot: TwoArmRobot) -> None:
        left, right = robot.arms
        box = replace(right.workspace, lower=np.full(3, -9.0), upper=np.full(3, 9.0))
        super().__init__(replace(robot, arms=(left, replace(right, workspace=box))))


@pytest.mark.parametrize("broken", [NoStop, NoDistance, OneWorkspace])
def test_a_gate_that_lacks_a_check_is_found(broken: type[TwoArmGate]) -> None:
    assert not run(broken(at_rate(37.0)), 4.0, seed=37).kept


def driven(gate: TwoArmGate, target: np.ndarray, ticks: int) -> list[GateDecision]:
    """Both arms led to a pose in small steps."""
    start, found = gate.positions, list[GateDecision]()
    for tick in range(1, ticks + 1):
        now = tick * gate.period_ns
        wanted = start + min(tick / ticks, 1.0) * (target - start)
        found.append(gate.decide(Command(now, NAMES, wanted), now))
    return found


def test_arms_that_are_led_together_stop_and_the_reason_names_both() -> None:
    gate = ALOHA.gate()
    gate.start(HOME, 0)
    found = driven(gate, NEAR, 200)
    held = next(one for one in found if one.outcome is GateOutcome.HOLD)
    (reason,) = held.reasons
    assert reason.kind == "distance"
    assert re.fullmatch(r"left \w+ and right \w+ -?0\.\d+ m apart, at least 0\.05", reason.detail)
    assert ALOHA.distance <= ALOHA.clearance.at(gate.positions) < ALOHA.distance + 0.15
    assert gate.at_rest


def test_one_arms_limit_holds_both_and_the_reason_names_it() -> None:
    for name, joint in (("left", 1), ("right", 7)):
        gate = ALOHA.gate()
        gate.start(HOME, 0)
        for tick in range(1, 15):
            gate.decide(Command(tick * gate.period_ns, NAMES, HOME + 0.004 * tick), tick * gate.period_ns)
        moving = gate.positions
        wanted = moving.copy()
        wanted[joint] = ALOHA.limits.upper[joint] + 0.01
        decision = gate.decide(Command(15 * gate.period_ns, NAMES, wanted), 15 * gate.period_ns)
        assert decision.outcome is GateOutcome.HOLD
        assert [(one.kind, one.detail) for one in decision.reasons] == [("position", f"{name} {NAMES[joint]}")]
        for tick in range(16, 60):
            gate.hold(tick * gate.period_ns)
        assert gate.at_rest
        assert np.abs(gate.positions - moving).max() < 0.1, "neither goes on alone"


def test_a_tool_that_leaves_its_workspace_holds_both() -> None:
    gate = ALOHA.gate()
    gate.start(HOME, 0)
    down = HOME.copy()
    down[7] += 1.0  # the right shoulder, forwards: into the table
    found = [one for decision in driven(gate, down, 120) for one in decision.reasons]
    reasons = {(one.kind, one.detail.partition(" at ")[0]) for one in found}
    assert ("workspace", "right: vx300s_right/fingertips") in reasons
    assert ALOHA.arms[1].workspace.inside(ALOHA.of_each(gate.positions)[1])


def test_what_is_asked_too_fast_is_slowed_and_reached_by_both() -> None:
    gate = ALOHA.gate()
    gate.start(HOME, 0)
    target = HOME + np.array([0.2, -0.1, 0.1, 0.3, 0.1, 0.4, -0.2, -0.1, 0.1, -0.3, 0.1, -0.4])
    for tick in range(1, 100):
        decision = gate.decide(Command(tick * gate.period_ns, NAMES, target), tick * gate.period_ns)
        assert decision.outcome is not GateOutcome.HOLD
        if tick == 1:
            assert decision.reasons[0].detail.startswith(f"left {NAMES[0]}, ")
    np.testing.assert_allclose(gate.positions, target, atol=1e-9)


def test_arms_too_near_to_each_other_do_not_start() -> None:
    with pytest.raises(UserError, match=r"can't start where it is: distance \(left \w+ and right \w+ .* m apart"):
        ALOHA.gate().start(NEAR, 0)


def test_a_stop_from_where_the_arms_are_measured_stays_inside_or_is_given_up() -> None:
    gate = ALOHA.gate()
    gate.start(HOME, 0)
    slow, fast = np.full(12, 0.1), np.sign(NEAR - HOME) * ALOHA.limits.velocity
    assert gate.brake_from(HOME, slow)
    assert not gate.at_rest
    way = HOME + np.linspace(0, 1, 101)[:, None] * (NEAR - HOME)
    close = next(pose for pose in way[::-1] if not ALOHA.out_of_place(pose[None]))
    assert gate.brake_from(close, fast)
    assert gate.at_rest, "its stop would bring the arms too near"
    assert not gate.brake_from(NEAR, np.zeros(12))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.pop("distance"), "distance: missing; give m between the arms"),
        (lambda file: file.update(distance=50), "distance: 50 lies beyond 0.005 to 1"),
        (lambda file: file.update(distance=0.6), "distance: not kept at home: left hand and right hand 0.452 m apart"),
        (lambda file: file["arms"].pop("right"), "arms: left: give two arms"),
        (lambda file: file["arms"]["left"].pop("capsules"), "arms.left.capsules: missing"),
        (lambda file: file["arms"]["left"].pop("base"), "arms.left.base: missing"),
        (lambda file: file["arms"]["left"].update(extra=1), "arms.left.extra: unknown key"),
        (lambda file: file["arms"]["left"]["base"].update(extra=1), "arms.left.base.extra: unknown key"),
        (lambda file: file["arms"]["right"].update(home=[3.2] * 6), "arms.right.home: outside the joints' ranges"),
        (
            lambda file: file["arms"]["left"]["capsules"].pop("wrist"),
            "arms.left.capsules.vx300s_left/wrist_angle: no capsule is on it",
        ),
        (
            lambda file: file["arms"]["left"]["capsules"]["wrist"].update(joint="wrist"),
            "arms.left.capsules.wrist.joint: 'wrist' is none of base, vx300s_left/waist",
        ),
        (
            lambda file: file["arms"]["left"]["capsules"]["wrist"].update(radius=37),
            "arms.left.capsules.wrist.radius: 37 lies beyond",
        ),
        (lambda file: file["arms"].update(left=file["arms"]["right"]), "arms: both have a joint vx300s_right/"),
    ],
)
def test_a_file_with_a_slip_is_refused_by_its_key(change: Any, message: str, tmp_path: Path) -> None:
    content, path = yaml.safe_load((ROBOTS / "aloha.yaml").read_text()), tmp_path / "arms.yaml"
    change(content)
    path.write_text(yaml.dump(content, sort_keys=False, Dumper=NoAliases))
    with pytest.raises(UserError, match=re.escape(f"arms.yaml: {message}")) as caught:
        load_two_arms(str(path))
    assert "\n" not in str(caught.value)


class NoAliases(yaml.SafeDumper):
    """Writes a value that stands twice twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def test_a_file_of_the_other_kind_is_refused() -> None:
    with pytest.raises(UserError, match=r"aloha\.yaml: arms: two arms, where a robot of one is needed"):
        load_robot("aloha")
    with pytest.raises(UserError, match=r"fr3\.yaml: arms: missing: a robot of two arms is needed"):
        load_two_arms("fr3")

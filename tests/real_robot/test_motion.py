"""No command, however bad, moves a set point beyond a limit; checked by differences of the positions alone."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot.core.gate import Command, Reason, read_command
from embodied_rl.real_robot.core.motion import Limit, Motion, State
from embodied_rl.real_robot.core.robot import Robot, load_robot
from tests.real_robot.commands import spoil, targets

LIMITS = ["position", "velocity", "acceleration", "jerk", "box"]


@dataclass(frozen=True)
class Run:
    """Largest share of each limit that was used; commands that would have broken each; commands passed on."""

    worst: dict[str, float]
    seen: dict[Limit, int]
    allowed: int


class Checker:
    """Largest share of each limit that positions [B, n] reached, by divided differences; no code of the gate's."""

    def __init__(self, robot: Robot, tick_s: float, start: np.ndarray) -> None:
        self.robot, self.tick_s = robot, tick_s
        self.history = deque([start] * 4, maxlen=4)
        self.worst: dict[str, float] = dict.fromkeys(LIMITS, 0.0)

    def see(self, position: np.ndarray) -> None:
        assert np.isfinite(position).all()
        self.history.append(position)
        limits, box = self.robot.limits, self.robot.workspace
        tool = box.chain.position(position)
        half = (limits.upper - limits.lower) / 2
        self._note("position", (position - limits.lower - half) / half)
        self._note("box", (tool - (box.lower + box.upper) / 2) / ((box.upper - box.lower) / 2))
        for order, name in enumerate(("velocity", "acceleration", "jerk"), 1):
            difference = np.diff(np.stack(list(self.history)[-order - 1 :]), order, axis=0)[0]
            self._note(name, difference / self.tick_s**order / getattr(limits, name))

    def _note(self, name: str, share: np.ndarray) -> None:
        self.worst[name] = max(self.worst[name], float(np.abs(share).max()))


def places(robot: Robot, count: int, rng: np.random.Generator) -> np.ndarray:
    """Poses within the limits whose tool is in the workspace [count, n]."""
    limits, found = robot.limits, [robot.home[None]]
    while sum(map(len, found)) < count:
        some = rng.uniform(limits.lower, limits.upper, (4000, len(limits.names)))
        found.append(some[robot.workspace.inside(some)])
    return np.concatenate(found)[:count]


def run(robot: Robot, motion: Motion, arms: int, ticks: int, seed: int = 0) -> Run:
    """Send `arms` x `ticks` commands, a twentieth of them malformed; a tenth of the others pass the form check too."""
    rng = np.random.default_rng(seed)
    names, n = robot.limits.names, len(robot.limits.names)
    start = places(robot, arms, rng)
    state = motion.rest(start)
    checker = Checker(robot, motion.period_s, state.position)
    previous, held, allowed, seen = state.position, state.position, 0, dict.fromkeys(Limit, 0)
    for tick in range(ticks):
        if tick % 40 == 0:
            held = np.concatenate([places(robot, arms // 2, rng), rng.uniform(-4, 4, (arms - arms // 2, n))])
        wanted = targets(rng, robot.limits, motion.period_s, held, (state.position, checker.history[-2]))
        smooth = arms // 10
        wanted[:smooth] = start[:smooth] + 0.05 * (1 - np.cos(0.02 * tick))
        for arm in range(arms):
            bad = rng.random() < 0.05
            if not bad and tick % 10:
                continue  # a well-formed command's numbers go to the kernel as they are
            command = spoil(rng, names, wanted[arm], tick) if bad else Command(tick, names, wanted[arm])
            read = read_command(command, names)
            assert isinstance(read, Reason) == bad
            wanted[arm] = np.nan if isinstance(read, Reason) else read[0]
        with np.errstate(invalid="ignore"):
            state, broken = motion.step(state, wanted, np.nan_to_num(motion.implied_velocity(previous, wanted)))
        previous = np.where(np.isfinite(wanted), wanted, state.position)
        checker.see(state.position)
        for bit in Limit:
            seen[bit] += int((broken & bit).astype(bool).any(1).sum())
        allowed += int((broken == 0).all(1).sum())
    return Run(checker.worst, seen, allowed)


def test_a_stream_of_everything_keeps_every_limit() -> None:
    """A hundredth of the million, so that it runs in a second while one works."""
    for name in ("fr3", "ur5e"):
        robot = load_robot(name)
        found = run(robot, Motion(robot.limits, 1 / robot.rate_hz, robot.workspace.inside), arms=100, ticks=100)
        assert max(found.worst.values()) <= 1
        assert min(found.worst.values()) > 0.5, "the test reaches the limits"
        assert min(found.seen.values()) > 0
        assert found.allowed > 50


class NoBraking(Motion):
    """Takes commands from which the arm can't stop in time."""

    def _broken(self, *arguments: Any) -> np.ndarray:
        return super()._broken(*arguments) & ~np.uint8(Limit.BRAKING)


class NoStopPath(Motion):
    """Looks whether the set point is in the workspace, not whether the stop from there is."""

    def _stops_inside(self, state: State) -> np.ndarray:
        assert self._inside is not None
        return self._inside(state.position)


def broken_motion(robot: Robot, variant: str) -> Motion:
    limits, period_s, inside = robot.limits, 1 / robot.rate_hz, robot.workspace.inside
    if variant in ("velocity", "acceleration", "jerk"):
        return Motion(replace(limits, **{variant: getattr(limits, variant) * 1.01}), period_s, inside)
    if variant == "position":
        return Motion(replace(limits, upper=limits.upper + 0.01), period_s, inside)
    return NoStopPath(limits, period_s, inside) if variant == "stop path" else Motion(limits, period_s)


@pytest.mark.parametrize("variant", ["position", "velocity", "acceleration", "jerk", "box", "stop path"])
def test_a_gate_without_a_limit_is_found(variant: str) -> None:
    robot = load_robot("fr3")
    assert max(run(robot, broken_motion(robot, variant), arms=100, ticks=60).worst.values()) > 1


@pytest.mark.parametrize(("kind", "kept"), [(Motion, True), (NoBraking, False)])
def test_a_steady_stream_at_a_limit_is_braked_in_time(kind: type[Motion], kept: bool) -> None:
    """Each command of the stream is within all limits until the last; what comes after it must still be possible."""
    robot = load_robot("fr3")
    motion = kind(robot.limits, 0.01)
    state, previous, checker = motion.rest(robot.home[None]), robot.home[None], Checker(robot, 0.01, robot.home[None])
    for tick in range(400):
        speed = robot.limits.velocity * min(tick / 100, 0.9)
        wanted = np.minimum(previous + speed * 0.01, robot.limits.upper + 0.1)
        state, _ = motion.step(state, wanted, motion.implied_velocity(previous, wanted))
        checker.see(state.position)
        previous = wanted
    assert (checker.worst["position"] <= 1) == kept


@pytest.mark.parametrize("rate_hz", [20, 100, 1000])
def test_a_held_target_is_reached_exactly_and_without_overshoot(rate_hz: int) -> None:
    robot = load_robot("fr3")
    motion, start = Motion(robot.limits, 1 / rate_hz), robot.home[None]
    target = start + np.array([0.5, -0.3, 0.2, 0.4, -0.02, 0.1, -0.6])
    state, previous = motion.rest(start), start
    for _ in range(2 * rate_hz):
        state, broken = motion.step(state, target, motion.implied_velocity(previous, target))
        previous = target
        assert ((state.position - target) * np.sign(target - start) < 1e-9).all()
    assert (state.position == target).all()
    assert not broken.any()
    assert not state.x.any()


def test_a_smooth_stream_passes_unchanged_and_is_caught_up_with_after_a_jump() -> None:
    robot = load_robot("fr3")
    motion = Motion(robot.limits, 0.01)
    state, previous = motion.rest(robot.home[None]), robot.home[None]
    for tick in range(1, 500):
        jump = 0.05 if tick > 100 else 0.0
        wanted = robot.home[None] + 0.1 * (1 - np.cos(0.02 * tick)) + jump
        state, broken = motion.step(state, wanted, motion.implied_velocity(previous, wanted))
        previous = wanted
        assert not broken.any() or 100 < tick < 160
        assert bool(broken.any()) == bool((state.position != wanted).any())


def test_a_stop_from_any_state_keeps_the_limits_and_ends() -> None:
    robot = load_robot("fr3")
    motion = Motion(robot.limits, 0.01, robot.workspace.inside)
    rng = np.random.default_rng(3)
    start = places(robot, 200, rng)
    state, checker = motion.rest(start), Checker(robot, 0.01, start)
    for _ in range(40):
        target = targets(rng, robot.limits, 0.01, start[::-1], (state.position, checker.history[-2]))
        state, _ = motion.step(state, target, np.zeros_like(target))
        checker.see(state.position)
    planned = motion.stop_path(state)
    for position in planned:
        state = motion.brake(state)
        np.testing.assert_allclose(state.position, position, atol=1e-12)
        checker.see(state.position)
    assert max(checker.worst.values()) <= 1
    assert not state.x.any()
    assert not state.y.any()
    assert (motion.brake(state).position == state.position).all()


def test_a_million_commands() -> None:
    """0 set points beyond a limit, NaN or the box. All through the gate's kernel; through the form check those that are
    malformed, all of which it finds, and a tenth of the others."""
    robot = load_robot("fr3")
    motion = Motion(robot.limits, 1 / robot.rate_hz, robot.workspace.inside)
    found = run(robot, motion, arms=2000, ticks=500, seed=1)
    assert max(found.worst.values()) <= 1
    assert min(found.seen.values()) > 1000
    assert found.allowed > 5000

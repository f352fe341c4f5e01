"""The nearest motion that keeps every limit, now and through a stop at any later moment.

A tick moves each axis so that backward differences of the positions keep the limits of velocity, acceleration and
jerk, and so that the stop from the new state (`braking.plan_stop`) stays within the position limits and, for the whole
path of all axes, inside the workspace. Where the command fits, it is taken as it is. Where it does not, the axis does
what brings the end of its stop nearest to the command: it goes as fast as it may and arrives without overshoot.

Why it always can: the stop from the present state has been checked, and its first tick leads to a state whose stop is
the rest of it. What is nearer to the command is taken only after the same checks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntFlag

import numpy as np

from embodied_rl.real_robot.core.braking import plan_stop, ramp_length
from embodied_rl.real_robot.core.limits import AxisLimits

MARGIN = 1e-6
"""Share by which limits are kept from inside, and m inside the workspace: more than rounding can be."""
_SEARCH_STEPS = 7
_REST = 1e-9
_BLENDS = (0.5, 0.25, 0.125)

Inside = Callable[[np.ndarray], np.ndarray]
"""Whether positions [..., n] lie in the workspace: bool [...]."""


class Limit(IntFlag):
    """Which limits a command would have broken."""

    POSITION = 1
    VELOCITY = 2
    ACCELERATION = 4
    JERK = 8
    BRAKING = 16
    """A stop from there would pass a position limit, or a target at which the command means to rest."""
    WORKSPACE = 32
    NOT_FINITE = 64


@dataclass(frozen=True)
class State:
    """Set point of B arms: positions [B, n], their last step and its last change in ticks and jerk limits."""

    position: np.ndarray
    x: np.ndarray
    y: np.ndarray


class Motion:
    """The kernel of the gate, for B independent arms at once.

    Args:
        limits: The limits of the n axes.
        period_s: Length of a tick, s.
        inside: The workspace; None means everywhere.
    """

    def __init__(self, limits: AxisLimits, period_s: float, inside: Inside | None = None) -> None:
        self.limits, self.period_s, self._inside = limits, period_s, inside
        self._unit = limits.jerk * period_s**3 * (1 - MARGIN)
        self._max_x = limits.velocity * period_s / self._unit * (1 - MARGIN)
        self._max_y = limits.acceleration * period_s**2 / self._unit * (1 - MARGIN)
        span = MARGIN * (limits.upper - limits.lower)
        self._lower, self._upper = limits.lower + span, limits.upper - span

    def rest(self, position: np.ndarray) -> State:
        """Arms at rest at `position` [B, n]."""
        return State(position.astype(np.float64), np.zeros(position.shape), np.zeros(position.shape))

    def brakes_from(self, position: np.ndarray, velocity: np.ndarray) -> State:
        """Arms at `position` [B, n] that move at `velocity` [B, n], per s, about to stop: as measured, not as asked.

        Velocities beyond the limits count as the limits; an arm whose stop would leave ranges or workspace is at rest.
        """
        x = self._step_of(np.where(np.isfinite(velocity), velocity, 0.0))
        state = State(position.astype(np.float64), x, np.zeros(position.shape))
        end = position + plan_stop(x, state.y, self._max_y).distance(self._max_y) * self._unit
        fits = ((end >= self._lower) & (end <= self._upper)).all(axis=1, keepdims=True)
        if self._inside is not None:
            fits &= self._stops_inside(state)[:, None]
        return replace(state, x=np.where(fits, x, 0.0))

    def allows_rest(self, position: np.ndarray) -> np.ndarray:
        """Which limits rest at `position` [B, n] would break: Limit bits, uint8 [B, n]."""
        broken = np.where((position >= self._lower) & (position <= self._upper), 0, Limit.POSITION)
        if self._inside is not None:
            broken |= np.where(self._inside(position), 0, Limit.WORKSPACE)[:, None]
        return np.where(np.isfinite(position), broken, Limit.NOT_FINITE).astype(np.uint8)

    def brake(self, state: State) -> State:
        """The next tick of the stop."""
        return self._next(state, plan_stop(state.x, state.y, self._max_y).first(self._max_y))

    def stop_path(self, state: State) -> np.ndarray:
        """Set points of the stop from `state`, tick by tick until all rest: [ticks, B, n]."""
        stop = plan_stop(state.x, state.y, self._max_y)
        moved, _, _ = stop.path(self._max_y, stop.ticks())
        return state.position + moved * self._unit

    def velocity(self, state: State) -> np.ndarray:
        """Velocities at the set point [B, n], per s: of the last step, half a tick further."""
        return np.clip(
            (state.x + state.y / 2) * self._unit / self.period_s, -self.limits.velocity, self.limits.velocity
        )

    def implied_velocity(self, previous: np.ndarray, target: np.ndarray) -> np.ndarray:
        """The velocity that two commands in a row describe [B, n]; 0 where it is beyond the limit: a jump."""
        with np.errstate(over="ignore", invalid="ignore"):
            velocity = (target - previous) / self.period_s
        return np.where(np.abs(velocity) <= self.limits.velocity, velocity, 0.0)

    def step(self, state: State, target: np.ndarray, velocity: np.ndarray) -> tuple[State, np.ndarray]:
        """Move one tick towards a command.

        Args:
            state: Where the arms are and how they move.
            target: Commanded positions [B, n]; arms with a number that is not finite brake.
            velocity: Velocities wanted at the target [B, n], per s; `implied_velocity` where nobody says.

        Returns:
            The next state, and which limits the commands would have broken: Limit bits, uint8 [B, n].
        """
        finite = np.all(np.isfinite(target) & np.isfinite(velocity), axis=1)
        wanted = np.where(finite[:, None], target, state.position)
        stop = plan_stop(state.x, state.y, self._max_y)
        first = stop.first(self._max_y)
        low, high = self._range(state, first)
        with np.errstate(over="ignore", invalid="ignore"):
            exact = (wanted - state.position) / self._unit - state.x
            broken = self._broken(state, wanted, exact, low, high)
            onward = self._step_of(np.where(finite[:, None], velocity, 0.0))
            broken = np.where((broken == 0) & ~self._goes_on(state.x + exact, exact, onward), Limit.BRAKING, broken)
        y = np.where(broken == 0, exact, first)
        rows = (broken != 0) & finite[:, None]
        if rows.any():
            goal, end = self._goal(wanted, onward), stop.distance(self._max_y)
            y[rows] = self._search(state, (first, low, high), (goal - state.position) / self._unit, end, rows)
        broken[~finite], y[~finite] = Limit.NOT_FINITE, first[~finite]
        following = self._next(state, y)
        # What is passed on is the command itself, not a sum that rounds to it.
        following = replace(following, position=np.where(broken == 0, wanted, following.position))
        if self._inside is None:
            return following, broken
        return self._keep_inside(state, following, y, first, broken)

    def _next(self, state: State, y: np.ndarray) -> State:
        x = state.x + y
        rests = (np.abs(x) < _REST) & (np.abs(y) < _REST)  # what rounding leaves of a stop
        x, y = np.where(rests, 0, x), np.where(rests, 0, y)
        return State(state.position + x * self._unit, x, y)

    def _range(self, state: State, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Accelerations that keep jerk, acceleration and velocity, now and while the acceleration ramps to 0."""

        def most(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            left = self._max_x - x
            speed = np.where(left > 0, ramp_length(np.maximum(left, 0)) - 1, left)
            return np.minimum(np.minimum(y + 1, self._max_y), speed)

        return np.minimum(-most(-state.x, -state.y), first), np.maximum(most(state.x, state.y), first)

    def _broken(self, state: State, wanted: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Limit bits of commands that need the accelerations `y`."""
        broken = np.where((wanted < self._lower) | (wanted > self._upper), Limit.POSITION, 0)
        broken |= np.where(np.abs(y - state.y) > 1, Limit.JERK, 0)
        broken |= np.where(np.abs(y) > self._max_y, Limit.ACCELERATION, 0)
        broken |= np.where(np.abs(state.x + y) > self._max_x, Limit.VELOCITY, 0)
        broken |= np.where((broken == 0) & ((y < low) | (y > high)), Limit.VELOCITY, 0)
        safe_y = np.where(broken == 0, y, 0.0)
        x = state.x + safe_y
        end = wanted + plan_stop(x, safe_y, self._max_y).distance(self._max_y) * self._unit
        beyond = (end < self._lower) | (end > self._upper)
        return (broken | np.where((broken == 0) & beyond, Limit.BRAKING, 0)).astype(np.uint8)

    def _step_of(self, velocity: np.ndarray) -> np.ndarray:
        return np.clip(velocity * self.period_s / self._unit, -self._max_x, self._max_x)

    def _goes_on(self, x: np.ndarray, y: np.ndarray, onward: np.ndarray) -> np.ndarray:
        """Whether the step after (x, y) can be `onward`: else the target would be hit at a speed that overshoots."""
        change = onward - x
        return (np.abs(change) <= np.minimum(self._max_y, 1)) & (np.abs(change - y) <= 1)

    def _goal(self, wanted: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Where a stop should end that passes `wanted` with steps of `x`."""
        braking = plan_stop(x, np.zeros_like(x), self._max_y).distance(self._max_y) * self._unit
        return np.clip(wanted + braking, self._lower, self._upper)

    def _search(
        self,
        state: State,
        bounds: tuple[np.ndarray, np.ndarray, np.ndarray],
        goal: np.ndarray,
        end: np.ndarray,
        rows: np.ndarray,
    ) -> np.ndarray:
        """The acceleration between the stop's and the extreme one whose stop ends nearest to the goal, not past it."""
        first, low, high = (bound[rows] for bound in bounds)
        x, goal, end = state.x[rows], goal[rows], end[rows]
        max_y = np.broadcast_to(self._max_y, rows.shape)[rows]
        side = np.where(goal > end, 1.0, -1.0)
        reach = np.where(side > 0, high, low) - first

        def past(share: np.ndarray) -> np.ndarray:
            y = first + share * reach
            return side * (x + y + plan_stop(x + y, y, max_y).distance(max_y) - goal)

        near, far = np.zeros_like(x), np.ones_like(x)
        past_near, past_far = np.minimum(side * (end - goal), 0), past(far)
        best = np.where(past_far <= 0, far, near)
        if (past_far > 0).any():
            weight_near, weight_far = past_near.copy(), np.maximum(past_far, 0)
            for step in range(_SEARCH_STEPS):  # false position, Illinois' variant, and halving now and then
                gap = np.maximum(weight_far - weight_near, 1e-300)
                share = near + (far - near) * np.where(step % 3 == 2, 0.5, np.clip(-weight_near / gap, 0.0, 1.0))
                value = past(share)
                keeps = value <= 0
                near, far = np.where(keeps, share, near), np.where(keeps, far, share)
                weight_far = np.where(keeps, weight_far / 2, value)
                weight_near = np.where(keeps, value, weight_near / 2)
            best = np.where(past_far <= 0, 1.0, near)
        return first + best * reach

    def _keep_inside(
        self, state: State, following: State, y: np.ndarray, first: np.ndarray, broken: np.ndarray
    ) -> tuple[State, np.ndarray]:
        """Blend towards the stop where the path of the new stop leaves the workspace."""
        outside = ~self._stops_inside(following)
        if not outside.any():
            return following, broken
        broken[outside] |= Limit.WORKSPACE
        left = np.flatnonzero(outside)
        for blend in (*_BLENDS, 0.0):
            part = State(state.position[left], state.x[left], state.y[left])
            trial = self._next(part, first[left] + blend * (y[left] - first[left]))
            fits = self._stops_inside(trial) if blend else np.ones(len(left), bool)
            taken = left[fits]
            for name in ("position", "x", "y"):
                getattr(following, name)[taken] = getattr(trial, name)[fits]
            left = left[~fits]
            if not len(left):
                break
        return following, broken

    def _stops_inside(self, state: State) -> np.ndarray:
        assert self._inside is not None
        inside = self._inside(state.position)
        path = self.stop_path(state)
        return inside & (self._inside(path).all(0) if len(path) else True)

"""Limits of named axes: joints, the axes of a tool's pose, or a gripper."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from embodied_rl.errors import UserError


@dataclass(frozen=True)
class AxisLimits:
    """What n axes may do. Angles in rad, lengths in m; all arrays are float64 [n].

    Args:
        names: One name per axis, in the order in which commands give them.
        lower: Smallest position.
        upper: Largest position.
        velocity: Largest speed, per s.
        acceleration: Largest change of the velocity, per s^2.
        jerk: Largest change of the acceleration, per s^3.

    Raises:
        UserError: A figure is missing, not finite or not positive, a range is empty, or a name occurs twice.

    Example:
        >>> gripper = AxisLimits(("width",), *np.array([[0.0], [0.08], [0.1], [1.0], [20.0]]))
    """

    names: tuple[str, ...]
    lower: np.ndarray
    upper: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    jerk: np.ndarray

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) != len(self.names):
            raise UserError(f"axes {self.names}: give each axis one name of its own")
        for field in fields(self)[1:]:
            figures = np.asarray(getattr(self, field.name), np.float64)
            if figures.shape != (len(self.names),) or not np.isfinite(figures).all():
                raise UserError(f"{field.name}: {figures.tolist()} is not one finite number for each of {self.names}")
            object.__setattr__(self, field.name, figures)
        for name in ("velocity", "acceleration", "jerk"):
            if (getattr(self, name) <= 0).any():
                raise UserError(f"{name}: {getattr(self, name).tolist()} must be positive")
        if (self.lower >= self.upper).any():
            raise UserError(f"positions: lower {self.lower.tolist()} must lie below upper {self.upper.tolist()}")

"""A scripted pick that knows the poses: the black bowl by its rim, onto the plate. Runs on both sides of a comparison.

Needs MuJoCo and NumPy only, and no version of them in particular.
"""

from __future__ import annotations

from typing import Any

import numpy as np

OPEN, CLOSE = -1.0, 1.0
SETTLE_STEPS, STEPS = 10, 230
BOWL, PLATE, SITE = "akita_black_bowl_1_main", "plate_1_main", "gripper0_grip_site"
_RIM_RADIUS, _RIM_HEIGHT = 0.0515, 0.052
"""Metres, in the bowl's frame."""
_BELOW_RIM, _ABOVE, _LIFT, _DROP_HEIGHT = 0.013, 0.09, 0.16, 0.03
_SCALE = 0.05
"""Metres that an action of 1 moves the controller's goal."""
_NEAR = 0.006
_ANGLES = np.linspace(0, 2 * np.pi, 72, endpoint=False)


class Pick:
    """The script from one start; `act` gives one action after another, open-handed at the end.

    pick = Pick(model, data)
    action = pick.act()  # float64 [7], from `data` as it is now
    """

    def __init__(self, model: Any, data: Any) -> None:
        self._model, self._data = model, data
        self._phase, self._steps = 0, 0
        self._grasp = self._carried = np.zeros(3)

    def _rim(self) -> Any:
        """The point of the rim that lies farthest along world y, the way the hand opens."""
        bowl = self._data.body(BOWL)
        height = np.full(_ANGLES.shape, _RIM_HEIGHT)
        ring = np.column_stack([_RIM_RADIUS * np.cos(_ANGLES), _RIM_RADIUS * np.sin(_ANGLES), height])
        points = ring @ np.asarray(bowl.xmat).reshape(3, 3).T + bowl.xpos
        return points[np.argmax(points[:, 1])]

    def _target(self) -> tuple[Any, float, int]:
        """Where the hand should go in this phase, the gripper's action, and the most steps it may take."""
        up = np.array([0.0, 0.0, 1.0])
        plate = self._data.body(PLATE).xpos
        if self._phase <= 1:
            self._grasp = self._rim() - _BELOW_RIM * up
        over = plate + self._carried
        return (
            (self._grasp + _ABOVE * up, OPEN, 60),
            (self._grasp, OPEN, 40),
            (self._grasp, CLOSE, 12),
            (self._grasp + _LIFT * up, CLOSE, 40),
            (over + _LIFT * up, CLOSE, 60),
            (over + _DROP_HEIGHT * up, CLOSE, 40),
            (over + _DROP_HEIGHT * up, OPEN, 15),
            (over + _LIFT * up, OPEN, 10**6),
        )[self._phase]

    def act(self) -> Any:
        """The next action."""
        hand = np.array(self._data.site(SITE).xpos)
        target, grip, most = self._target()
        waits = self._phase in (2, 6)
        if self._steps >= most or (not waits and np.abs(target - hand).max() < _NEAR):
            self._phase, self._steps = min(self._phase + 1, 7), 0
            if self._phase == 4:
                self._carried = hand - self._data.body(BOWL).xpos
            target, grip, most = self._target()
        self._steps += 1
        move = np.clip((target - hand) / _SCALE, -1, 1)
        return np.array([*move, 0.0, 0.0, 0.0, grip])

"""Two arms of seven joints whose hands must come to two marks, in the form of LeRobot's environments.

An observation has one image under `pixels` and the joints under `agent_pos`; an action is the joints' targets, in rad,
and the grippers', 0 to 1. What is to be done stands in `task_description`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 96
HORIZON = 20
_REACH = np.array([*[3.14] * 6, 1.0] * 2, np.float32)
_LOW = np.where(_REACH > 1, -_REACH, 0).astype(np.float32)
_FASTEST = 0.4
"""A joint turns at most so far in a step."""
_HANDS = (0, 7)
_COLOURS = ((255, 60, 60), (60, 60, 255))


class TwoArms(gymnasium.Env[dict[str, Any], np.ndarray[Any, Any]]):
    """The first joint of each arm moves its hand to and fro; all others have no effect on success."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 50}
    task_description = "Move both hands to the marks"

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        picture = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
        joints: spaces.Space[Any] = spaces.Box(_LOW, _REACH, dtype=np.float32)
        self.observation_space = spaces.Dict({"pixels": spaces.Dict({"top": picture}), "agent_pos": joints})  # type: ignore[assignment]
        self.action_space = spaces.Box(_LOW, _REACH, dtype=np.float32)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        """As gymnasium's."""
        super().reset(seed=seed, options=options)
        self._joints = np.zeros(14, np.float32)
        self._marks = self.np_random.choice([-1.5, 1.5], 2)
        return self._seen(), {"is_success": False}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """As gymnasium's. The reward is how much nearer the hands came, and 1 when both are there."""
        before = self._away()
        change = np.clip(np.asarray(action, np.float32) - self._joints, -_FASTEST, _FASTEST)
        self._joints = np.clip(self._joints + change, _LOW, _REACH).astype(np.float32)
        there = bool(self._away().max() < 0.3)
        reward = float((before - self._away()).sum()) + float(there)
        return self._seen(), reward, there, False, {"is_success": there}

    def render(self) -> Any:
        """uint8 [96, 96, 3]: marks as squares, hands as bars, the left arm's above."""
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        for arm, colour in enumerate(_COLOURS):
            top, mark, hand = 12 + 48 * arm, _column(self._marks[arm]), _column(self._joints[_HANDS[arm]])
            picture[top + 14 : top + 24, mark - 5 : mark + 5] = colour
            picture[top : top + 12, hand - 3 : hand + 3] = 255
        return picture

    def _seen(self) -> dict[str, Any]:
        return {"pixels": {"top": self.render()}, "agent_pos": self._joints.copy()}

    def _away(self) -> np.ndarray[Any, Any]:
        return np.abs(self._joints[list(_HANDS)] - self._marks)


def _column(angle: float) -> int:
    return int(SIDE / 2 + angle / 3.2 * (SIDE / 2 - 6))


gymnasium.register("gym_two_arms/Reach-v0", entry_point="gym_two_arms:TwoArms", max_episode_steps=HORIZON)

"""Small gymnasium environments, registered when this module is imported."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from embodied_rl.types import Array

NAMESPACE = "embodied_rl_tests"
HORIZON = 12


class Reach(gymnasium.Env[dict[str, Array], Array]):
    """A point must come near a goal; the steps are noisy. with_image: show it; key: what info calls success."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        render_mode: str | None = None,
        *,
        with_image: bool = False,
        breaks_at: int = 1000,
        key: str = "is_success",
        actions: spaces.Space[Any] | None = None,
    ) -> None:
        self.render_mode, self._key = render_mode, key
        self._with_image, self._breaks_at = with_image, breaks_at
        parts: dict[str, spaces.Space[Any]] = {
            "goal": spaces.Box(-1, 1, (2,), np.float64),
            "position": spaces.Box(-1, 1, (2,), np.float64),
            "phase": spaces.Discrete(2),
        }
        if with_image:
            parts["view"] = spaces.Box(0, 255, (6, 8, 3), np.uint8)
        self.observation_space = spaces.Dict(parts)  # type: ignore[assignment]
        self.action_space = actions or spaces.Box(-2.0, 2.0, (2,), np.float32)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed, options=options)
        self._position = self.np_random.uniform(-0.2, 0.2, 2)
        self._goal = self.np_random.choice([-0.8, 0.8], 2)
        self._steps = 0
        return self._seen(), {}

    def step(self, action: Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._steps += 1
        self._position = (self._position + 0.2 * action + self.np_random.normal(0, 0.01, 2)).clip(-1, 1)
        if self._steps >= self._breaks_at:
            self._position[0] = np.nan
        near = bool(np.abs(self._position - self._goal).max() < 0.25)
        return self._seen(), 1.0 if near else -0.1, near, False, {self._key: near}

    def render(self) -> Array:
        image = np.zeros((6, 8, 3), np.uint8)
        row, column = ((self._position + 1) / 2 * (5, 7)).astype(int)
        image[row, column] = 255
        return image

    def _seen(self) -> dict[str, Any]:
        seen: dict[str, Any] = {"goal": self._goal, "position": self._position, "phase": self._steps % 2}
        return seen | ({"view": self.render()} if self._with_image else {})


class Corridor(gymnasium.Env[Array, int]):
    """Images and discrete actions that begin at 1; no success, no pictures to film, no time limit of its own."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (4, 4, 3), np.uint8)
        self.action_space = spaces.Discrete(3, start=1)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._image = self.np_random.integers(0, 255, (4, 4, 3), np.uint8)
        return self._image.copy(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self._image = np.roll(self._image, action, axis=1)
        return self._image.copy(), float(action), False, False, {}


def register() -> None:
    """Make the ids known to gymnasium, once a process."""
    one_bound = spaces.Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))
    ids: tuple[tuple[str, Any, int | None, dict[str, Any]], ...] = (
        ("Reach", Reach, HORIZON, {}),
        ("ReachSeen", Reach, HORIZON, {"with_image": True}),
        ("Breaks", Reach, HORIZON, {"breaks_at": 3}),
        ("OtherKey", Reach, HORIZON, {"key": "success"}),
        ("NoSuccess", Reach, HORIZON, {"key": "near"}),
        ("Integers", Reach, HORIZON, {"actions": spaces.Box(0, 3, (2,), np.int64)}),
        ("OneBound", Reach, HORIZON, {"actions": one_bound}),
        ("Corridor", Corridor, None, {}),
    )
    for name, entry, horizon, kwargs in ids:
        spec = f"{NAMESPACE}/{name}-v0"
        if spec not in gymnasium.registry:
            make: Any = entry
            gymnasium.register(spec, make, max_episode_steps=horizon, kwargs=kwargs)

"""gymnasium environments with one fault each, registered when this module is imported."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from embodied_rl.types import Array

NAMESPACE = "embodied_rl_faults"
HORIZON = 6


class Walk(gymnasium.Env[Array, Array]):
    """A number that moves; it should end above 0.5.

    fault: what goes wrong, in episodes whose start is above `above` (a share of (1 - above) / 2 of them).
    """

    def __init__(self, fault: str = "", above: float = -1.0) -> None:
        self._fault, self._above = fault, above
        self._own = np.random.default_rng()  # nobody seeds it
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self._buffer = np.zeros(2, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        source = self._own if self._fault == "unseeded" else self.np_random
        self._start = self._place = float(source.uniform(-1, 1))
        self._steps = 0
        if self._now("reset raises"):
            raise RuntimeError("the scene could not be built")
        if self._now("reset has another shape"):
            return np.zeros(3, np.float32), {}
        return self._seen(), {}

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._steps += 1
        self._place += 0.2 * float(action[0])
        if self._steps == 3:
            if self._now("raises"):
                raise RuntimeError("the solver diverged")
            if self._now("is NaN"):
                self._place = np.nan
        over = self._steps >= HORIZON
        info: dict[str, Any] = {"success": self._place > 0.5}
        if self._now("flag"):
            info["success"] = {"NaN": np.nan, "half": 0.5, "text": "True"}[self._fault.partition(" ")[2]]
        if self._fault == "only the last flag" and not over:
            info = {}
        if self._fault == "no flag":
            info = {}
        seen = self._seen()
        if self._steps == 3 and self._now("has another shape"):
            seen = seen[:1]
        if self._fault == "old API":
            return seen, 0.0, over, info  # type: ignore[return-value]
        if self._now("end"):
            end: Any = {"None": None, "NaN": np.nan, "text": "False", "two": np.zeros(2)}[self._fault.partition(" ")[2]]
            return seen, 0.0, end, False, info
        return seen, 0.0, over, False, info

    def _now(self, fault: str) -> bool:
        return self._fault.startswith(fault) and self._start > self._above

    def _seen(self) -> Array:
        self._buffer[:] = (self._place, self._steps)
        return self._buffer if self._fault.endswith("reused") else self._buffer.copy()


class Constant(Walk):
    """Every observation is one of `space`, whatever happens."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__()
        self.observation_space = space  # type: ignore[assignment]

    def _seen(self) -> Any:
        self.observation_space.seed(0)
        return self.observation_space.sample()


def make_id(name: str, entry: Any, **kwargs: Any) -> str:
    """An id of `entry`, known to gymnasium from now on."""
    full = f"{NAMESPACE}/{name}-v0"
    if full not in gymnasium.registry:
        gymnasium.register(full, entry, max_episode_steps=HORIZON, kwargs=kwargs)
    return full


def walk(fault: str, above: float = -1.0) -> str:
    """The id of a `Walk` with this fault."""
    name = fault.title().replace(" ", "") or "Sound"
    return make_id(f"{name}{round(100 * above) + 100}", Walk, fault=fault, above=above)


SOME = 0.84
"""`above` of which the fault is in one episode of twelve."""
for _fault in ("reset raises", "raises", "is NaN", "flag NaN", "has another shape", "unseeded"):
    walk(_fault, -1.0 if _fault == "unseeded" else SOME)

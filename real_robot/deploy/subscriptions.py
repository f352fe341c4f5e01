"""Subscriptions of deploy: what the messages of bridge and twin must hold, and how many were something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from embodied_rl.real_robot.ros2.messages import Each, Kind, Many, Maybe, MessageError, read

STATE: dict[str, Kind] = {"state": str, "event": str, "reason": str}
"""A bridge's ~/state."""
_SPREAD = Maybe({"p50": float, "p99": float, "max": float})
STATUS: dict[str, Kind] = {
    "state": str,
    "mode": str,
    "faults": Many(str),
    "tick_ms": _SPREAD,
    "step_ms": _SPREAD,
    "acting": Maybe(float),
    "answer_ms": _SPREAD,
    "delay_steps": int,
    "answers": int,
    "unused": int,
    "errors": int,
    "warnings": Many(str),
    "outcomes": Each(int),
    "reasons": Each(int),
    "holds": int,
    "last_hold": str,
    "interventions": int,
    "since_intervention_s": Maybe(float),
    "instruction": str,
    "policy": str,
    "detector": Maybe({"name": str, "alarms": Many(int)}),
    "recording": Maybe({"file": str, "dropped": int, "problem": str}),
    "flows": Each({"rate_hz": float, "age_ms": float}),
}
"""A bridge's ~/status."""
TWIN: dict[str, Kind] = {
    "number": int,
    "task": str,
    "instruction": str,
    "seconds": float,
    "success": bool,
    "behind_s": float,
}
"""A twin's state."""


class Subscriptions:
    """Takes the messages of topics that anybody may publish on; what is no such message is left out and counted.

    Attributes:
        changed: Held while a message is taken, and told afterwards.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._ignored, self._problem = 0, ""

    @property
    def ignored(self) -> str:
        """How many messages were left out, and why the last one was; empty while there are none."""
        with self.changed:
            return f"{self._ignored} messages left out, the last on {self._problem}" if self._ignored else ""

    def on(self, topic: str, kind: dict[str, Kind], take: Callable[[dict[str, Any]], None]) -> Callable[[Any], None]:
        """A subscription's callback: `take` is called with what was said."""

        def heard(message: Any) -> None:
            with self.changed:
                try:
                    values = read(message.data, kind)
                except MessageError as error:
                    self._ignored, self._problem = self._ignored + 1, f"{topic}: {error}"
                    return
                take(values)
                self.changed.notify_all()

        return heard

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether `condition` holds within `seconds`; looked at whenever something is heard."""
        with self.changed:
            return self.changed.wait_for(condition, seconds)

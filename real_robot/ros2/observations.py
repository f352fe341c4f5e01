"""From pictures and joints that come one by one to what the policy is asked."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.kinematics import Chain
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.core.views import LiveView, even, tool_points
from embodied_rl.real_robot.ros2.events import ObservationTaken
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.proprio import Proprio
from embodied_rl.real_robot.ros2.two_arm_target import TwoArmProprio

_KEPT = 4
"""Pictures of each camera: whoever looks back a little, such as the recorder, sees what was there then."""


@dataclass(frozen=True)
class _Image:
    """uint8 [H, W, 3], taken at `stamp_ns`; it came at `came_ns`."""

    came_ns: int
    stamp_ns: int
    image: np.ndarray


class Observations:
    """The newest picture of each camera, and the joints of its time.

    Args:
        loop: Where joints are kept and pictures are noted.
        cameras: Their names, in the policy's order.
        proprio: Makes what the policy reads of the joints.
        chain: The arm's, or two arms, where joints are measured while they move: pictures must change then. None in a
            dry run.

    Example:
        >>> observations.image("wrist", image, stamp_ns, now_ns)
        >>> observations.take(now_ns).images["wrist"].shape
        (480, 640, 3)
    """

    def __init__(
        self,
        loop: ControlLoop,
        cameras: Sequence[str],
        proprio: Proprio | TwoArmProprio,
        chain: Chain | TwoArmRobot | None = None,
    ) -> None:
        self.cameras = tuple(cameras)
        self.instruction = ""
        self._loop, self._proprio = loop, proprio
        self._images = {name: deque[_Image](maxlen=_KEPT) for name in self.cameras}
        self._changed = threading.Condition()
        self._chain, self._live = chain, {name: LiveView() for name in self.cameras}

    def image(self, camera: str, image: np.ndarray, stamp_ns: int, now_ns: int) -> str:
        """Take a picture, uint8 [H, W, 3], that comes now.

        One that is older than the newest is left out, and one of the future is a fault. So is one that is even, or the
        same as before while the tool moved.

        Returns:
            Why it is not to be believed; '' where it is.
        """
        if ahead := self._loop.image(camera, stamp_ns, now_ns):
            return ahead
        with self._changed:
            kept = self._images[camera]
            if kept and stamp_ns <= kept[-1].stamp_ns:
                return ""
            kept.append(_Image(now_ns, stamp_ns, image))
            self._changed.notify_all()
        problem = even(image) or self._stuck(camera, image, stamp_ns)
        self._loop.note("camera", problem, camera)
        return problem

    def restart(self) -> None:
        """Compare pictures from here on: a simulator has put the arm elsewhere, which is no motion of it."""
        self._live = {name: LiveView() for name in self.cameras}
        for camera in self.cameras:
            self._loop.note("camera", "", camera)

    def _stuck(self, camera: str, image: np.ndarray, stamp_ns: int) -> str:
        """Why a picture is taken for an old one; '' where it is new, or nobody knows how the arm moved."""
        measured = None if self._chain is None else self._loop.measured(stamp_ns)
        if measured is None or self._chain is None:
            return ""
        return self._live[camera].look(image, _tool_points(self._chain, measured.angles))

    def wait(self, seconds: float) -> None:
        """Until a picture comes, or so long."""
        with self._changed:
            self._changed.wait(seconds)

    def newest(self) -> dict[str, np.ndarray] | None:
        """Each camera's newest picture; None before each has come."""
        with self._changed:
            kept = {name: recent[-1].image for name, recent in self._images.items() if recent}
        return kept if len(kept) == len(self.cameras) else None

    def take(self, now_ns: int) -> ObservationTaken | None:
        """What the policy is asked at `now_ns`; None before each camera and the joints have come.

        Its stamp is that of the oldest picture, and the joints are those measured nearest to it.
        """
        with self._changed:
            come = {name: [one for one in kept if one.came_ns <= now_ns] for name, kept in self._images.items()}
        if not all(come.values()):
            return None
        newest = {name: recent[-1] for name, recent in come.items()}
        stamp_ns = min((latest.stamp_ns for latest in newest.values()), default=now_ns)
        measured = self._loop.measured(stamp_ns)
        if measured is None:
            return None
        images = {name: latest.image for name, latest in newest.items()}
        proprio = self._proprio(measured.angles, measured.fingers)
        return ObservationTaken(now_ns, stamp_ns, images, measured.angles, proprio, self.instruction)


def _tool_points(moved: Chain | TwoArmRobot, angles: np.ndarray) -> np.ndarray:
    if isinstance(moved, Chain):
        return tool_points(moved, angles)
    each = zip(moved.arms, moved.of_each(angles), strict=True)
    return np.concatenate([tool_points(arm.chain, own) for arm, own in each])


def request_of(observation: ObservationTaken, metadata: dict[str, Any]) -> dict[str, Any]:
    """An observation in the server's words, as much as its policy reads.

    Args:
        observation: With at least as many cameras as the policy has.
        metadata: What the server says of its policy.
    """
    images = list(observation.images.values())[: metadata["cameras"]]
    request: dict[str, Any] = {"proprio": observation.proprio}
    if images:
        request["images"] = images
    if metadata["instruction"]:
        request["instruction"] = observation.instruction
    return request

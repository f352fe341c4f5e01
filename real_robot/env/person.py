"""What a person did who took an arm over, one control step after the other, in the words of the bridge's recorder."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.real_robot.core.states import ArmState, Transition
from embodied_rl.real_robot.record.events import CameraImage, ControlStep, RecordEvent
from embodied_rl.types import Array

_KEPT = 64
"""Images that are kept for steps under way: a step names those that were the newest as it began."""


@dataclass(frozen=True)
class PersonStep:
    """A control step of a person.

    Args:
        time_ns: When it began, ns of the bridge's clock.
        images: What each camera showed then, uint8 [H, W, 3].
        proprio: float32 [P], of the same time.
        action: float32 [A] in [-1, 1], under which the arm moves as the person moved it.
    """

    time_ns: int
    images: tuple[Array, ...]
    proprio: Array
    action: Array


class PersonSteps:
    """A recorder's sink that keeps a person's control steps, and where each takeover ended, until they are asked for.

    Args:
        cameras: Names, in the policy's order.

    Example:
        >>> recorder = BridgeRecorder(steps := PersonSteps(["front"]), observations.take, loop.law)
        >>> loop.events.subscribe(BackgroundSink(recorder))
        >>> step = steps.next(seconds=3.0)
        >>> steps.drop()
    """

    def __init__(self, cameras: Sequence[str]) -> None:
        self._cameras, self._since_ns = tuple(cameras), 0
        self._images: OrderedDict[tuple[str, int], Array] = OrderedDict()
        self._waiting: deque[PersonStep | Transition] = deque()
        self._changed = threading.Condition()

    def begin(self, time_ns: int) -> None:
        """Forget what was done before: an episode begins."""
        with self._changed:
            self._since_ns = time_ns
            self._waiting.clear()

    def record(self, event: RecordEvent) -> bool:
        """See `EventSink.record`."""
        with self._changed:
            if isinstance(event, CameraImage):
                self._images[event.camera, event.time_ns] = event.image
                while len(self._images) > _KEPT:
                    self._images.popitem(last=False)
            elif event.time_ns < self._since_ns:
                return True
            elif isinstance(event, ControlStep) and event.intervention:
                images = tuple(self._images[camera, event.images_ns[camera]] for camera in self._cameras)
                proprio, action = event.proprio.astype(np.float32), event.action.astype(np.float32)
                self._waiting.append(PersonStep(event.time_ns, images, proprio, action))
            elif isinstance(event, Transition) and event.accepted and event.before is ArmState.HUMAN:
                self._waiting.append(event)
            self._changed.notify_all()
        return True

    def next(self, seconds: float) -> PersonStep | Transition | None:
        """The oldest step that was not dropped, or the transition by which the person let go; waits for it.

        Returns:
            None where nothing comes within `seconds`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting, seconds)
            return self._waiting[0] if self._waiting else None

    def drop(self) -> None:
        """Go on to what comes after `next`."""
        with self._changed:
            self._waiting.popleft()

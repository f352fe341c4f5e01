"""Numbers the bridge's episodes: where each begins and ends, and what somebody says of it."""

from __future__ import annotations

from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2.events import EpisodeMarked, StateChanged
from embodied_rl.real_robot.ros2.events import Event as BridgeEvent
from embodied_rl.real_robot.ros2.inference_client import InferenceClient
from embodied_rl.real_robot.ros2.loop import ControlLoop


class EpisodeBook:
    """An episode begins when an armed arm is started or taken over, and ends when it is disarmed or e-stopped.

    What is said of an episode counts while it runs and until the next begins; the last word replaces earlier ones.

    Args:
        loop: Whose state changes are followed.
        inference: Counts the policy's decisions anew in each episode.

    Example:
        >>> book = EpisodeBook(loop, inference)
        >>> book.say("success", now_ns)
    """

    def __init__(self, loop: ControlLoop, inference: InferenceClient) -> None:
        self._loop, self._inference = loop, inference
        self._number, self._outcome, self._open = 0, "", False
        loop.events.subscribe(self._on_event)

    def say(self, outcome: str, now_ns: int) -> None:
        """Note how the running or the last episode ended, such as 'success' or 'failure'; nothing before the first."""
        if self._number:
            self._outcome = outcome
            self._mark(now_ns, began=False)

    def _on_event(self, event: BridgeEvent) -> None:
        if not isinstance(event, StateChanged) or not event.transition.accepted:
            return
        change = event.transition
        if change.before is ArmState.ARMED and change.event in (Event.START, Event.TAKEOVER):
            self._number, self._outcome, self._open = self._number + 1, "", True
            self._inference.new_episode(self._number)
            self._mark(event.time_ns, began=True)
        elif self._open and change.after in (ArmState.IDLE, ArmState.ESTOPPED):
            self._open = False
            self._mark(event.time_ns, began=False)

    def _mark(self, time_ns: int, *, began: bool) -> None:
        self._loop.events.emit(EpisodeMarked(time_ns, self._number, began, self._outcome))

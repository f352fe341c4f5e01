"""Services by which somebody arms, starts, holds and stops: one std_srvs/Trigger for each wish."""

from __future__ import annotations

from functools import partial
from typing import Any

from embodied_rl.real_robot.core.states import Event
from embodied_rl.real_robot.ros2.context import BridgeContext
from embodied_rl.real_robot.ros2.inputs import Inputs
from embodied_rl.real_robot.ros2.preflight import checks, to_json

SERVICES = {
    "arm": Event.ARM,
    "start": Event.START,
    "hold": Event.HOLD,
    "resume": Event.RESUME,
    "disarm": Event.DISARM,
    "emergency_stop": Event.ESTOP,
    "reset": Event.RESET,
}
"""Names under the node, and what they fire."""
_NO_WORDS = "; there is no instruction yet: publish one to ~/instruction"
"""Without one the policy is not asked, and is silent."""


class Operator:
    """The services.

    Args:
        context: Whose state machine is fired.
        inputs: Looks who else commands the arm, and whether the button and the gripper's fingers were heard.

    Attributes:
        wants_to_run: Whether somebody started the arm and nobody has stopped it since.
        active: Whether the arm may be armed.
    """

    def __init__(self, context: BridgeContext, inputs: Inputs) -> None:
        from std_srvs.srv import Trigger

        self._context, self._inputs = context, inputs
        self.wants_to_run, self.active = False, False
        node = context.session.node
        for name, event in SERVICES.items():
            node.create_service(Trigger, f"~/{name}", partial(self._serve, event))
        node.create_service(Trigger, "~/release", self._release)
        node.create_service(Trigger, "~/accept_policy", self._accept_policy)
        node.create_service(Trigger, "~/preflight", self._preflight)

    def fire(self, event: Event) -> str:
        """Fire an event as somebody's wish: why it was refused; empty where it was done."""
        context = self._context
        if event in (Event.ARM, Event.START, Event.RESUME) and (refused := context.inference.report.refused):
            return refused
        if event is Event.ARM and not self.active:
            return "the bridge is not active: ros2 lifecycle set /embodied_rl activate"
        if event is Event.ARM and context.options.mode == "shadow":
            return "in shadow mode nothing is sent: the arm cannot be armed"
        if event is Event.ARM and (problem := self._inputs.buttons.unheard):
            return problem
        if event in (Event.ARM, Event.START, Event.RESUME):
            self._inputs.watch()
        if event is Event.ARM and (problem := self._inputs.missing_fingers()):
            return problem
        if event is Event.START and not context.observations.instruction:
            return _NO_WORDS.removeprefix("; ")
        transition = context.loop.fire(event, context.clock.now_ns(), "service")
        if not transition.accepted:
            silent = event is Event.ARM and not context.observations.instruction
            return f"{transition.reason}{_NO_WORDS * silent}"
        self.wants_to_run = event in (Event.START, Event.RESUME)
        return ""

    def release(self) -> str:
        """A person gives the arm back: why that was refused; empty where it was done."""
        transition = self._context.loop.release(self._context.clock.now_ns())
        return "" if transition.accepted else transition.reason

    def _serve(self, event: Event, request: Any, response: Any) -> Any:
        response.message = self.fire(event)
        response.success = not response.message
        return response

    def _release(self, request: Any, response: Any) -> Any:
        response.message = self.release()
        response.success = not response.message
        return response

    def _accept_policy(self, request: Any, response: Any) -> Any:
        response.message = self._context.inference.accept()
        response.success = not response.message
        return response

    def _preflight(self, request: Any, response: Any) -> Any:
        found = checks(self._context, self._inputs)
        response.success, response.message = all(check.passed for check in found), to_json(found)
        return response

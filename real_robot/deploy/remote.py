"""A bridge and a twin as seen from another process: their topics and services."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.real_robot.deploy.subscriptions import STATE, STATUS, TWIN, Subscriptions
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.operator import SERVICES
from embodied_rl.real_robot.ros2.preflight import Check, from_json
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.options import TOPICS

BRIDGE = "/embodied_rl"
_CALL_S = 15.0
_SETTLED_S = 0.15


class BridgeRemote:
    """Calls a bridge's services and hears what it says.

    Args:
        session: A node; start it after this is made.
        emergency_stop: Topic of the button.

    Example:
        >>> remote.instruct("open the drawer")
        >>> remote.call("arm")
        >>> remote.state
        'armed'
    """

    def __init__(self, session: Session, emergency_stop: str = "/emergency_stop") -> None:
        from std_msgs.msg import Bool, String
        from std_srvs.srv import Trigger

        self._bool, self._text, self._trigger = Bool, String, Trigger
        self.subscriptions = Subscriptions()
        self.state, self.status = "", dict[str, Any]()
        self.transitions: list[dict[str, Any]] = []
        """What the state machine said, with `heard_ns` of this process's monotonic clock."""
        node = session.node
        names = (*SERVICES, "release", "accept_policy", "preflight")
        self._clients = {name: node.create_client(Trigger, f"{BRIDGE}/{name}") for name in names}
        self._instruction = node.create_publisher(String, f"{BRIDGE}/instruction", qos.latched())
        self._outcome = node.create_publisher(String, f"{BRIDGE}/outcome", qos.event())
        self._button = node.create_publisher(Bool, emergency_stop, qos.event())
        state, status = f"{BRIDGE}/state", f"{BRIDGE}/status"
        node.create_subscription(String, state, self.subscriptions.on(state, STATE, self._on_state), qos.latched())
        node.create_subscription(String, status, self.subscriptions.on(status, STATUS, self._on_status), qos.command())

    def call(self, name: str) -> tuple[bool, str]:
        """Call a service of `SERVICES`, 'release', 'accept_policy' or 'preflight': whether it was done, and its words.

        Raises:
            UserError: The bridge does not answer.
        """
        client = self._clients[name]
        if not client.wait_for_service(timeout_sec=_CALL_S):
            raise UserError(f"no bridge offers {BRIDGE}/{name}: is it running, on the same ROS_DOMAIN_ID?")
        answered = threading.Event()
        future = client.call_async(self._trigger.Request())
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(_CALL_S):
            raise UserError(f"the bridge did not answer {BRIDGE}/{name} in {_CALL_S:.0f} s")
        answer = future.result()
        return bool(answer.success), str(answer.message)

    def preflight(self) -> list[Check]:
        """What the bridge finds before the arm is armed."""
        return from_json(self.call("preflight")[1])

    def instruct(self, words: str) -> None:
        """Say what the policy shall do.

        Raises:
            UserError: The bridge does not take it in time, as while an arm runs.
        """
        self._instruction.publish(self._text(data=words))
        if not self.wait(lambda: self.status.get("instruction") == words.strip(), _CALL_S):
            why = "; ".join(self.status.get("warnings", [])) or f"the arm is {self.state}"
            raise UserError(f"the bridge did not take the instruction '{words}': {why}")

    def outcome(self, words: str) -> None:
        """Say how the episode ended, for the record."""
        self._outcome.publish(self._text(data=words))

    def press(self, pressed: bool = True) -> int:
        """Press the emergency stop, or let it out: the monotonic time at which it was sent, ns."""
        sent_ns = time.monotonic_ns()
        self._button.publish(self._bool(data=pressed))
        return sent_ns

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether `condition` holds within `seconds`; looked at whenever the bridge says something."""
        return self.subscriptions.wait(condition, seconds)

    def wait_state(self, state: str, seconds: float) -> bool:
        """Whether the bridge is in `state` within `seconds`."""
        return self.wait(lambda: self.state == state, seconds)

    def _on_state(self, message: dict[str, Any]) -> None:
        self.state = message["state"]
        self.transitions.append({"accepted": True, **message, "heard_ns": time.monotonic_ns()})

    def _on_status(self, message: dict[str, Any]) -> None:
        self.status = message


class TwinRemote:
    """Begins episodes on a twin and hears how they go.

    Args:
        session: A node; start it after this is made.

    Attributes:
        state: number, task, instruction, seconds, success, behind_s.
    """

    def __init__(self, session: Session) -> None:
        from std_msgs.msg import String

        self._text = String
        self.subscriptions = Subscriptions()
        self.state: dict[str, Any] = {}
        self._number, self._dropped, self._deaf = 0, tuple[str, ...](), False
        self._spoilt = dict[str, str]()
        self._episode = session.node.create_publisher(String, TOPICS["episode"], qos.latched())
        self._faults = session.node.create_publisher(String, TOPICS["faults"], qos.event())
        self._person = session.node.create_publisher(String, TOPICS["person"], qos.event())
        state = TOPICS["state"]
        session.node.create_subscription(
            String, state, self.subscriptions.on(state, TWIN, self._on_state), qos.latched()
        )

    def begin(self, task: str, state: int, seed: int, seconds: float = 30.0) -> str:
        """Put the scene into an initial state: the instruction.

        Raises:
            UserError: The twin does not say so in time.
        """
        self._number += 1
        number = self._number
        words = {"number": number, "task": task, "state": state, "seed": seed}
        self._episode.publish(self._text(data=json.dumps(words)))
        # a moment later, so that the joints of the new scene have been heard too
        if not self.wait(lambda: self.state.get("number") == number and self.state["seconds"] >= _SETTLED_S, seconds):
            raise UserError(f"the twin did not begin {task} in {seconds:.0f} s")
        return str(self.state["instruction"])

    def take_over(self, acts: bool = True) -> None:
        """The scripted expert takes the arm over as a person would, or lets the dead man's switch go."""
        self._person.publish(self._text(data=json.dumps({"acts": acts})))

    def drop_cameras(self, *cameras: str) -> None:
        """These cameras send nothing from now on; none: all send again."""
        self._dropped = cameras
        self._inject()

    def deafen(self, deaf: bool = True) -> None:
        """The arm's controller takes no set point from now on, or takes them again."""
        self._deaf = deaf
        self._inject()

    def spoil(self, how: dict[str, str]) -> None:
        """What cameras and joints say is not so from now on, see `TwinNode`; {}: all of it is."""
        self._spoilt = how
        self._inject()

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether `condition` holds within `seconds`; looked at whenever the twin says something."""
        return self.subscriptions.wait(condition, seconds)

    def _inject(self) -> None:
        faults = {"dropped": list(self._dropped), "deaf": self._deaf, "spoilt": self._spoilt}
        self._faults.publish(self._text(data=json.dumps(faults)))

    def _on_state(self, message: dict[str, Any]) -> None:
        self.state = message

"""The suite's scripted expert in a person's place: it moves the twin's arm over the takeover topics, as hands do."""

from __future__ import annotations

import threading

import numpy as np

from embodied_rl.real_robot.core.cartesian import ControlLaw
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.plant import Plant
from embodied_rl.types import Array

_PERIOD_NS = 25_000_000
_STEPS = 2
"""Messages for each of the expert's decisions, which it takes at the control rate."""
_MOST = 0.6
"""Share of the speed of training's controller at full action: what the gate never holds back is recorded as it was."""
_TAKEOVER = "/embodied_rl/takeover"


class TwinPerson:
    """Holds the dead man's switch and moves the arm while it is told to; else it says that the switch is open.

    Args:
        session: The twin's node.
        plant: Whose state the expert looks at.
        clock: The twin's.

    Example:
        >>> person.act(True)   # takes the running arm over and goes on from where it stands
        >>> person.act(False)
    """

    def __init__(self, session: Session, plant: Plant, clock: Clock) -> None:
        from geometry_msgs.msg import TwistStamped
        from std_msgs.msg import Bool, Float64

        self._plant, self._clock, self._law = plant, clock, ControlLaw()
        self._bool, self._float, self._twist = Bool, Float64, TwistStamped
        node = session.node
        self._engaged = node.create_publisher(Bool, f"{_TAKEOVER}/engaged", qos.event())
        self._twists = node.create_publisher(TwistStamped, f"{_TAKEOVER}/twist", qos.command())
        self._gripper = node.create_publisher(Float64, f"{_TAKEOVER}/gripper", qos.command())
        self._wanted = threading.Event()

    def act(self, acts: bool) -> None:
        """Take the arm over, or let the switch go."""
        if acts:
            self._wanted.set()
        elif self._wanted.is_set():
            self._wanted.clear()
            self._engaged.publish(self._bool(data=False))

    def run(self, stopping: threading.Event) -> None:
        """Move the arm whenever that is asked for, until `stopping` is set."""
        while not stopping.is_set():
            if self._wanted.wait(0.1):
                self._move(stopping)

    def _move(self, stopping: threading.Event) -> None:
        expert, due_ns = self._plant.expert(), self._clock.now_ns()
        while self._wanted.is_set() and not stopping.is_set():
            action = self._plant.advice(expert)
            for _ in range(_STEPS):
                self._say(action)
                due_ns += _PERIOD_NS
                self._clock.sleep_until(due_ns)
            due_ns = max(due_ns, self._clock.now_ns() - _PERIOD_NS)

    def _say(self, action: Array) -> None:
        if not self._wanted.is_set():  # the last word is that the switch is open
            return
        twist, message = twist_of(action, self._law).tolist(), self._twist()
        message.twist.linear.x, message.twist.linear.y, message.twist.linear.z = twist[:3]
        message.twist.angular.x, message.twist.angular.y, message.twist.angular.z = twist[3:]
        self._engaged.publish(self._bool(data=True))
        self._gripper.publish(self._float(data=float(action[6])))
        self._twists.publish(message)


def twist_of(action: Array, law: ControlLaw) -> Array:
    """The velocity of a hand that does what an expert's action [7] asks for, but not too fast: m/s and rad/s [6]."""
    slower = min(1.0, _MOST / max(float(np.abs(action[:6]).max()), 1e-9))
    return np.concatenate(law.speeds(slower * np.asarray(action, np.float64)))

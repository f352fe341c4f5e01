"""The emergency stop's topic: every publisher is heard, whatever its quality of service, and each has its own bit."""

from __future__ import annotations

from typing import Any

from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.context import BridgeContext
from embodied_rl.real_robot.ros2.events import ButtonMoved
from embodied_rl.real_robot.ros2.options import PANEL
from embodied_rl.real_robot.ros2.publishers import node_name

_NEVER_NS = 10**17
"""Longer leases are none."""
_KIND = "std_msgs/msg/Bool"


class ButtonTopic:
    """Subscriptions to the buttons' topic, and who publishes it.

    A reliable subscription loses no press of a reliable publisher. Beside it, a best-effort one hears best-effort
    publishers, a latched one where a latched button was left before, and one with a lease whether those live that offer
    one. Each begins once such a publisher is there: others are warned of one that they are not compatible with.

    Args:
        context: Its loop is told.
        node: Whose callbacks hear the buttons.
    """

    def __init__(self, context: BridgeContext, node: Any) -> None:
        from rclpy.event_handler import SubscriptionEventCallbacks
        from std_msgs.msg import Bool

        self._context, self._node = context, node
        self._topic = context.config.emergency_stop
        self._publishers = dict[bytes, str]()
        self._nameless = self._matches = False  # messages do not say of whom; publishers are known by what they say
        self._wrong_kind = list[str]()
        self._not_alive = dict[str, int]()  # by subscription
        self._message, self._events, self._infos = Bool, SubscriptionEventCallbacks, list[Any]()
        self._subscribe("reliable", qos.event())

    def heard(self, message: Any, info: dict[str, Any]) -> None:
        """A publisher says where its button is."""
        key: bytes = bytes(info["publisher_gid"]["data"]) if "publisher_gid" in info else b""
        pressed, now_ns, loop = bool(message.data), self._context.clock.now_ns(), self._context.loop
        self._nameless = not key
        if all(button.key != key for button in loop.runtime.buttons.present):
            self.look()  # it is new
            self._matches = self._matches or key in self._publishers
        name = self._publishers.get(key, "a button")
        if loop.button(pressed, now_ns, key, name, info.get("publication_sequence_number")):
            loop.events.emit(ButtonMoved(now_ns, pressed))

    def watch(self) -> None:
        """Look who publishes, and hear all of them; called in the thread that hears."""
        from rclpy.qos import DurabilityPolicy, ReliabilityPolicy

        self.look()
        for offered in (info.qos_profile for info in self._infos):
            if (lease_ns := offered.liveliness_lease_duration.nanoseconds) < _NEVER_NS:
                self._subscribe(f"lease of {lease_ns} ns", qos.alive(offered.liveliness, lease_ns))
        if any(info.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT for info in self._infos):
            self._subscribe("best_effort", qos.sensor(50))
        if any(info.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for info in self._infos):
            self._subscribe("latched", qos.latched())

    def _subscribe(self, name: str, profile: Any) -> None:
        if name in self._not_alive:
            return
        self._not_alive[name] = 0
        events = self._events(
            liveliness=lambda statement: self._not_alive.update({name: statement.not_alive_count}),
            use_default_callbacks=False,  # that one of several is not compatible is as it should be
        )
        self._node.create_subscription(self._message, self._topic, self.heard, profile, event_callbacks=events)

    def look(self) -> None:
        """Look who publishes the topic now."""
        infos = self._node.get_publishers_info_by_topic(self._topic)
        self._publishers = {bytes(info.endpoint_gid)[:16]: node_name(info) for info in infos}
        self._wrong_kind = [f"{node_name(info)} as {info.topic_type}" for info in infos if info.topic_type != _KIND]
        loop, self._infos = self._context.loop, infos
        self._matches = self._matches or any(one.key in self._publishers for one in loop.runtime.buttons.present)
        if self._matches:
            loop.button_publishers(self._publishers, self._context.clock.now_ns())
        elif not self._others:
            loop.button_publishers({}, self._context.clock.now_ns())

    @property
    def problem(self) -> str:
        """Why a stop might not be heard that was heard before; '' where it would be."""
        if self._wrong_kind:
            return f"{', '.join(self._wrong_kind)} on {self._topic}: publish {_KIND}, or its button is not heard"
        if any(self._not_alive.values()):
            return f"a publisher of {self._topic} is not alive any more, by its own quality of service: start it again"
        if self._nameless and len(self._others) > 1:
            names = ", ".join(self._others)
            return f"{names} publish {self._topic}, and this ROS does not say whose a message is: let one do it"
        if not self._context.config.has_button:
            return ""
        gone = [one.name for one in self._context.loop.runtime.buttons.gone if _is_button(one.name)]
        if gone:
            return f"{', '.join(gone)} published {self._topic} and is gone: start it again and press it once"
        return "" if self._relied_on else self._unheard

    @property
    def unheard(self) -> str:
        """Which button must be pressed once before the arm is armed; '' where each was heard, or there is none."""
        if not self._context.config.has_button:
            return ""
        if not self._relied_on:
            return self._unheard
        keys = {button.key for button in self._context.loop.runtime.buttons.present}
        silent = [name for key, name in self._publishers.items() if key not in keys and _is_button(name)]
        if not silent or not self._matches:
            return ""
        return f"{', '.join(silent)} publishes {self._topic} and was not heard: press its button once and let it out"

    @property
    def report(self) -> list[dict[str, Any]]:
        """Each button: its name, whether it is pressed, and how often it repeats, 1/s."""
        present = self._context.loop.runtime.buttons.present
        return [{"name": one.name, "pressed": one.pressed, "rate_hz": one.rate_hz} for one in present]

    @property
    def _relied_on(self) -> bool:
        return any(one.name != PANEL for one in self._context.loop.runtime.buttons.present)

    @property
    def _unheard(self) -> str:
        advice = "press it once and let it out, or say ros.emergency_stop_button: false where there is none"
        return f"no button is heard on {self._topic}: {advice}"

    @property
    def _others(self) -> list[str]:
        return sorted(name for name in self._publishers.values() if name != PANEL)


def _is_button(name: str) -> bool:
    """Whether a node is one to rely on: not the panel of `deploy`, and no tool, whose names are hidden."""
    return name != PANEL and not name.startswith("_")

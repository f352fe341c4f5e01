"""What the bridge subscribes to: joints, pictures, the emergency stop, a human's device."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.runtime import COMMANDS, STOP, repeated
from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.adapters.stamps import nanoseconds
from embodied_rl.real_robot.ros2.buttons import ButtonTopic
from embodied_rl.real_robot.ros2.config import CameraTopic
from embodied_rl.real_robot.ros2.context import BridgeContext
from embodied_rl.real_robot.ros2.episodes import EpisodeBook
from embodied_rl.real_robot.ros2.events import JointsMeasured
from embodied_rl.real_robot.ros2.images import ImageError, of_compressed, of_raw
from embodied_rl.real_robot.ros2.loop import MOST_TWIST
from embodied_rl.real_robot.ros2.publishers import nobody_listens, other_commanders

_WATCH_S = 0.1
"""How often it is asked who publishes."""
_EPISODE = (ArmState.RUNNING, ArmState.HOLDING, ArmState.HUMAN)
_SILENCE_NS = 200_000_000
"""A dead man's switch that says nothing for so long is open."""
_RECENT_NS = 2_000_000_000
_FINGERS_NS = 2_000_000_000
"""Fingers that were heard longer ago count as not heard; grippers speak less often than arms."""
_WIDTH_SHARE = 0.1
"""Share of the gripper's range by which it may be measured beyond it: soft pads, a poor zero."""
_TWIST_AGE_NS = 100_000_000
"""A twist that was made longer ago moves nothing."""


class Flow:
    """When the last messages of a topic came and how old they were, for the checks."""

    def __init__(self) -> None:
        self._came: deque[tuple[int, int]] = deque(maxlen=200)
        self.problem = ""
        """Why the last message was not used."""

    def note(self, now_ns: int, stamp_ns: int) -> None:
        """A message came."""
        self._came.append((now_ns, now_ns - stamp_ns))

    def heard(self, now_ns: int) -> bool:
        """Whether a message came in the last two seconds."""
        return any(now_ns - came < _RECENT_NS for came, _ in self._all[-1:])

    def rate_hz(self, now_ns: int) -> float:
        """Messages a second over the last two seconds."""
        recent = [came for came, _ in self._all if now_ns - came < _RECENT_NS]
        return (len(recent) - 1) * 1e9 / max(recent[-1] - recent[0], 1) if len(recent) > 1 else 0.0

    @property
    def age_ms(self) -> float:
        """Median age of a message when it comes: delay, and the difference of clocks."""
        return float(np.median(ages)) / 1e6 if (ages := [age for _, age in self._all]) else float("nan")

    @property
    def _all(self) -> list[tuple[int, int]]:
        """A copy, in one step: messages come in threads of their own."""
        return list(self._came)


class Inputs:
    """Subscriptions and what became of them.

    Args:
        context: Its loop and observations take what comes.
        episodes: Is told what somebody says of an episode.

    Attributes:
        buttons: The emergency stop's.
        flows: What came of joint states and of each camera, by name.
        twist_problem: Why the last twist of a human's device was not used; empty where it was.
        instruction_problem: Why the last instruction was not taken; empty where it was.
    """

    def __init__(self, context: BridgeContext, episodes: EpisodeBook) -> None:
        from geometry_msgs.msg import TwistStamped
        from sensor_msgs.msg import CompressedImage, Image, JointState
        from std_msgs.msg import Bool, Float64, String

        self._context, self._node = context, context.session.node
        self._episodes = episodes
        self._names: list[str] = []
        self._fingers: list[float] = []
        self._finger_ns, self._finger_at = dict[str, int](), dict[str, float]()
        self._engaged_ns, self._grip, self.twist_problem = 0, 0.0, ""
        self.instruction_problem = ""
        config, node = context.config, self._node
        self.flows = {"joint_states": Flow(), **{name: Flow() for name in context.observations.cameras}}
        urgent, images = context.session.beside("urgent"), context.session.beside("pictures")
        urgent.create_subscription(JointState, config.joint_states, self._joints, qos.sensor(5))
        for camera in config.cameras:
            if camera.name in self.flows:
                kind = CompressedImage if camera.compressed else Image
                images.create_subscription(kind, camera.topic, partial(self._image, camera), qos.sensor())
        self.buttons = ButtonTopic(context, urgent)
        urgent.create_timer(_WATCH_S, self._watch)
        for profile in (qos.latched(), qos.event()):  # of a publisher that keeps its words, and of one that does not
            node.create_subscription(String, "~/instruction", self._instruction, profile)
        node.create_subscription(String, "~/outcome", self._on_outcome, qos.event())
        node.create_subscription(TwistStamped, "~/takeover/twist", self._twist, qos.command())
        node.create_subscription(Bool, "~/takeover/engaged", self._engage, qos.event())
        node.create_subscription(Float64, "~/takeover/gripper", self._grip_by_hand, qos.command())

    def pretend(self, angles: np.ndarray) -> None:
        """In a dry run: the arm is where it is asked to be."""
        names = [*self._context.robot.limits.names, *self._names]
        self._context.loop.joint_states(names, [*angles, *self._fingers], self._context.clock.now_ns())

    def _watch(self) -> None:
        self.buttons.watch()
        self.watch()

    def watch(self) -> None:
        """Look who commands the arm, who listens, and whether the emergency stop would be heard: each is a fault."""
        self.buttons.look()
        self._context.loop.note(STOP, self.buttons.problem)
        self._context.loop.note(COMMANDS, self.command_problem())
        self._context.loop.note("gripper", self.missing_fingers() if self._finger_ns else "")  # no arm is armed without

    def command_problem(self) -> str:
        """Who else commands the arm, or that nobody listens; empty where all is well, or the bridge sends nothing."""
        node, config = self._node, self._context.config
        live = self._context.options.mode == "live"
        return (other_commanders(node, config) or nobody_listens(node, config)) if live else ""

    def missing_fingers(self) -> str:
        """Which of the gripper's finger joints are not heard, or how wide they cannot be; '' where all is well.

        Their positions are the gripper's first set point, and what the policy reads of it.
        """
        config, now_ns = self._context.config, self._context.clock.now_ns()
        missing = [name for name in config.fingers if now_ns - self._finger_ns.get(name, -_FINGERS_NS) >= _FINGERS_NS]
        if not missing:
            return self._wrong_width()
        advice = f"start the gripper's driver, have it publish {config.joint_states}, or correct ros.gripper.fingers"
        return f"{', '.join(missing)}: no finite position comes on {config.joint_states}: {advice}"

    def _wrong_width(self) -> str:
        """Why the width that is measured cannot be: another unit, or other joints than the fingers'."""
        if not self._finger_at:
            return ""
        for limits, gripper in zip(self._context.robot.grippers, self._context.config.grippers, strict=False):
            width = sum(abs(self._finger_at[name]) for name in gripper.fingers)
            closed, wide = float(limits.lower[0]), float(limits.upper[0])
            if not closed - _WIDTH_SHARE * (wide - closed) <= width <= wide + _WIDTH_SHARE * (wide - closed):
                difference = f"the fingers are measured {width:g} m apart, gripper.position is {closed:g} to {wide:g} m"
                return f"{difference}: correct it or ros.gripper.fingers"
        return ""

    def _joints(self, message: Any) -> None:
        context = self._context
        now_ns, stamp_ns = context.clock.now_ns(), context.clock.own_ns(nanoseconds(message.header.stamp))
        flow = self.flows["joint_states"]
        of_arm = any(name in context.robot.limits.names for name in message.name)
        if of_arm:
            flow.note(now_ns, stamp_ns)
        names = context.config.fingers
        heard = zip(message.name, message.position, strict=False)
        twice = repeated(message.name, names)
        own = [(name, value) for name, value in heard if name in names and np.isfinite(value) and not twice]
        self._finger_ns |= {name: now_ns for name, _ in own}
        self._finger_at |= dict(own)
        if own:
            self._names, self._fingers = [name for name, _ in own], [value for _, value in own]
        velocities = np.array(message.velocity) if len(message.velocity) == len(message.name) else None
        measured = JointsMeasured(stamp_ns, tuple(message.name), np.array(message.position), velocities)
        context.loop.events.emit(measured)
        if context.options.mode == "dry_run" and context.loop.runtime.machine.sends:
            return
        flow.problem = f"names: {twice}" if twice else flow.problem
        if not (of_arm or own or twice):  # another machine's on the same topic
            if not flow.heard(now_ns):
                flow.problem = f"none of the arm's joints among {', '.join(message.name):.200}"
            return
        refused = context.loop.joint_states(message.name, message.position, stamp_ns, now_ns)
        if not of_arm and not twice:
            return
        flow.problem = "" if refused is None else f"{refused.kind}: {refused.detail}"

    def _image(self, camera: CameraTopic, message: Any) -> None:
        context, flow = self._context, self.flows[camera.name]
        now_ns, stamp_ns = context.clock.now_ns(), context.clock.own_ns(nanoseconds(message.header.stamp))
        flow.note(now_ns, stamp_ns)
        try:
            image = of_compressed(message) if camera.compressed else of_raw(message)
        except ImageError as error:
            flow.problem = str(error)
            return
        flow.problem = context.observations.image(camera.name, image, stamp_ns, now_ns)

    def _instruction(self, message: Any) -> None:
        """Take the task, but not in the middle of an episode: anybody may publish one."""
        words, observations, state = message.data.strip(), self._context.observations, self._context.loop.state
        self.instruction_problem = ""
        if words == observations.instruction:
            return
        if state in _EPISODE:
            self.instruction_problem = (
                f"the instruction '{words:.100}' is not taken while the arm is {state}: disarm it"
            )
            return
        observations.instruction = words

    def _on_outcome(self, message: Any) -> None:
        self._episodes.say(message.data, self._context.clock.now_ns())

    def _engage(self, message: Any) -> None:
        now_ns = self._context.clock.now_ns()
        if isinstance(self._context.robot, TwoArmRobot):
            self.twist_problem = "a takeover moves one arm: hold, resume or stop two" if message.data else ""
            return
        held = self._held(now_ns)
        self._engaged_ns = now_ns if message.data else 0
        if not (held and message.data):  # a repeated press says nothing of the twist
            self._context.loop.human(np.zeros(6), 0.0, now_ns, engaged=bool(message.data))

    def _grip_by_hand(self, message: Any) -> None:
        self._grip = float(message.data)

    def _twist(self, message: Any) -> None:
        """Move by hand while the dead man's switch is held."""
        linear, angular = message.twist.linear, message.twist.angular
        twist = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z], np.float64)
        now_ns = self._context.clock.now_ns()
        self.twist_problem = self._wrong_twist(twist, message.header, now_ns)
        if not self.twist_problem and self._held(now_ns):
            self._context.loop.human(twist, self._grip, now_ns, engaged=True)
        else:
            self._context.loop.silent(now_ns)

    def _held(self, now_ns: int) -> bool:
        """Whether the dead man's switch is pressed, and was heard lately."""
        return bool(self._engaged_ns) and now_ns - self._engaged_ns < _SILENCE_NS

    def _wrong_twist(self, twist: np.ndarray, header: Any, now_ns: int) -> str:
        """Why a twist is not used: too large, of another frame, or old; one without a stamp is taken as new."""
        if not (np.abs(twist) <= MOST_TWIST).all():
            return f"the takeover's twist asks for {np.abs(twist).max():g}: at most {MOST_TWIST:g} m/s and rad/s"
        base, stamp_ns = self._context.robot.base_frame, nanoseconds(header.stamp)
        if header.frame_id not in ("", base):
            return f"the takeover's twist is in {header.frame_id}: send it in {base}, the robot's base frame"
        age_ns = now_ns - self._context.clock.own_ns(stamp_ns)
        if stamp_ns and age_ns > _TWIST_AGE_NS:
            return f"the takeover's twist is {age_ns / 1e6:.0f} ms old: the clocks disagree (chrony), or it is slow"
        return ""

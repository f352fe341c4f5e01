"""What the bridge hears of a person, without ROS: messages are plain objects, topics are functions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.config import ArmTopic
from embodied_rl.real_robot.ros2.events import ButtonMoved
from embodied_rl.real_robot.ros2.inference_client import InferenceReport
from embodied_rl.real_robot.ros2.inputs import Flow, Inputs
from embodied_rl.real_robot.ros2.operator import Operator
from embodied_rl.real_robot.ros2.preflight import STOP, _gripper, _stop
from embodied_rl.real_robot.ros2.publishers import other_commanders
from embodied_rl.real_robot.ros2.report import Reporter
from tests.real_robot.ros2.bench import CONFIG, ROBOT, Bench

FINGERS = {"gripper0_finger_joint1": 0.03, "gripper0_finger_joint2": -0.03}


def gid(name: str) -> bytes:
    """Of a node's publisher."""
    return name.encode().ljust(16, b".")[:16]


class GoneError(RuntimeError):
    """What rclpy raises of a node that has ended."""


class Topics:
    """A node's subscriptions, the context behind them, and a clock that is the bench's."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.heard = bench, dict[str, Callable[..., None]]()
        self.publishers: dict[str, list[str]] = {}
        self.clients: dict[str, list[str] | None] = {"embodied_rl": []}
        self.listeners = 1
        self.named, self.kind = True, "std_msgs/msg/Bool"
        clock = SimpleNamespace(now_ns=lambda: bench.now, own_ns=lambda stamp_ns: stamp_ns)
        self.context: Any = SimpleNamespace(
            session=SimpleNamespace(node=self, beside=lambda _: self), config=CONFIG, robot=ROBOT, loop=bench.loop,
            clock=clock, observations=SimpleNamespace(cameras=["front"]), options=SimpleNamespace(mode="live"),
        )  # fmt: skip
        self.inputs = Inputs(self.context, SimpleNamespace(say=lambda *_: None))  # type: ignore[arg-type]

    def create_subscription(
        self, kind: Any, topic: str, callback: Callable[..., None], profile: Any, event_callbacks: Any = None
    ) -> None:
        self.heard[topic] = callback

    def button(self, pressed: bool, of: str = "button", number: int | None = None) -> None:
        """A node with this name says where its button is."""
        info = {"publication_sequence_number": number}
        if self.named:
            info["publisher_gid"] = {"data": gid(of)}  # type: ignore[assignment]
        self.heard["/emergency_stop"](SimpleNamespace(data=pressed), info)

    def create_service(self, kind: Any, name: str, callback: Callable[..., Any]) -> None:
        """Services are not called here."""

    def get_name(self) -> str:
        return "embodied_rl"

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        return [
            SimpleNamespace(node_name=name, node_namespace="/", endpoint_gid=list(gid(name)), topic_type=self.kind)
            for name in self.publishers.get(topic, [])
        ]

    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]:
        return [(name, "/") for name in self.clients]

    def get_client_names_and_types_by_node(self, name: str, place: str) -> list[tuple[str, list[str]]]:
        if (services := self.clients[name]) is None:
            raise GoneError
        return [(service, []) for service in services]

    def get_namespace(self) -> str:
        return "/"

    def count_subscribers(self, topic: str) -> int:
        return self.listeners

    def create_timer(self, seconds: float, callback: Callable[[], None]) -> None:
        """Timers are not called here."""

    def joints(self, **positions: float) -> None:
        """A joint state with these positions, and no others."""
        stamp = SimpleNamespace(sec=self.bench.now // 10**9, nanosec=self.bench.now % 10**9)
        names, values = list(positions), list(positions.values())
        said = SimpleNamespace(name=names, position=values, velocity=[], header=SimpleNamespace(stamp=stamp))
        self.heard[CONFIG.joint_states](said)

    def engage(self, pressed: bool) -> None:
        self.heard["~/takeover/engaged"](SimpleNamespace(data=pressed))

    def twist(self, z: float = 0.1, frame: str = "", stamp_ns: int = 0) -> None:
        still = SimpleNamespace(x=0.0, y=0.0, z=0.0)
        stamp = SimpleNamespace(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
        header = SimpleNamespace(frame_id=frame, stamp=stamp)
        moved = SimpleNamespace(linear=SimpleNamespace(x=0.0, y=0.0, z=z), angular=still)
        self.heard["~/takeover/twist"](SimpleNamespace(header=header, twist=moved))


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    kinds = {"geometry_msgs": ["TwistStamped"], "std_msgs": ["Bool", "Float64", "String"]}
    kinds["std_srvs"] = ["Trigger"]
    kinds["sensor_msgs"] = ["CompressedImage", "Image", "JointState"]
    for package, names in kinds.items():
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
        kind = "srv" if package == "std_srvs" else "msg"
        monkeypatch.setitem(sys.modules, f"{package}.{kind}", SimpleNamespace(**dict.fromkeys(names)))
    callbacks = SimpleNamespace(SubscriptionEventCallbacks=lambda **_: None)
    monkeypatch.setitem(sys.modules, "rclpy", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "rclpy.event_handler", callbacks)
    monkeypatch.setitem(sys.modules, "rclpy.node", SimpleNamespace(NodeNameNonExistentError=GoneError))
    for profile in ("sensor", "command", "event", "latched"):
        monkeypatch.setattr(qos, profile, lambda depth=1: depth)
    return Topics(Bench().run())


def test_messages_that_are_still_on_their_way_do_not_take_the_arm_again(topics: Topics) -> None:
    bench = topics.bench
    for _ in range(5):
        topics.engage(True)
        topics.twist()
        bench.step()
    assert bench.loop.state is ArmState.HUMAN
    assert bench.loop.release(bench.now).accepted
    for silence in (1, 1, 15, 1):  # a twist in a longer silence of the switch is no letting go
        bench.step(silence)
        topics.twist()
        topics.engage(True)
        assert bench.loop.state is ArmState.HOLDING
    topics.engage(False)
    topics.twist()
    topics.engage(True)
    assert bench.loop.state is ArmState.HUMAN


def test_a_silent_switch_lets_the_arm_rest_and_keeps_it(topics: Topics) -> None:
    bench = topics.bench
    for _ in range(5):
        topics.engage(True)
        topics.twist()
        bench.step()
    for _ in range(40):
        topics.twist()
        bench.step()
    assert bench.loop.state is ArmState.HUMAN
    assert bench.loop.runtime.gate.at_rest
    topics.engage(True)
    topics.twist()
    bench.step(2)
    assert not bench.loop.runtime.gate.at_rest
    assert not bench.fire(Event.RESUME)


def test_an_arm_whose_button_was_never_heard_is_not_armed(topics: Topics) -> None:
    bench, context = topics.bench, topics.context
    for event in (Event.HOLD, Event.DISARM):
        assert bench.fire(event)
    topics.joints(**FINGERS)
    operator = Operator(context, topics.inputs)
    operator.active = True
    context.config = replace(CONFIG, has_button=True)
    context.inference = SimpleNamespace(report=InferenceReport())
    assert "no button is heard on /emergency_stop" in operator.fire(Event.ARM)
    check = _stop(context, topics.inputs)
    assert (check.name, check.passed) == (STOP, False)
    assert "press it once" in check.detail
    topics.publishers["/emergency_stop"] = ["deploy", "button"]
    topics.button(False)
    assert _stop(context, topics.inputs).passed
    assert operator.fire(Event.ARM) == ""


@pytest.mark.parametrize("named", [True, False])
def test_an_arm_whose_button_is_gone_holds_until_it_is_heard_again(topics: Topics, named: bool) -> None:
    """The bridge's own node and the one of `deploy` are no buttons. Old versions of ROS do not name publishers."""
    bench, context, button = topics.bench, topics.context, ["embodied_rl", "deploy", "button"]
    context.config, context.inference = replace(CONFIG, has_button=True), SimpleNamespace(report=InferenceReport())
    context.observations.instruction, topics.named = "open the drawer", named
    operator = Operator(context, topics.inputs)
    topics.publishers["/emergency_stop"] = button[1:]
    topics.button(False)
    topics.inputs.watch()
    bench.step()
    assert bench.loop.state is ArmState.RUNNING
    topics.publishers["/emergency_stop"] = button[:2] if named else ["deploy"]
    topics.inputs.watch()
    tick = bench.step().tick
    assert bench.loop.state is ArmState.HOLDING
    (fault,) = tick.faults
    assert fault.kind == "emergency_stop"
    assert "gone: start it again" in fault.detail or not named
    bench.step(30)
    assert fault.detail in operator.fire(Event.RESUME)
    assert not _stop(context, topics.inputs).passed
    topics.publishers["/emergency_stop"] = ["deploy", "new" if named else "button"]
    assert fault.detail in operator.fire(Event.RESUME), "it must be heard"
    topics.button(False, "new")
    assert operator.fire(Event.RESUME) == ""


def test_each_button_has_a_bit_of_its_own(topics: Topics) -> None:
    """The broken variant has one for all: the second button's 'let out' frees the first one."""
    bench, said = topics.bench, list[bool]()
    bench.loop.events.subscribe(lambda one: said.append(one.pressed) if isinstance(one, ButtonMoved) else None)
    topics.publishers["/emergency_stop"] = ["left", "right"]
    for name in ("left", "right"):
        topics.button(False, name)
    topics.button(True, "left")
    assert bench.loop.state is ArmState.ESTOPPED
    topics.button(True, "right")
    topics.button(False, "right")
    refused = bench.loop.fire(Event.RESET, bench.now)
    assert (refused.accepted, refused.reason) == (False, "the emergency stop is still pressed: left")
    assert [one["name"] for one in topics.inputs.buttons.report if one["pressed"]] == ["left"]
    topics.publishers["/emergency_stop"] = ["right"]  # its cable is pulled while it is pressed
    topics.inputs.watch()
    topics.button(False, "right")
    assert not bench.fire(Event.RESET)
    topics.publishers["/emergency_stop"] = ["right", "left again"]
    bench.step()
    topics.button(False, "left again")
    assert bench.fire(Event.RESET)
    assert said == [True, True, False]


def test_a_press_is_heard_once_though_three_subscriptions_hear_it(topics: Topics) -> None:
    bench = topics.bench
    topics.button(False, number=1)
    topics.button(True, number=2)
    topics.button(False, number=3)
    topics.button(True, number=2)  # the same press, by a subscription that is late
    assert bench.loop.runtime.buttons.pressed == ()
    assert bench.fire(Event.RESET)


def test_a_button_that_repeats_and_falls_silent_holds_the_arm(topics: Topics) -> None:
    bench, context = topics.bench, topics.context
    topics.publishers["/emergency_stop"] = ["button"]
    for _ in range(20):
        topics.button(False)
        bench.step(5)  # ten times a second
    assert "button repeats 10 times a second: 0.5 s of silence hold the arm" in _stop(context, topics.inputs).detail
    bench.step(20)
    assert bench.loop.state is ArmState.RUNNING
    tick = bench.step(2).tick
    assert bench.loop.state is ArmState.HOLDING
    assert [fault.kind for fault in tick.faults] == ["emergency_stop"]
    assert "button repeats and is silent for 0.5" in tick.faults[0].detail
    assert not bench.fire(Event.RESUME)
    assert "is silent" in _stop(context, topics.inputs).detail
    topics.button(False)
    assert bench.fire(Event.RESUME)


def test_a_button_of_another_kind_is_a_fault(topics: Topics) -> None:
    topics.kind, topics.publishers["/emergency_stop"] = "std_msgs/msg/Int8", ["cell"]
    topics.inputs.watch()
    (fault,) = topics.bench.step().tick.faults
    assert fault.detail.startswith("cell as std_msgs/msg/Int8 on /emergency_stop: publish std_msgs/msg/Bool")
    assert _stop(topics.context, topics.inputs).detail == fault.detail


def test_buttons_that_this_ros_cannot_tell_apart_are_a_fault(topics: Topics) -> None:
    topics.named, topics.publishers["/emergency_stop"] = False, ["deploy", "left", "right"]
    topics.button(False)
    topics.inputs.watch()
    (fault,) = topics.bench.step().tick.faults
    assert fault.detail.startswith("left, right publish /emergency_stop, and this ROS does not say whose a message is")


def test_a_second_button_is_pressed_once_before_the_arm_is_armed(topics: Topics) -> None:
    context = topics.context
    context.config, topics.publishers["/emergency_stop"] = replace(CONFIG, has_button=True), ["left", "_tool", "right"]
    topics.button(False, "left")
    assert topics.inputs.buttons.unheard.startswith("right publishes /emergency_stop and was not heard: press its")
    topics.button(False, "right")
    assert topics.inputs.buttons.unheard == ""


@pytest.mark.parametrize("topic", [CONFIG.arm.topic, CONFIG.gripper.topic if CONFIG.gripper else ""])
@pytest.mark.parametrize("name", ["moveit", "embodied_rl"])
def test_somebody_else_who_commands_the_arm_in_mid_run_holds_it(topics: Topics, topic: str, name: str) -> None:
    bench = topics.bench
    topics.publishers |= {CONFIG.arm.topic: ["embodied_rl"], CONFIG.gripper.topic if CONFIG.gripper else "": []}
    topics.inputs.watch()
    bench.step()
    assert bench.loop.state is ArmState.RUNNING
    topics.publishers[topic] = ["embodied_rl", name]
    topics.inputs.watch()
    (fault,) = bench.step().tick.faults
    assert bench.loop.state is ArmState.HOLDING
    assert (fault.kind, fault.detail) == ("commands", f"{name} also publishes {topic}: stop it")
    assert fault.detail in bench.loop.fire(Event.RESUME, bench.now).reason
    topics.publishers[topic] = ["embodied_rl"]
    topics.inputs.watch()
    assert bench.fire(Event.RESUME)


def test_who_sends_goals_to_the_same_controller_holds_the_arm(topics: Topics) -> None:
    """A trajectory controller obeys its topic and its action; nodes may end while they are asked."""
    bench, action = topics.bench, "/joint_trajectory_controller/follow_joint_trajectory"
    topics.clients |= {"ended": None, "other": ["/somewhere/_action/send_goal"]}
    topics.inputs.watch()
    bench.step()
    assert bench.loop.state is ArmState.RUNNING
    topics.clients["move_group"] = [f"{action}/_action/send_goal"]
    topics.inputs.watch()
    (fault,) = bench.step().tick.faults
    assert bench.loop.state is ArmState.HOLDING
    assert (fault.kind, fault.detail) == ("commands", f"move_group also sends goals to {action}: stop it")


@pytest.mark.parametrize("adapter", ["joint_trajectory_action", "joint_trajectory"])
def test_the_topic_beside_an_action_is_looked_at_and_the_action_beside_a_topic(adapter: str, topics: Topics) -> None:
    folder = "/joint_trajectory_controller"
    names = {
        "joint_trajectory": f"{folder}/joint_trajectory",
        "joint_trajectory_action": f"{folder}/follow_joint_trajectory",
    }
    config = replace(CONFIG, arm=ArmTopic(adapter, names[adapter]), gripper=None)
    topics.clients["ended"] = None
    topics.clients["embodied_rl"] = [f"{names[adapter]}/_action/send_goal"] if config.arm.goals else []
    topics.publishers = {} if config.arm.goals else {names[adapter]: ["embodied_rl"]}
    assert other_commanders(topics, config) == ""
    if config.arm.goals:
        topics.publishers = {names["joint_trajectory"]: ["rqt"]}
        assert other_commanders(topics, config) == f"rqt also publishes {names['joint_trajectory']}: stop it"
    else:
        topics.clients["rqt"] = [f"{names['joint_trajectory_action']}/_action/send_goal"]
        wanted = f"rqt also sends goals to {names['joint_trajectory_action']}: stop it"
        assert other_commanders(topics, config) == wanted


def test_an_arm_that_is_refused_is_told_which_faults_and_that_an_instruction_is_missing(topics: Topics) -> None:
    bench, context = topics.bench, topics.context
    for event in (Event.HOLD, Event.DISARM):
        assert bench.fire(event)
    topics.joints(**FINGERS)
    context.inference, context.observations.instruction = SimpleNamespace(report=InferenceReport()), ""
    operator = Operator(context, topics.inputs)
    operator.active = True
    bench.now += 10**9
    bench.loop.joint_states(ROBOT.limits.names, bench.angles, bench.now)
    refused = operator.fire(Event.ARM)
    assert "arm is not possible while a watchdog reports faults: camera: front: 1.000 s old, at most" in refused
    assert "; policy: 1.000 s old" in refused
    assert refused.endswith("; there is no instruction yet: publish one to ~/instruction")
    context.observations.instruction = "open the drawer"
    assert "instruction" not in operator.fire(Event.ARM)


@pytest.mark.parametrize("switch_first", [True, False])
def test_repeating_the_switch_says_nothing_of_the_twist(topics: Topics, switch_first: bool) -> None:
    """The broken variant stops the arm at each repetition."""
    bench, before = topics.bench, topics.bench.tool
    topics.engage(True)
    for _ in range(50):
        if switch_first:
            topics.engage(True)
        topics.twist()
        if not switch_first:
            topics.engage(True)
        bench.step()
    assert bench.tool[2] - before[2] == pytest.approx(0.1, abs=0.02)


def test_a_switch_without_a_device_moves_nothing(topics: Topics) -> None:
    bench = topics.bench
    topics.engage(True)
    topics.twist()
    bench.step(3)
    for _ in range(30):
        topics.engage(True)
        bench.step()
    assert (bench.loop.state, bench.loop.runtime.gate.at_rest) == (ArmState.HUMAN, True)


def test_a_twist_beyond_all_measure_moves_nothing_and_is_told(topics: Topics) -> None:
    topics.engage(True)
    topics.twist(1e200)
    topics.bench.step(5)
    assert topics.inputs.twist_problem == "the takeover's twist asks for 1e+200: at most 10 m/s and rad/s"
    assert topics.bench.loop.runtime.gate.at_rest


def test_another_machines_joints_on_the_topic_are_no_problem(topics: Topics) -> None:
    flow = topics.inputs.flows["joint_states"]
    topics.joints(wheel=0.0)
    assert flow.problem == "none of the arm's joints among wheel"
    arm = dict(zip(ROBOT.limits.names, topics.bench.angles, strict=True))
    for _ in range(5):
        topics.bench.now += 10_000_000
        topics.joints(**arm)
        topics.joints(wheel=0.0)
        assert flow.problem == ""
    assert flow.rate_hz(topics.bench.now) == pytest.approx(100)
    topics.joints(**dict(list(arm.items())[:3]))
    assert flow.problem.startswith("names: no ")


def test_a_flow_is_asked_in_one_thread_while_messages_come_in_another() -> None:
    """The broken variant ends the bridge now and then: its deque is changed while somebody looks through it."""
    flow, stopping, before = Flow(), threading.Event(), sys.getswitchinterval()

    def come() -> None:
        now = 1
        while not stopping.is_set():
            now += 1
            flow.note(now, now - 1)

    thread = threading.Thread(target=come)
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        for _ in range(2000):
            assert flow.rate_hz(0) >= 0
            assert flow.heard(1) in (True, False)
            assert np.isnan(flow.age_ms) or flow.age_ms == pytest.approx(1e-6)
    finally:
        sys.setswitchinterval(before)
        stopping.set()
        thread.join()


def test_an_arm_that_has_no_button_is_armed_without(topics: Topics) -> None:
    bench = topics.bench
    for event in (Event.HOLD, Event.DISARM):
        assert bench.fire(event)
    topics.context.inference = SimpleNamespace(report=InferenceReport())
    topics.joints(**FINGERS)
    operator = Operator(topics.context, topics.inputs)
    operator.active = True
    assert operator.fire(Event.ARM) == ""
    assert "there is no button" in _stop(topics.context, topics.inputs).detail


def test_an_arm_whose_fingers_are_not_heard_is_not_armed(topics: Topics) -> None:
    bench, context = topics.bench, topics.context
    for event in (Event.HOLD, Event.DISARM):
        assert bench.fire(event)
    context.inference = SimpleNamespace(report=InferenceReport())
    operator = Operator(context, topics.inputs)
    operator.active = True
    one, two = FINGERS
    for said, missing in (
        ({}, f"{one}, {two}"),
        ({one: 0.03}, two),
        ({one: 0.03, two: float("nan")}, two),
        ({"other_joint": 0.0}, two),
    ):
        topics.joints(**said)
        assert operator.fire(Event.ARM).startswith(f"{missing}: no finite position comes on /joint_states: start")
        (check,) = _gripper(context, topics.inputs)
        assert (check.name, check.passed, check.detail) == ("gripper", False, topics.inputs.missing_fingers())
        assert "ros.gripper.fingers" in check.detail
    topics.joints(**FINGERS)
    (check,) = _gripper(context, topics.inputs)
    assert (check.passed, check.detail) == (True, f"{one}, {two} on /joint_states")
    assert operator.fire(Event.ARM) == ""
    bench.now += 3_000_000_000
    assert "no finite position comes" in topics.inputs.missing_fingers(), "a driver that has ended"


def test_an_arm_without_a_gripper_needs_no_fingers(topics: Topics) -> None:
    topics.context.config = replace(CONFIG, gripper=None)
    assert topics.inputs.missing_fingers() == ""
    (check,) = _gripper(topics.context, topics.inputs)
    assert (check.passed, "moves nothing" in check.detail) == (True, True)


def test_a_finger_that_is_not_finite_leaves_the_one_before(topics: Topics) -> None:
    topics.joints(**FINGERS)
    topics.joints(**{name: float("nan") for name in FINGERS})
    topics.bench.loop.joint_states(ROBOT.limits.names, topics.bench.angles, topics.bench.now + 1)
    measured = topics.bench.loop.measured(topics.bench.now + 1)
    assert measured is not None
    assert measured.fingers == (0.03, -0.03)


def test_a_twist_of_another_frame_moves_nothing_and_is_told(topics: Topics) -> None:
    bench = topics.bench
    for frame, stands in (("camera_link", True), (ROBOT.base_frame, False), ("", False), ("camera_link", True)):
        for _ in range(40):
            topics.engage(True)
            topics.twist(0.02, frame)
            bench.step()
        assert bench.loop.runtime.gate.at_rest == stands
        assert ("send it in robot0_link0" in topics.inputs.twist_problem) == stands
    assert bench.loop.state is ArmState.HUMAN


def test_a_twist_that_is_old_moves_nothing(topics: Topics) -> None:
    bench = topics.bench
    for age_ms, stands in ((150, True), (90, False), (150, True)):
        for _ in range(40):
            topics.engage(True)
            topics.twist(0.02, stamp_ns=bench.now - age_ms * 1_000_000)
            bench.step()
        assert bench.loop.runtime.gate.at_rest == stands
        assert ("150 ms old" in topics.inputs.twist_problem) == stands


class Status(SimpleNamespace):
    """A DiagnosticStatus."""

    OK, WARN, ERROR = 0, 1, 2


@pytest.mark.parametrize(("problem", "level", "words"), [("", 0, "human"), ("the twist is wrong", 1, "is wrong")])
def test_diagnostics_warn_of_a_twist_that_is_not_used(problem: str, level: int, words: str) -> None:
    reporter: Any = Reporter.__new__(Reporter)
    said = list[Any]()
    reporter.status = lambda: {"state": "human", "faults": [], "warnings": [problem] if problem else []}
    reporter._status, reporter._pair = Status, SimpleNamespace
    stamp = SimpleNamespace(sec=0, nanosec=0)
    reporter._array = lambda status: SimpleNamespace(status=status, header=SimpleNamespace(stamp=stamp))
    reporter._context = SimpleNamespace(clock=SimpleNamespace(ros_ns=lambda: 0))
    reporter._diagnostics = SimpleNamespace(publish=said.append)
    reporter._publish_diagnostics()
    (status,) = said[0].status
    assert status.level == level
    assert words in status.message


@pytest.mark.parametrize("state", [ArmState.RUNNING, ArmState.HOLDING, ArmState.HUMAN])
def test_nobody_changes_the_instruction_in_the_middle_of_an_episode(topics: Topics, state: ArmState) -> None:
    bench, seen = topics.bench, topics.context.observations
    seen.instruction = "open the drawer"
    if state is ArmState.HOLDING:
        assert bench.fire(Event.HOLD)
    elif state is ArmState.HUMAN:
        topics.engage(True)
    assert bench.loop.state is state
    topics.heard["~/instruction"](SimpleNamespace(data="throw the mug"))
    assert seen.instruction == "open the drawer"
    assert topics.inputs.instruction_problem == (
        f"the instruction 'throw the mug' is not taken while the arm is {state}: disarm it"
    )
    topics.heard["~/instruction"](SimpleNamespace(data="open the drawer "))
    assert topics.inputs.instruction_problem == ""
    bench.loop.button(True, bench.now)
    topics.heard["~/instruction"](SimpleNamespace(data="turn on the stove"))
    assert (seen.instruction, topics.inputs.instruction_problem) == ("turn on the stove", "")


def test_an_arm_to_which_no_controller_listens_any_more_holds(topics: Topics) -> None:
    bench = topics.bench
    topics.inputs.watch()
    bench.step()
    assert bench.loop.state is ArmState.RUNNING
    topics.listeners = 0
    topics.inputs.watch()
    bench.step()
    assert bench.loop.state is ArmState.HOLDING
    (fault,) = [fault for fault in bench.outputs[-1].tick.faults if fault.kind == "commands"]
    assert fault.detail == f"nobody listens to {CONFIG.arm.topic}: is the controller active?"
    topics.listeners = 1
    topics.inputs.watch()
    assert bench.step().tick.faults == ()


@pytest.mark.parametrize("position", [0.8, 30.0, 0.05])
def test_a_width_that_cannot_be_is_a_fault_by_name(topics: Topics, position: float) -> None:
    """Fingers in another unit, or a knuckle's angle in place of a width."""
    one, two = FINGERS
    topics.joints(**FINGERS)
    topics.inputs.watch()
    assert topics.bench.loop.runtime.watchdog.faults(topics.bench.now) == ()
    topics.joints(**{one: position, two: -position})
    topics.inputs.watch()
    (fault,) = topics.bench.loop.runtime.watchdog.faults(topics.bench.now)
    assert (fault.kind, fault.detail) == ("gripper", topics.inputs.missing_fingers())
    assert f"measured {2 * position:g} m apart, gripper.position is 0 to 0.08 m" in fault.detail
    topics.bench.step()
    assert topics.bench.loop.state is ArmState.HOLDING


def test_a_finger_that_occurs_twice_is_refused(topics: Topics) -> None:
    one, _ = FINGERS
    stamp = SimpleNamespace(sec=topics.bench.now // 10**9, nanosec=topics.bench.now % 10**9)
    said = SimpleNamespace(name=[one, one], position=[0.03, 0.01], velocity=[], header=SimpleNamespace(stamp=stamp))
    topics.heard[CONFIG.joint_states](said)
    assert topics.inputs.flows["joint_states"].problem == f"names: {one} twice in a message: publish each joint once"
    assert one in topics.inputs.missing_fingers()

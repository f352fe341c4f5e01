"""What the bridge hears of a person, without ROS: messages are plain objects, topics are functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.inputs import Inputs
from tests.real_robot.ros2.bench import CONFIG, ROBOT, Bench


class Topics:
    """A node's subscriptions, the station behind them, and a clock that is the bench's."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.heard = bench, dict[str, Callable[[Any], None]]()
        clock = SimpleNamespace(now_ns=lambda: bench.now, own_ns=lambda stamp_ns: stamp_ns)
        self.station: Any = SimpleNamespace(
            session=SimpleNamespace(node=self), config=CONFIG, robot=ROBOT, loop=bench.loop, clock=clock,
            observations=SimpleNamespace(cameras=["front"]), options=SimpleNamespace(mode="live"),
        )  # fmt: skip
        self.inputs = Inputs(self.station, SimpleNamespace(say=lambda *_: None))  # type: ignore[arg-type]

    def create_subscription(self, kind: Any, topic: str, callback: Callable[[Any], None], profile: Any) -> None:
        self.heard[topic] = callback

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
    kinds["sensor_msgs"] = ["CompressedImage", "Image", "JointState"]
    for package, names in kinds.items():
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
        monkeypatch.setitem(sys.modules, f"{package}.msg", SimpleNamespace(**dict.fromkeys(names)))
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

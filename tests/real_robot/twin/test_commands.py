"""What the twin's controllers take: their own joints, finite numbers; anything else is left out with a line."""

from __future__ import annotations

from collections import deque
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.real_robot.ros2.messages import MessageError
from embodied_rl.real_robot.twin.node import TwinNode, points_of

NAMES = ["a", "b"]
NOW = 5_000_000_000


def at(ns: int) -> Any:
    return SimpleNamespace(sec=ns // 10**9, nanosec=ns % 10**9)


def trajectory(names: list[str], *rows: tuple[list[float], list[float]], stamp_ns: int = 0) -> Any:
    points = [SimpleNamespace(positions=q, velocities=v, time_from_start=at(10 * i)) for i, (q, v) in enumerate(rows)]
    return SimpleNamespace(joint_names=names, points=points, header=SimpleNamespace(stamp=at(stamp_ns)))


def test_points_are_in_the_arms_order() -> None:
    first, second = points_of(trajectory(["b", "a"], ([1, 2], [3, 4]), ([5, 6], [])), NAMES, NOW)
    np.testing.assert_array_equal([first.positions, first.velocities], [[2, 1], [4, 3]])
    np.testing.assert_array_equal([second.positions, second.velocities], [[6, 5], [0, 0]])
    assert (first.time_ns, second.time_ns) == (NOW, NOW + 10)
    assert points_of(trajectory(NAMES, ([1, 2], []), stamp_ns=7), NAMES, NOW)[0].time_ns == 7


WRONG = [
    (trajectory(["a"], ([1], [])), "its joints are a, not a, b"),
    (trajectory(["a", "c"], ([1, 2], [])), "its joints are a, c"),
    (trajectory(["a", "b", "b"], ([1, 2, 3], [])), "its joints are a, b, b"),
    (trajectory(NAMES, ([1], [])), "a point has other than a finite"),
    (trajectory(NAMES, ([1, float("nan")], [])), "a point has other than a finite"),
    (trajectory(NAMES, ([1, 2], [1])), "a point has other than a finite"),
]


@pytest.mark.parametrize(("message", "words"), WRONG)
def test_a_trajectory_of_something_else_is_refused(message: Any, words: str) -> None:
    with pytest.raises(MessageError, match=words):
        points_of(message, NAMES, NOW)


def test_the_twin_goes_on_after_commands_of_something_else() -> None:
    twin, lines = TwinNode.__new__(TwinNode), list[str]()
    log = SimpleNamespace(warning=lines.append)
    twin._session = SimpleNamespace(node=SimpleNamespace(get_logger=lambda: log))  # type: ignore[assignment]
    twin._clock, twin.options = SimpleNamespace(ros_ns=lambda: NOW), SimpleNamespace(command_latency_s=0.0)  # type: ignore[assignment]
    twin._names, twin._lock, twin._commands, twin._deaf = NAMES, Lock(), deque(), False
    for message, _ in WRONG:
        twin._trajectory(message)
    for data in ([], [float("nan")]):
        twin._gripper(SimpleNamespace(data=data))
    assert len(lines) == len(WRONG) + 2
    assert not twin._commands
    twin._trajectory(trajectory(NAMES, ([1, 2], [])))
    twin._gripper(SimpleNamespace(data=[0.02]))
    assert [due for due, _ in twin._commands] == [NOW, NOW]

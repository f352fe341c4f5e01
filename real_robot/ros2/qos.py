"""Quality of service: newest first for what moves, nothing lost for what decides."""

from __future__ import annotations

from typing import Any


def sensor(depth: int = 1) -> Any:
    """Joint states and pictures: the newest counts, a lost one is not sent again."""
    from rclpy.qos import QoSProfile, ReliabilityPolicy

    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.BEST_EFFORT)


def command(depth: int = 1) -> Any:
    """Set points and targets: reliable, as controllers subscribe; only the newest is kept."""
    from rclpy.qos import QoSProfile, ReliabilityPolicy

    return QoSProfile(depth=depth, reliability=ReliabilityPolicy.RELIABLE)


def event(depth: int = 50) -> Any:
    """Buttons, takeovers and reports: reliable, all of them."""
    return command(depth)


def latched() -> Any:
    """What whoever comes later must know: the newest is kept for it."""
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

    return QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def alive(liveliness: Any, lease_ns: int) -> Any:
    """Of publishers that offer to show, by `liveliness`, that they live: middleware notices where one does not."""
    from rclpy.duration import Duration
    from rclpy.qos import QoSProfile, ReliabilityPolicy

    lease = Duration(nanoseconds=lease_ns)
    return QoSProfile(
        depth=50, reliability=ReliabilityPolicy.BEST_EFFORT, liveliness=liveliness, liveliness_lease_duration=lease
    )

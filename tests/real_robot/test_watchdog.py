"""The watchdog's limits, to the nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.real_robot.core.watchdog import Watchdog, WatchdogLimits

LIMITS = WatchdogLimits(
    camera_age_s=0.2, joint_state_age_s=0.05, policy_silence_s=0.3, tick_jitter_s=0.004, tracking_error=0.2
)
MS, TICK = 1_000_000, 10_000_000


def healthy(now_ns: int = 0) -> Watchdog:
    watchdog = Watchdog(LIMITS, TICK, ["wrist", "front"], window=5)
    for source in ("wrist", "front", watchdog.JOINT_STATES):
        watchdog.observed(source, now_ns)
    watchdog.heartbeat(now_ns)
    return watchdog


def kinds(watchdog: Watchdog, now_ns: int) -> list[str]:
    return [fault.kind for fault in watchdog.faults(now_ns)]


def test_everything_must_have_come_once() -> None:
    faults = Watchdog(LIMITS, TICK, ["wrist"]).faults(0)
    assert [(fault.kind, fault.detail) for fault in faults] == [
        ("camera", "wrist: none yet"),
        ("joint_states", "none yet"),
        ("policy", "none yet"),
    ]
    assert healthy().faults(0) == ()


@pytest.mark.parametrize(
    ("source", "kind", "limit_ms"),
    [
        ("wrist", "camera", 200),
        ("front", "camera", 200),
        ("joint_states", "joint_states", 50),
        ("policy", "policy", 300),
    ],
)
def test_each_source_has_its_age(source: str, kind: str, limit_ms: int) -> None:
    watchdog, now = healthy(), limit_ms * MS
    for other in {"wrist", "front", "joint_states", "policy"} - {source}:
        watchdog.observed(other, now)
    assert kinds(watchdog, now) == []
    late = watchdog.faults(now + 1)
    assert [fault.kind for fault in late] == [kind]
    assert f"{limit_ms / 1000:.3f}" in late[0].detail
    watchdog.observed(source, now)
    assert kinds(watchdog, now + 1) == []


def test_an_old_stamp_does_not_replace_a_newer_one() -> None:
    watchdog = healthy(now_ns=100 * MS)
    watchdog.observed("wrist", 0)
    assert kinds(watchdog, 100 * MS) == []


def test_a_stamp_from_the_future_is_a_fault() -> None:
    watchdog = healthy()
    watchdog.observed("wrist", 201 * MS)
    assert [fault.detail[:35] for fault in watchdog.faults(0)] == ["wrist: stamped 0.201 s in the future"[:35]]


@pytest.mark.parametrize(("source", "named"), [("wrist", "wrist: "), ("joint_states", "")])
def test_a_clock_that_is_ahead_is_a_fault_until_a_right_stamp_comes(source: str, named: str) -> None:
    watchdog = healthy()
    assert watchdog.observed(source, 100 * MS, now_ns=0) == ""
    assert kinds(watchdog, 0) == []
    refused = watchdog.observed(source, 3_600_000 * MS, now_ns=10 * MS)
    assert refused == "stamped 3599.990 s in the future: the computers' clocks differ, keep them together (chrony)"
    assert [fault.detail for fault in watchdog.faults(10 * MS)] == [f"{named}{refused}"]
    assert watchdog.observed(source, 20 * MS, now_ns=20 * MS) == ""
    assert kinds(watchdog, 20 * MS) == []


def test_a_stamp_a_little_ahead_is_fresh_no_longer_than_one_of_now() -> None:
    watchdog = healthy()
    watchdog.observed("joint_states", 60 * MS, now_ns=10 * MS)
    assert kinds(watchdog, 60 * MS) == []
    assert kinds(watchdog, 61 * MS) == ["joint_states"]


def test_an_unknown_source_is_an_error() -> None:
    with pytest.raises(KeyError):
        healthy().observed("side", 0)


def test_a_tick_out_of_time_counts_for_a_while() -> None:
    watchdog, now = healthy(), 0
    watchdog.observed(watchdog.JOINT_STATES, 50 * MS)
    watchdog.tick(now)
    for length in (10, 14, 6, 10):
        now += length * MS
        watchdog.tick(now)
        assert kinds(watchdog, now) == []
    now += 15 * MS
    assert kinds(watchdog, now) == ["jitter"], "while the tick is overdue"
    watchdog.tick(now)
    for _ in range(4):
        assert kinds(watchdog, now) == ["jitter"]
        now += TICK
        watchdog.tick(now)
        watchdog.observed(watchdog.JOINT_STATES, now)
    now += TICK
    watchdog.tick(now)
    assert kinds(watchdog, now) == []


@pytest.mark.parametrize("error", [0.2001, float("nan")])
def test_an_arm_that_did_not_follow_is_held_until_its_set_point_begins_anew(error: float) -> None:
    watchdog = healthy()
    watchdog.tracked(0.2)
    assert kinds(watchdog, 0) == []
    watchdog.tracked(error)
    first = watchdog.faults(0)
    watchdog.tracked(0.0)
    assert watchdog.faults(0) == first, "an error that shrinks again says nothing of what stopped the arm"
    assert [fault.kind for fault in first] == ["tracking"]
    watchdog.track_anew()
    assert kinds(watchdog, 0) == []


@pytest.mark.parametrize("lag_ms", [60, 90])
def test_an_arm_may_take_a_moment_to_start(lag_ms: int) -> None:
    """20 rad/s^2 are 0.05 rad after 71 ms: an arm that follows so much later is none that stands still."""
    watchdog = healthy()
    for now in range(0, 400, 10):
        asked, at = (10 * max(0.0, ms / 1000) ** 2 for ms in (now, now - lag_ms))
        watchdog.compare(["a", "b"], np.array([at, 0.0]), np.array([asked, 0.0]), now * MS)
    assert watchdog.lost_track == ""


@pytest.mark.parametrize("frozen_ms", [0, 100])
def test_a_joint_that_is_measured_where_it_was_is_found(frozen_ms: int) -> None:
    watchdog, speed = healthy(), 1.0
    for now in range(0, 400, 10):
        at = speed * min(now, frozen_ms) / 1000
        watchdog.compare(["a", "b"], np.array([0.0, at]), np.array([0.0, speed * now / 1000]), now * MS)
        if watchdog.lost_track:
            break
    assert watchdog.frozen
    assert now - frozen_ms == (100 if frozen_ms == 0 else 60)
    assert watchdog.lost_track.startswith("b is measured where it was, its set point 0.")


def test_a_joint_may_rest_for_ever_where_its_set_point_does() -> None:
    watchdog = healthy()
    for now in range(0, 5000, 10):
        watchdog.compare(["a"], np.zeros(1), np.full(1, 0.04 * (now % 100) / 100), now * MS)
    assert watchdog.lost_track == ""

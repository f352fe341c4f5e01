"""Who asks the policy: when, about what, and what becomes of answers that come late, wrong or not at all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from embodied_rl.evaluation.detector import Sight
from embodied_rl.real_robot.client import PolicyServerError
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2 import inference_client
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.events import (
    ChunkDecided,
    ObservationTaken,
    ObservationWatched,
    PolicyServed,
    StateChanged,
)
from embodied_rl.real_robot.ros2.inference_client import InferenceClient, InferenceConfig
from embodied_rl.real_robot.ros2.observations import Observations
from embodied_rl.real_robot.ros2.operator import Operator
from embodied_rl.real_robot.ros2.options import JOIN_S, BridgeOptions
from embodied_rl.real_robot.ros2.policy_health import policy_problem
from embodied_rl.real_robot.ros2.proprio import Proprio
from tests.real_robot.ros2.bench import CONFIG, ROBOT, Bench

SIZES = {"cameras": 1, "proprio_dim": 8, "chunk_len": 8, "action_dim": 7}
METADATA: dict[str, Any] = {**SIZES, "instruction": True, "weights": "w", "policy": "p"}

IMAGE = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)


class Server:
    """Answers with the number of the question; `open` lets answers out."""

    def __init__(self) -> None:
        self.metadata: dict[str, Any] = METADATA
        self.questions: list[dict[str, Any]] = []
        self.says: dict[str, Any] = {}
        self.open, self.refuses, self.shape = threading.Event(), False, (8, 7)
        self.open.set()

    def infer(self, obs: dict[str, Any]) -> dict[str, Any]:
        self.questions.append(obs)
        self.open.wait(900)
        if self.refuses:
            raise PolicyServerError("no")
        return {"actions": np.full(self.shape, len(self.questions) / 10)} | self.says

    def close(self) -> None:
        """Nothing to close."""


class Robot:
    """A loop in real time's stamps, an observer, and a server."""

    def __init__(self, horizon: int = 8, server: dict[str, Any] | None = None, **config: Any) -> None:
        self.bench, self.server, self.clock = Bench(horizon=horizon), Server(), Clock()
        self.server.metadata = METADATA | (server or {})
        self.observations = Observations(self.bench.loop, ["front"], Proprio(ROBOT.chain, CONFIG.base))
        self.observations.instruction = "open the drawer"
        self.inference = InferenceClient(
            self.bench.loop, self.observations, [self.server], self.clock, InferenceConfig(**config)
        )
        self.inference.start()

    def look(self) -> int:
        now_ns = self.clock.now_ns()
        self.bench.loop.joint_states(ROBOT.limits.names, ROBOT.home, now_ns)
        self.observations.image("front", IMAGE, now_ns, now_ns)
        return now_ns

    def chunks(self, count: int) -> list[ChunkDecided]:
        """The answers, once there are so many."""
        for _ in range(30_000):
            found = [event for event in self.bench.events if isinstance(event, ChunkDecided)]
            if len(found) >= count:
                return found
            time.sleep(0.01)
        raise AssertionError("no answer")


@pytest.fixture
def robot() -> Any:
    made = Robot()
    yield made
    made.server.open.set()
    made.inference.close()


def test_a_chunk_belongs_to_the_time_of_its_observation(robot: Robot) -> None:
    stamp = robot.look()
    chunk = robot.chunks(1)[0]
    assert (chunk.observed_ns, chunk.policy, chunk.receipt.accepted) == (stamp, "w", True)
    question = robot.server.questions[0]
    assert (question["instruction"], question["decision"], len(question["images"])) == ("open the drawer", 0, 1)
    taken = next(event for event in robot.bench.events if isinstance(event, ObservationTaken))
    assert taken.stamp_ns == stamp


def test_nothing_is_asked_twice_about_one_picture(robot: Robot) -> None:
    robot.look()
    robot.chunks(1)
    robot.bench.loop.forget_chunks()
    time.sleep(0.15)
    assert len(robot.server.questions) == 1


def test_an_answer_to_the_episode_before_is_thrown_away(robot: Robot) -> None:
    robot.server.open.clear()
    robot.look()
    while not robot.server.questions:
        time.sleep(0.01)
    robot.inference.new_episode(5)
    robot.server.open.set()
    stamp = robot.look()
    assert [chunk.observed_ns for chunk in robot.chunks(1)] == [stamp]
    assert (robot.server.questions[1]["seed"], robot.server.questions[1]["decision"]) == (5, 0)


def test_a_flow_policy_is_told_what_is_planned() -> None:
    robot = Robot(horizon=1, continues=True)
    robot.look()
    robot.chunks(1)
    assert "prev_action_chunk" not in robot.server.questions[0], "nothing was planned"
    time.sleep(0.1)
    robot.look()
    chunk = robot.chunks(2)[1]
    question = robot.server.questions[1]
    planned = question["prev_action_chunk"]
    assert (planned.shape[1], planned.dtype) == (7, np.float32)
    assert 1 <= len(planned) < 8, "the first actions are past"
    assert (planned == np.float32(0.1)).all()
    assert question["inference_delay"] == chunk.frozen <= len(planned)
    robot.inference.close()


def test_a_picture_of_the_future_is_not_looked_at(robot: Robot) -> None:
    now_ns = robot.look()
    robot.observations.image("front", np.ones((8, 8, 3), np.uint8), now_ns + 3_600_000_000_000, now_ns)
    seen = robot.observations.take(now_ns)
    assert seen is not None
    assert (seen.stamp_ns, (seen.images["front"] == IMAGE).all()) == (now_ns, True)
    assert [fault.kind for fault in robot.bench.loop.runtime.watchdog.faults(now_ns)][:1] == ["camera"]
    stamp = robot.look()
    robot.bench.loop.forget_chunks()
    assert robot.chunks(1)
    later = robot.observations.take(stamp)
    assert later is not None
    assert later.stamp_ns == stamp, "it does not keep right ones out"
    ahead = robot.bench.loop.joint_states(ROBOT.limits.names, ROBOT.home, stamp + 200_000_000, stamp)
    assert ahead is not None
    assert ahead.kind == "stamp"


def test_a_policy_that_is_asked_seldom_is_silent_only_where_it_was_asked(robot: Robot) -> None:
    """Eight steps are 0.4 s, and an arm whose policy is silent for 0.2 s holds."""

    def silent() -> bool:
        return any(fault.kind == "policy" for fault in robot.bench.loop.runtime.watchdog.faults(robot.clock.now_ns()))

    def within(seconds: float, wanted: bool) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            robot.look()
            if silent() is wanted:
                return True
            time.sleep(0.01)
        return False

    assert robot.bench.loop.asks_seldom
    assert not Bench(horizon=2).loop.asks_seldom
    robot.look()
    robot.chunks(1)
    assert not within(0.3, True), "it has answered, and the next question is not due"
    robot.server.open.clear()
    assert within(900.0, True), "it does not answer"
    robot.server.refuses = True
    robot.server.open.set()
    assert not within(0.5, False), "an error is no sign of life"
    robot.server.refuses = False
    assert within(900.0, False)


def test_a_refusal_is_counted_and_asking_goes_on(robot: Robot) -> None:
    robot.server.refuses = True
    robot.look()
    while not robot.inference.report.errors:
        time.sleep(0.01)
    assert robot.inference.report.last_error == "no"
    robot.server.refuses = False
    robot.bench.loop.forget_chunks()
    robot.look()
    assert robot.chunks(1)


def runs(robot: Robot) -> None:
    """Bring the arm to run, with an answer to the last question."""
    for event in (Event.ARM, Event.START):
        now_ns = robot.look()
        robot.bench.loop.heartbeat(now_ns)
        assert robot.bench.loop.fire(event, now_ns).accepted
    robot.look()
    for _ in range(1000):
        time.sleep(0.1)
        if len(robot.chunks(1)) == len(robot.server.questions):
            return
    raise AssertionError("questions without an answer")


def within(robot: Robot, seconds: float, condition: Callable[[], bool]) -> bool:
    """Whether a condition comes to hold while pictures go on."""
    for _ in range(round(seconds / 0.01)):
        robot.look()
        if condition():
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("horizon", [2, 8])
def test_chunks_of_another_shape_make_the_arm_hold_and_say_why(horizon: int) -> None:
    """With a horizon of 8 the policy is asked seldom, and its silence is none where nobody asks."""
    robot = Robot(horizon=horizon)
    runs(robot)
    robot.server.shape = (3, 7)
    line = "actions (3, 7) instead of (8, 7)"
    assert within(robot, 60.0, lambda: robot.inference.report.last_error == line)
    policy = within(robot, 60.0, lambda: "policy" in kinds(robot))
    assert policy, "a chunk that is not used is no sign of life"
    said = policy_problem(robot.inference.report, robot.bench.loop, robot.clock.now_ns())
    assert within(robot, 60.0, lambda: robot.inference.report.unused >= 3)
    robot.server.shape = (8, 7)
    assert within(robot, 60.0, lambda: not robot.inference.report.last_error)
    assert within(robot, 60.0, lambda: "policy" not in kinds(robot))
    assert line in said
    robot.inference.close()


def test_what_ends_a_thread_is_told(robot: Robot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda told: None)
    robot.server.shape = cast(Any, "seven")
    assert within(robot, 60.0, lambda: isinstance(robot.inference.error, TypeError))


def kinds(robot: Robot) -> set[str]:
    """Of the watchdog's faults."""
    return {fault.kind for fault in robot.bench.loop.runtime.watchdog.faults(robot.clock.now_ns())}


SEEN = {"kind": "clock", "chunk_len": 4, "distance": 0.5, "to_go": 3.0, "limit": 7.0}
MEANING = {
    "chunk_len": (8, 4),
    "protocol": (1, 2),
    "embodiment": ("libero", "bridge"),
    "unnorm_key": ("libero_spatial", "bridge_orig"),
    "image_pipeline": ("openvla", "openpi"),
    "mirror": (False, True),
    "detector": ("clock 1a2b", "nearest 3c4d"),
}


@pytest.mark.parametrize("name", MEANING)
def test_a_server_that_comes_back_with_another_meaning_is_refused(name: str) -> None:
    """Of the same sizes: the numbers would be taken for what they are not."""
    before, after = MEANING[name]
    robot = Robot(server={name: before})
    robot.server.says = {"detector": SEEN}
    runs(robot)
    robot.server.metadata = robot.server.metadata | {name: after}
    taken = len(robot.chunks(1))
    robot.bench.loop.forget_chunks()
    assert within(robot, 60.0, lambda: robot.bench.loop.state is ArmState.HOLDING)
    assert within(robot, 60.0, lambda: bool(robot.inference.report.refused))
    assert f"{after}" in robot.inference.report.refused
    assert f"{before}" in robot.inference.report.refused
    assert robot.inference.accept() == robot.inference.report.refused, "no yes of anybody makes it right"
    assert len(robot.chunks(1)) == taken
    robot.inference.close()


@pytest.mark.parametrize("refuses", [False, True])
def test_a_server_that_comes_back_with_another_layout_makes_the_arm_hold(robot: Robot, refuses: bool) -> None:
    runs(robot)
    taken = len(robot.chunks(1))
    robot.server.metadata, robot.server.refuses = METADATA | {"chunk_len": 4, "weights": "v"}, refuses
    robot.bench.loop.forget_chunks()
    for _ in range(500):
        if robot.bench.loop.state is not ArmState.RUNNING:
            break
        robot.look()
        time.sleep(0.01)
    held = [event.transition for event in robot.bench.events if isinstance(event, StateChanged)][-1]
    line = (
        "the server has another policy now (chunk_len 4, not 8): serve the first one again, or start the bridge again"
    )
    assert (held.after, held.reason) == (ArmState.HOLDING, line)
    assert robot.inference.report.refused == robot.inference.report.last_error == line
    assert len(robot.chunks(1)) == taken, "no answer of it is taken"
    assert robot.inference.report.policy == "p"
    operator = Operator.__new__(Operator)
    operator._context = SimpleNamespace(inference=robot.inference, options=BridgeOptions())  # type: ignore[assignment]
    buttons = SimpleNamespace(unheard="")
    operator._inputs = SimpleNamespace(watch=str, buttons=buttons, missing_fingers=str)  # type: ignore[assignment]
    operator.active = True
    for event in (Event.ARM, Event.START, Event.RESUME):
        assert operator.fire(event) == line
    robot.server.metadata, robot.server.refuses = METADATA, False
    robot.bench.loop.forget_chunks()
    robot.look()
    robot.chunks(taken + 1)
    assert robot.inference.report.refused == ""


@pytest.mark.parametrize("change", [{"weights": "v", "policy": "q"}, {"mode": "sample"}, {"image_size": 32}])
def test_a_server_that_comes_back_with_another_policy_is_followed_after_a_yes(
    robot: Robot, change: dict[str, Any]
) -> None:
    runs(robot)
    robot.server.metadata = METADATA | change
    before = len(robot.chunks(1))
    robot.bench.loop.forget_chunks()
    assert within(robot, 60.0, lambda: robot.bench.loop.state is ArmState.HOLDING)
    report, name = robot.inference.report, next(iter(change))
    assert f"{name} {change[name]}, not {METADATA.get(name)}" in report.refused
    assert report.refused.endswith("or accept this one: ~/accept_policy")
    assert (len(robot.chunks(1)), report.policy) == (before, "p")
    assert robot.inference.accept() == ""
    robot.bench.loop.forget_chunks()
    assert within(robot, 60.0, lambda: len(robot.chunks(1)) > before)
    assert robot.chunks(1)[-1].policy == change.get("weights", "w")
    (served,) = [event for event in robot.bench.events if isinstance(event, PolicyServed)]
    assert served.metadata == robot.server.metadata
    assert (report.policy, report.refused) == (change.get("policy", "p"), "")
    assert robot.bench.loop.state is ArmState.HOLDING, "a yes moves nothing"
    assert robot.inference.accept() == "the server has no other policy"


def test_what_a_servers_detector_says_is_handed_on_with_its_observation(robot: Robot) -> None:
    robot.server.says = {"detector": SEEN}
    robot.look()
    robot.chunks(1)
    assert not [event for event in robot.bench.events if isinstance(event, ObservationWatched)], "it names no detector"
    robot.inference.close()
    robot = Robot(server={"detector": "clock 1a2b"})
    robot.server.says = {"detector": SEEN}
    robot.look()
    assert within(robot, 60.0, lambda: any(isinstance(event, ObservationWatched) for event in robot.bench.events))
    seen = next(event for event in robot.bench.events if isinstance(event, ObservationWatched))
    assert (seen.observed_ns, seen.kind, seen.chunk_len) == (robot.chunks(1)[0].observed_ns, "clock", 4)
    assert (seen.sight, seen.limit) == (Sight(0.5, 3.0), 7.0)
    robot.inference.close()


@pytest.mark.parametrize("says", [{}, {"detector": SEEN | {"distance": float("nan")}}])
def test_answers_of_a_server_whose_detector_falls_silent_are_not_used(says: dict[str, Any]) -> None:
    """The arm would act unwatched: it holds as if the policy were silent."""
    robot = Robot(server={"detector": "clock 1a2b"})
    robot.server.says = {"detector": SEEN}
    runs(robot)
    robot.server.says = says
    assert within(robot, 60.0, lambda: "what the server's detector says" in robot.inference.report.last_error)
    assert within(robot, 60.0, lambda: "policy" in kinds(robot))
    robot.inference.close()


def test_the_naive_way_stamps_a_chunk_with_its_arrival() -> None:
    robot = Robot(aligned=False, latency_s=0.05)
    stamp = robot.look()
    assert robot.chunks(1)[0].observed_ns >= stamp + 50_000_000
    robot.inference.close()


def test_threads_that_do_not_end_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    robot, now = Robot(), [0.0]
    robot.inference.close()
    waited = list[float]()

    def join(timeout: float) -> None:
        waited.append(timeout)
        now[0] += timeout

    stuck: Any = SimpleNamespace(is_alive=lambda: True, join=join)
    robot.inference._threads = [stuck] * 4
    monkeypatch.setattr(inference_client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    robot.inference.close()
    assert sum(waited) == JOIN_S


def test_a_server_that_comes_back_with_a_description_of_something_else_is_refused(robot: Robot) -> None:
    runs(robot)
    robot.chunks(1)
    robot.server.metadata = METADATA | {"policy": 3, "more": np.zeros(2)}
    robot.bench.loop.forget_chunks()
    for _ in range(500):
        if robot.inference.report.refused:
            break
        robot.look()
        time.sleep(0.01)
    assert "policy is int, not str" in robot.inference.report.refused
    assert all(thread.is_alive() for thread in robot.inference._threads)

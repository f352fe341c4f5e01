"""The bridge's control loop, recorded: policy steps, a human's motion as actions, labels, and on to episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embodied_rl.real_robot.core.cartesian import AS_TRAINED, ControlLaw, quaternion_xyzw, rotation_matrix
from embodied_rl.real_robot.core.executor import Chunk, ExecutorConfig, Receipt
from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.kinematics import Origin
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.record.bridge import BridgeRecorder, _rotation_vector, stamp_of
from embodied_rl.real_robot.record.episodes import read_episodes, stored_images
from embodied_rl.real_robot.record.events import AlarmRaised, ControlStep, EventSink, PolicyChanged
from embodied_rl.real_robot.record.reader import RecordingFile
from embodied_rl.real_robot.record.recorder import Recorder
from embodied_rl.real_robot.ros2.events import (
    ChunkDecided,
    CommandJudged,
    EpisodeMarked,
    ObservationTaken,
    PolicyServed,
)
from embodied_rl.real_robot.ros2.loop import ControlLoop
from tests.real_robot.robot_loop import picture, session

pytest.importorskip("mink")
ROBOT = load_robot("fr3")
TICK, STEP = 10_000_000, 50_000_000


class Desk:
    """The control loop on an arm that follows at once, its events recorded."""

    def __init__(self, recorder: EventSink, base: Origin = AS_TRAINED) -> None:
        self.loop = ControlLoop(ROBOT, ["front"], ExecutorConfig(8, 7, STEP, execution_horizon=4), base=base)
        self.now, self.joints = 0, ROBOT.home
        self.recorder = BridgeRecorder(recorder, self.observe, ControlLaw(), base=base)
        self.loop.events.subscribe(self.recorder)

    def observe(self, now_ns: int) -> ObservationTaken:
        stamp = now_ns - now_ns % STEP
        proprio = np.append(self.joints, now_ns / 1e9)
        return ObservationTaken(now_ns, stamp, {"front": picture(stamp // STEP, 0)}, self.joints, proprio, "open it")

    def tick(self) -> None:
        self.now += TICK
        self.loop.joint_states(ROBOT.limits.names, self.joints.tolist(), self.now)
        self.loop.image("front", self.now)
        self.loop.heartbeat(self.now)
        output = self.loop.tick(self.now)
        if output.tick.setpoint is not None:
            self.joints = output.tick.setpoint.positions

    def mark(self, began: bool, outcome: str = "") -> None:
        self.loop.events.emit(EpisodeMarked(self.now, 1, began, outcome))


def test_a_session_at_the_bridge_becomes_training_data(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with Recorder(path, session()) as recorder:
        desk = Desk(recorder)
        desk.tick()
        assert desk.loop.fire(Event.ARM, desk.now).accepted
        assert desk.loop.fire(Event.START, desk.now).accepted
        desk.mark(True)
        for _ in range(3):
            actions = np.tile([0.3, 0, 0, 0, 0, 0, -1.0], (8, 1))
            desk.loop.chunk(Chunk(desk.now, actions, "v7"), desk.now, 1.0)
            for _ in range(20):
                desk.tick()
        for _ in range(50):
            desk.loop.human(np.array([0, 0.1, 0, 0, 0, 0.0]), 1.0, desk.now, engaged=True)
            desk.tick()
        assert desk.loop.state is ArmState.HUMAN
        desk.loop.release(desk.now)
        alarm = AlarmRaised(desk.now, 1, 12, "steps_to_go", 31.5, 27.0)
        desk.loop.events.emit(alarm)
        desk.mark(False, "success")
        desk.recorder.close()
    recording = RecordingFile(path)
    (episode,) = read_episodes(recording)
    assert (episode.instruction, episode.success, episode.labelled_by) == ("open it", True, "human")
    policy = [step for step in episode.steps if not step.intervention]
    human = [step for step in episode.steps if step.intervention]
    assert len(policy) in (12, 13)
    assert all(step.policy == "v7" for step in policy)
    np.testing.assert_allclose([step.action for step in policy], [[0.3, 0, 0, 0, 0, 0, -1]] * len(policy))
    assert 8 <= len(human) <= 10
    # 0.1 m/s; an action of 1 moves 0.05 m * 27 % in a twentieth of a second
    assert np.median([step.action[1] for step in human]) == pytest.approx(0.1 / 0.267, rel=0.02)
    assert np.abs([[*step.action[:1], *step.action[2:6]] for step in human[3:]]).max() < 0.1
    stored = stored_images(recording, ["front"])
    assert all(stored.issuperset(row) for row in episode.images(["front"]))
    assert len(list(recording.events(Tick))) > 100
    assert list(recording.events(AlarmRaised)) == [alarm]
    assert len(episode.parts("human", 20.0)) == 1


class _Kept(list[object]):
    def record(self, event: object) -> bool:
        self.append(event)
        return True


def test_a_humans_actions_are_along_trainings_axes_as_the_policys_are() -> None:
    kept = _Kept()
    desk = Desk(kept, Origin(rpy=(0.0, 0.0, np.pi / 2)))
    desk.tick()
    assert desk.loop.fire(Event.ARM, desk.now).accepted
    for _ in range(50):
        desk.loop.human(np.array([0, 0.1, 0, 0, 0, 0.0]), 0.0, desk.now, engaged=True)
        desk.tick()
    steps = [event.action for event in kept if isinstance(event, ControlStep)]
    assert len(steps) >= 8
    np.testing.assert_allclose(np.median(steps, 0)[:3], [-0.1 / 0.267, 0, 0], atol=0.01)


@pytest.mark.parametrize("before", [1, 2, 3, 4, 5])
def test_a_humans_actions_add_up_to_the_way_whenever_the_takeover_is(before: int) -> None:
    kept, law = _Kept(), ControlLaw()
    desk = Desk(kept)
    for _ in range(before):
        desk.tick()
    assert desk.loop.fire(Event.ARM, desk.now).accepted
    desk.tick()
    ends = [ROBOT.chain.position(desk.joints)]
    for _ in range(42):
        desk.loop.human(np.array([0, 0.1, 0, 0, 0, 0.0]), 0.0, desk.now, engaged=True)
        desk.tick()
        if desk.now % STEP == 0:
            ends.append(ROBOT.chain.position(desk.joints))
    steps = [event.action[:3] for event in kept if isinstance(event, ControlStep)]
    way = law.share * law.position_scale * np.sum(steps, axis=0)
    np.testing.assert_allclose(way, ends[-1] - ends[0], atol=1e-6)


def test_another_policy_is_recorded_with_its_own_stamp() -> None:
    kept = _Kept()
    first, second = {"weights": "a", "policy": "p", "layouts": {}}, {"weights": "b", "policy": "q", "layouts": {}}
    recorder = BridgeRecorder(kept, lambda now: None, ControlLaw(), policy=stamp_of(first))
    for at, served in enumerate((None, second, {**second, "seed": 3})):
        if served is not None:
            recorder(PolicyServed(at, served))
        for _ in range(2):
            weights = str((served or first)["weights"])
            recorder(ChunkDecided(at, at, np.zeros((8, 7)), weights, 1.0, Receipt(True, "", 0)))
    said = [(event.policy, event.stamp) for event in kept if isinstance(event, PolicyChanged)]
    stamps = (
        {"weights": "a", "policy": "p"},
        {"weights": "b", "policy": "q"},
        {"weights": "b", "policy": "q", "seed": 3},
    )
    assert said == [(stamp["weights"], stamp) for stamp in stamps]


def test_what_the_gate_changed_is_marked_and_steps_before_pictures_are_left_out() -> None:
    desk_events, kept = [], _Kept()
    blind = BridgeRecorder(kept, lambda now: None, ControlLaw())  # type: ignore[arg-type]
    loop = ControlLoop(ROBOT, [], ExecutorConfig(8, 7, STEP))
    loop.events.subscribe(desk_events.append)
    loop.runtime.joint_states(ROBOT.limits.names, ROBOT.home.tolist(), TICK)
    loop.runtime.watchdog.heartbeat(TICK)
    loop.runtime.tick(TICK, None)
    loop.runtime.fire(Event.ARM, TICK)
    loop.runtime.fire(Event.START, TICK)
    far = loop.runtime.tick(2 * TICK, Command(2 * TICK, ROBOT.limits.names, ROBOT.home + 3))
    judged = CommandJudged(2 * TICK, far, np.zeros(3), np.array([0, 0, 0, 1.0]), None)
    blind(judged)
    assert not [event for event in kept if isinstance(event, ControlStep)]
    seeing = BridgeRecorder(kept, Desk.observe.__get__(_Still()), ControlLaw())  # type: ignore[arg-type]
    seeing._begin(TICK, np.zeros(7), "policy", 0)
    seeing(judged)
    seeing.close()
    (step,) = [event for event in kept if isinstance(event, ControlStep)]
    assert step.rewritten


class _Still:
    joints = ROBOT.home


@pytest.mark.parametrize("seed", range(5))
def test_turns_are_in_the_base_frame(seed: int) -> None:
    draw = np.random.default_rng(seed)
    start, turn = rotation_matrix(draw.normal(size=3)), draw.normal(size=3) * (0.5, 1e-7)[seed % 2]
    before, after = quaternion_xyzw(start), quaternion_xyzw(rotation_matrix(turn) @ start)
    np.testing.assert_allclose(_rotation_vector(before, after), turn, atol=1e-8)

"""A person's control steps as an environment over the bridge takes them: all of them, in order, with what was seen."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.real_robot.core.executor import Chunk
from embodied_rl.real_robot.core.states import ArmState, Event, Transition
from embodied_rl.real_robot.env.person import PersonStep, PersonSteps
from tests.real_robot.robot_loop import picture
from tests.real_robot.test_record_bridge import STEP, Desk

pytest.importorskip("mink")
SIDEWAYS = np.array([0, 0.1, 0, 0, 0, 0.0])


@pytest.fixture
def steps() -> PersonSteps:
    return PersonSteps(["front"])


@pytest.fixture
def desk(steps: PersonSteps) -> Desk:
    """An arm that a policy moves."""
    desk = Desk(steps)
    desk.tick()
    for event in (Event.ARM, Event.START):
        assert desk.loop.fire(event, desk.now).accepted
    desk.loop.chunk(Chunk(desk.now, np.tile([0.3, 0, 0, 0, 0, 0, -1.0], (8, 1)), "v7"), desk.now, 1.0)
    for _ in range(20):
        desk.tick()
    return desk


def by_hand(desk: Desk, ticks: int) -> None:
    for _ in range(ticks):
        desk.loop.human(SIDEWAYS, 1.0, desk.now, engaged=True)
        desk.tick()


def taken(steps: PersonSteps) -> list[PersonStep | Transition]:
    found = []
    while (step := steps.next(0.0)) is not None:
        steps.drop()
        found.append(step)
    return found


def test_every_step_of_a_person_comes_with_what_was_seen_and_then_who_let_go(desk: Desk, steps: PersonSteps) -> None:
    assert taken(steps) == [], "the policy's steps are not the person's"
    by_hand(desk, 50)
    assert desk.loop.release(desk.now).accepted
    *done, end = taken(steps)
    assert isinstance(end, Transition)
    assert (end.event, end.after) == (Event.RELEASE, ArmState.HOLDING)
    assert 8 <= len(done) <= 10
    for step in done:
        assert isinstance(step, PersonStep)
        (image,) = step.images
        np.testing.assert_array_equal(image, picture(step.time_ns // STEP, 0))
        assert step.proprio.dtype == step.action.dtype == np.float32
        assert step.proprio[-1] == pytest.approx(step.time_ns / 1e9)
    times = [step.time_ns // STEP for step in done if isinstance(step, PersonStep)]
    assert times == list(range(times[0], times[0] + len(done))), "one a control step, none left out"
    assert np.median([step.action[1] for step in done if isinstance(step, PersonStep)]) > 0.2


def test_a_person_who_opens_the_switch_and_waits_does_nothing(desk: Desk, steps: PersonSteps) -> None:
    by_hand(desk, 50)
    for _ in range(50):
        desk.loop.human(SIDEWAYS, 1.0, desk.now, engaged=False)
        desk.tick()
    assert desk.loop.state is ArmState.HUMAN
    done = [step for step in taken(steps) if isinstance(step, PersonStep)]
    assert 9 <= len(done) <= 12
    assert abs(done[-1].action[1]) > 0.01, "the last one brings it to rest"
    by_hand(desk, 20)
    assert len(taken(steps)) >= 3, "and goes on"


def test_an_emergency_stop_in_a_persons_hand_is_how_it_ends(desk: Desk, steps: PersonSteps) -> None:
    by_hand(desk, 20)
    desk.loop.button(True, desk.now)
    end = taken(steps)[-1]
    assert isinstance(end, Transition)
    assert end.after is ArmState.ESTOPPED


def test_what_comes_next_stays_until_it_is_dropped(desk: Desk, steps: PersonSteps) -> None:
    by_hand(desk, 20)
    first = steps.next(0.0)
    assert first is not None
    assert steps.next(0.0) is first
    steps.drop()
    assert steps.next(0.0) is not first


def test_what_was_done_before_an_episode_is_not_of_it(desk: Desk, steps: PersonSteps) -> None:
    by_hand(desk, 20)
    steps.begin(desk.now + 1)
    assert taken(steps) == []
    assert desk.loop.release(desk.now).accepted, "and a release that is still on its way neither"
    assert taken(steps) == []
    assert desk.loop.fire(Event.RESUME, desk.now).accepted
    desk.loop.human(SIDEWAYS, 1.0, desk.now, engaged=False)
    by_hand(desk, 20)
    assert taken(steps)

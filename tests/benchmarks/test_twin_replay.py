"""What a person did on the twin, replayed from its recorded actions, ends where the person ended."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.benchmarks.twin_lockstep import Lockstep, Twin
from embodied_rl.benchmarks.twin_replay import Replay
from embodied_rl.real_robot.core.cartesian import ControlLaw
from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.record.bridge import BridgeRecorder
from embodied_rl.real_robot.record.events import ControlStep, RecordEvent
from embodied_rl.real_robot.ros2.context import STEP_NS
from embodied_rl.real_robot.twin.node import TIMESTEP_NS
from embodied_rl.real_robot.twin.person import twist_of
from embodied_rl.types import Array
from tests.benchmarks.test_twin_lockstep import Sideways

SUITE = "tabletop_goal"
TASKS = ("tabletop_goal/open_the_drawer_of_the_cabinet", "tabletop_goal/turn_on_the_stove")
_MESSAGE_NS, _LONGEST_NS = 25_000_000, 15_000_000_000


class Kept(list[Array]):
    def record(self, event: RecordEvent) -> bool:
        if isinstance(event, ControlStep) and event.intervention:
            self.append(event.action)
        return True


class ByHand(Lockstep):
    """The scripted expert moves the twin as a person: by the velocities that the takeover topics carry."""

    def __init__(self, law: ControlLaw) -> None:
        super().__init__(Sideways(), SUITE, Twin())  # type: ignore[arg-type]
        self.law = law

    def solve(self, task: str, state: int) -> tuple[list[Array], bool, Array]:
        """The person's recorded actions, whether the goal was reached, and where the tool came to rest."""
        now, kept = self.begin(task, state, seed=7), Kept()
        expert, solved, until = self.plant.expert(), False, now + _LONGEST_NS
        action = np.zeros(7)
        self._loop.events.subscribe(BridgeRecorder(kept, self._observations.take, self.law))
        while now < until and not solved:
            if now % STEP_NS == 0:
                action, solved = self.plant.advice(expert), self.plant.succeeded()
            if now % _MESSAGE_NS == 0:
                self._loop.human(twist_of(action, ControlLaw()), float(action[6]), now, engaged=True)
            now += TIMESTEP_NS
            self._advance(now)
        assert self._loop.state is ArmState.HUMAN
        for _ in range(250):
            self._loop.human(np.zeros(6), 0.0, now, engaged=True)
            now += TIMESTEP_NS
            self._advance(now)
        return list(kept), solved, self._robot.chain.position(self.plant.joints()[0][:7])


@pytest.mark.parametrize("task", TASKS)
def test_a_persons_actions_replayed_end_within_5_mm(task: str) -> None:
    actions, solved, end = ByHand(ControlLaw()).solve(task, 51)
    assert solved
    found = Replay(SUITE).end(task, 51, 7, np.array(actions), [0] * len(actions), [True] * len(actions))
    assert np.linalg.norm(found - end) < 0.005


def test_a_persons_actions_of_another_controller_do_not() -> None:
    """As if an action of 1 went on at kp / kd times its scale."""
    actions, _, end = ByHand(ControlLaw(position_scale=0.0574)).solve(TASKS[0], 51)
    found = Replay(SUITE).end(TASKS[0], 51, 7, np.array(actions), [0] * len(actions), [True] * len(actions))
    assert np.linalg.norm(found - end) > 0.01

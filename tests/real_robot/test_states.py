"""The state machine, explored at random against a model of what must hold, and broken machines that are found."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from embodied_rl.real_robot.core import states
from embodied_rl.real_robot.core.states import ArmState, Event, StateMachine
from embodied_rl.real_robot.core.watchdog import Fault

EXPLORE = settings(max_examples=300, stateful_step_count=50, deadline=None, derandomize=True, database=None)
# The stop and its button latch, and end what can be explored: they come less often than the rest.
OFTEN = [event for event in Event if event is not Event.ESTOP]
FAULT = Fault("policy", "none yet")


class Model(RuleBasedStateMachine):
    """What a careful operator believes of the arm; kept from the events alone, never read back from the machine."""

    def __init__(self) -> None:
        super().__init__()
        self.machine, self.now = StateMachine(), 0
        self.latched = self.pressed = False
        self.armed = self.in_hand = self.may_run = False

    @rule(event=st.sampled_from([*OFTEN * 2, Event.ESTOP]), faults=st.sampled_from([(), (), (FAULT,)]))
    def event(self, event: Event, faults: tuple[Fault, ...]) -> None:
        self.now += 1
        held = self.machine.state is ArmState.HOLDING
        found = self.machine.fire(event, self.now, "test", faults=faults)
        assert (found.event, found.time_ns) == (event, self.now)
        assert found.after is self.machine.state
        assert found.accepted or (found.before is found.after and found.reason)
        assert found.accepted == self.accepts(event, faults, held)
        if found.accepted:
            self.follow(event)

    @rule(pressed=st.booleans())
    def button(self, pressed: bool) -> None:
        self.now += 1
        self.machine.button(pressed, self.now)
        if pressed and not self.pressed:
            self.follow(Event.ESTOP)
        self.pressed = pressed

    def accepts(self, event: Event, faults: tuple[Fault, ...], held: bool) -> bool:
        still = self.armed and not self.may_run and not self.in_hand
        return {
            Event.ARM: not (self.latched or self.armed or faults),
            Event.START: still and not held and not faults,
            Event.RESUME: still and held and not faults,
            Event.HOLD: self.may_run or self.in_hand or held,
            Event.TAKEOVER: self.armed and not self.in_hand,
            Event.RELEASE: self.in_hand,
            Event.DISARM: still,
            Event.ESTOP: True,
            Event.RESET: self.latched and not self.pressed,
        }[event]

    def follow(self, event: Event) -> None:
        if event in (Event.ESTOP, Event.DISARM):
            self.armed = False
        if event in (Event.ESTOP, Event.RESET):
            self.latched = event is Event.ESTOP
        self.armed = self.armed or event is Event.ARM
        if event not in (Event.ARM, Event.RESET):
            self.may_run, self.in_hand = event in (Event.START, Event.RESUME), event is Event.TAKEOVER

    @invariant()
    def nothing_is_sent_when_latched_or_idle(self) -> None:
        assert self.machine.sends == self.armed

    @invariant()
    def the_latch_holds(self) -> None:
        assert (self.machine.state is ArmState.ESTOPPED) == self.latched

    @invariant()
    def one_commands_at_a_time(self) -> None:
        assert (self.machine.state is ArmState.RUNNING) == self.may_run
        assert (self.machine.state is ArmState.HUMAN) == self.in_hand
        assert not (self.may_run and self.in_hand)


def test_the_machine_is_the_model() -> None:
    run_state_machine_as_test(Model, settings=EXPLORE)


WRONG = {
    "leaves the e-stop": {(ArmState.ESTOPPED, Event.ARM): ArmState.ARMED},
    "resumes out of the e-stop": {(ArmState.ESTOPPED, Event.RESUME): ArmState.RUNNING},
    "resets into motion": {(ArmState.ESTOPPED, Event.RESET): ArmState.RUNNING},
    "hands back unasked": {(ArmState.HUMAN, Event.RESUME): ArmState.RUNNING},
    "releases into motion": {(ArmState.HUMAN, Event.RELEASE): ArmState.RUNNING},
    "starts unarmed": {(ArmState.IDLE, Event.START): ArmState.RUNNING},
    "ignores a hold": {(ArmState.RUNNING, Event.HOLD): ArmState.RUNNING},
    "ignores the e-stop of a human": {(ArmState.HUMAN, Event.ESTOP): ArmState.HUMAN},
    "does not let a human in": {(ArmState.HOLDING, Event.TAKEOVER): ArmState.HOLDING},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_machine_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "TRANSITIONS", states.TRANSITIONS | WRONG[name])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Model, settings=settings(EXPLORE, phases=(Phase.generate,)))


def test_the_e_stop_and_its_reset_from_every_state() -> None:
    reached = set()
    for path in itertools.chain.from_iterable(itertools.product(Event, repeat=n) for n in range(4)):
        machine = StateMachine()
        for event in path:
            machine.fire(event, 0)
        reached.add(machine.state)
        assert machine.fire(Event.ESTOP, 1).after is ArmState.ESTOPPED
        assert not machine.sends
        for event in Event:
            if event is not Event.RESET:
                assert machine.fire(event, 2).after is ArmState.ESTOPPED
        assert machine.fire(Event.RESET, 3).after is ArmState.IDLE
    assert reached == set(ArmState)


def test_a_pressed_button_keeps_the_latch() -> None:
    machine = StateMachine()
    pressed = machine.button(True, 1)
    assert pressed is not None
    assert pressed.reason == "button"
    assert machine.button(True, 2) is None
    refused = machine.fire(Event.RESET, 3)
    assert (refused.accepted, refused.reason) == (False, "the emergency stop is still pressed")
    machine.button(False, 4)
    assert machine.state is ArmState.ESTOPPED
    assert machine.fire(Event.RESET, 5).accepted


def test_faults_keep_the_policy_out_and_let_a_human_in() -> None:
    machine = StateMachine()
    assert machine.fire(Event.ARM, 0, faults=(FAULT,)).reason.endswith("faults: policy: none yet")
    assert machine.fire(Event.ARM, 0).accepted
    assert not machine.fire(Event.START, 0, faults=(FAULT,)).accepted
    assert machine.fire(Event.TAKEOVER, 0, faults=(FAULT,)).accepted, "a human may move an arm whose cameras are gone"

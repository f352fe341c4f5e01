"""A human beats the policy, keeps the arm, and every step of it is flagged."""

from __future__ import annotations

from embodied_rl.real_robot.core.gate import Command
from embodied_rl.real_robot.core.mux import TakeoverMux
from embodied_rl.real_robot.core.states import ArmState, Event, StateMachine

MS = 1_000_000
POLICY, HUMAN = Command(0, ("a",), [0.0]), Command(0, ("a",), [1.0], source="human")


def running() -> tuple[StateMachine, TakeoverMux]:
    machine = StateMachine()
    machine.fire(Event.ARM, 0)
    machine.fire(Event.START, 0)
    return machine, TakeoverMux(machine, silence_s=0.1)


def test_the_policy_commands_until_a_human_engages() -> None:
    machine, mux = running()
    assert mux.human(HUMAN, 0, engaged=False) is None
    chosen = mux.select(POLICY, 0)
    assert (chosen.command, chosen.source, chosen.intervention, chosen.number) == (POLICY, "policy", False, 0)
    takeover = mux.human(HUMAN, MS, engaged=True)
    assert takeover is not None
    assert takeover.after is machine.state is ArmState.HUMAN
    chosen = mux.select(POLICY, MS)
    assert (chosen.command, chosen.source, chosen.intervention, chosen.number) == (HUMAN, "human", True, 1)


def test_letting_go_holds_and_only_a_release_hands_back() -> None:
    machine, mux = running()
    mux.human(HUMAN, 0, engaged=True)
    mux.human(HUMAN, MS, engaged=False)
    chosen = mux.select(POLICY, MS)
    assert (chosen.command, chosen.intervention) == (None, True)
    assert not machine.fire(Event.RESUME, MS).accepted
    assert mux.release(2 * MS).after is ArmState.HOLDING
    assert mux.select(POLICY, 2 * MS).command is None
    assert machine.fire(Event.RESUME, 3 * MS).accepted
    assert mux.select(POLICY, 3 * MS).command is POLICY
    mux.human(HUMAN, 4 * MS, engaged=True)
    assert mux.select(POLICY, 4 * MS).number == 2


def test_a_silent_device_holds_the_arm() -> None:
    _, mux = running()
    mux.human(HUMAN, 0, engaged=True)
    assert mux.select(POLICY, 100 * MS).command is HUMAN
    silent = mux.select(POLICY, 100 * MS + 1)
    assert (silent.command, silent.intervention) == (None, True)


def test_an_arm_that_may_not_move_is_nobodys() -> None:
    for events in ((), (Event.ARM, Event.ESTOP)):
        machine = StateMachine()
        mux = TakeoverMux(machine)
        for event in events:
            machine.fire(event, 0)
        refused = mux.human(HUMAN, 0, engaged=True)
        assert refused is not None
        assert not refused.accepted
        chosen = mux.select(POLICY, 0)
        assert (chosen.command, chosen.source, chosen.number) == (None, "none", 0)


def test_a_command_from_before_a_stop_is_not_used_after_it() -> None:
    machine, mux = running()
    mux.human(HUMAN, 0, engaged=True)
    for event in (Event.ESTOP, Event.RESET, Event.ARM, Event.TAKEOVER):
        machine.fire(event, 1)
    assert mux.select(POLICY, 200 * MS).command is None


def test_a_switch_that_is_still_held_takes_nothing_after_the_release() -> None:
    machine, mux = running()
    mux.human(HUMAN, 0, engaged=True)
    mux.human(HUMAN, MS, engaged=False)
    mux.human(HUMAN, 2 * MS, engaged=True)
    mux.release(3 * MS)
    for late in range(4, 40):
        assert mux.human(HUMAN, late * MS, engaged=True) is None
    mux.silent()
    assert mux.human(HUMAN, 40 * MS, engaged=True) is None, "silence is no letting go"
    assert machine.state is ArmState.HOLDING
    mux.human(HUMAN, 41 * MS, engaged=False)
    again = mux.human(HUMAN, 42 * MS, engaged=True)
    assert again is not None
    assert again.after is ArmState.HUMAN


def test_a_switch_that_is_still_held_takes_nothing_after_a_hold() -> None:
    machine, mux = running()
    mux.human(HUMAN, 0, engaged=True)
    machine.fire(Event.HOLD, MS)
    assert mux.human(HUMAN, 2 * MS, engaged=True) is None
    assert machine.state is ArmState.HOLDING


def test_a_switch_that_was_held_too_early_takes_nothing_once_the_arm_is_armed() -> None:
    machine = StateMachine()
    mux = TakeoverMux(machine)
    refused = mux.human(HUMAN, 0, engaged=True)
    assert refused is not None
    machine.fire(Event.ARM, MS)
    assert mux.human(HUMAN, 2 * MS, engaged=True) is None
    assert machine.state is ArmState.ARMED

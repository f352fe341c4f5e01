"""'progress' pays a potential: by hand, and as sums over whole episodes that are cut into decisions in any way."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.sim.step_reward import StepReward


def returns(
    native: Sequence[float], gamma: float, *, chunk: int = 1, ended: bool = True, success: bool = True, scale: float = 1
) -> float:
    """The discounted return of an episode in which the simulator pays `native`; a decision is `chunk` steps."""
    reward, total = StepReward("progress", scale, gamma), 0.0
    for step, paid in enumerate(native):
        if step % chunk == 0:
            reward.begin_chunk(chunk)
        last = step == len(native) - 1
        total += gamma ** (step // chunk) * reward.pay(
            paid, success and last, ended=ended and last, late=last and not ended
        )
    return total


def test_episodes_are_ordered_as_by_success_alone() -> None:
    """Early progress that is only finished late against success at once: 0.669 and 0.740, as under 'success'."""
    slow = [min(step / 8, 1.0) for step in range(41)]
    fast = [0.0] * 30 + [1.0]
    assert returns(slow, 0.99) == pytest.approx(0.99**40) == pytest.approx(0.669, abs=5e-4)
    assert returns(fast, 0.99) == pytest.approx(0.99**30) == pytest.approx(0.740, abs=5e-4)


def test_a_failure_that_came_far_is_worth_nothing() -> None:
    """Whether the task ends in failure or not at all; time that runs out keeps the potential of its last state."""
    far = [0.5, 0.75, 1.0]
    assert returns(far, 0.5, success=False) == 0
    assert returns(far, 0.5, success=False, ended=False) == 0.5**3
    assert returns(far, 0.5, success=False, ended=False, scale=2) == 0.5**4


def test_steps_by_hand() -> None:
    """Gamma 0.5, decisions of two steps: discounted once each; the first step is paid from 0 at the reset."""
    reward = StepReward("progress", scale=2.0, gamma=0.5)
    for _ in range(2):
        reward.reset()
        reward.begin_chunk(2)
        first = [reward.pay(native, success=False, ended=False, late=False) for native in (1.0, 1.5)]
        reward.begin_chunk(2)
        assert first == [0.5, 0.5 * 0.75 - 0.5]
        assert reward.pay(2.0, success=True, ended=True, late=False) == 1 - 0.75
    reward.reset()
    reward.begin_chunk(2)
    assert reward.pay(1.0, success=False, ended=False, late=True) == 0.25, "time ran out before the chunk did"


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=30),
    st.floats(0, 1),
    st.integers(1, 7),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_a_return_is_that_of_success_alone(
    native: list[float], gamma: float, chunk: int, ended: bool, success: bool
) -> None:
    """Besides the discounted potential of a state from which a learner goes on."""
    success = success and ended
    decisions = -(-len(native) // chunk)
    wanted = gamma ** (decisions - 1) * success + (0 if ended else gamma**decisions * native[-1])
    found = returns(native, gamma, chunk=chunk, ended=ended, success=success)
    assert found == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_the_other_rewards_know_no_discount(gamma: float) -> None:
    for success, ended in ((False, False), (True, True)):
        for reward, wanted in (
            (StepReward("native", 10.0, gamma), 0.7),
            (StepReward("success", 10.0, gamma), float(success)),
        ):
            reward.begin_chunk(1)
            assert reward.pay(0.7, success, ended=ended, late=False) == wanted

"""How long the policy waits for further env groups, against calls whose cost is known."""

from __future__ import annotations

import threading
import time
from itertools import cycle, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.scheduler.pipeline.batching import Patience
from embodied_rl.types import ActOutput, Observation
from tests.embodied_rl.scheduler.toys import GRPO, Outcome, Setup, jitter, pipelined
from tests.toy import ToyPolicy

SIZES = (4, 16, 8, 32, 12)


def taught(fixed: float, per_row: float, turn: float, sizes: tuple[int, ...] = SIZES, calls: int = 60) -> Patience:
    """After so many calls, the first of which took seconds."""
    patience = Patience()
    for number, rows in enumerate(islice(cycle(sizes), calls)):
        patience.decided(rows, 5.0 if number < 3 else fixed + per_row * rows)
        patience.returned(turn)
    return patience


@given(fixed=st.floats(0, 1), per_row=st.floats(0, 0.1))
def test_the_fixed_cost_is_that_of_a_call_without_rows(fixed: float, per_row: float) -> None:
    assert taught(fixed, per_row, 0.1).fixed == pytest.approx(fixed, abs=1e-6)


def test_calls_of_one_size_say_nothing_of_it_so_others_are_tried() -> None:
    assert Patience().fixed == 0.0
    found = [taught(0.1, 0.0, 0.1, sizes=(16,), calls=calls).fixed for calls in range(9, 25)]
    assert [cost > 0 for cost in found] == [calls in (16, 24) for calls in range(9, 25)]
    assert max(found) == 0.1
    assert taught(0.1, 0.0, 0.1, sizes=(16,)).until(7.0, 16, [(16, 7.0)]) == 7.0


@pytest.mark.parametrize(("turn", "waits"), [(0.015, True), (0.026, True), (0.028, False), (0.5, False)])
def test_it_waits_while_that_costs_less_than_a_call(turn: float, waits: bool) -> None:
    """As many rows on their way as are there, a call of 27 ms: it pays for 27 ms."""
    patience = taught(0.027, 1e-4, turn)
    assert patience.until(10.0, 16, [(16, 10.0)]) == pytest.approx(10.027 if waits else 10.0)


def test_few_rows_are_worth_a_shorter_wait() -> None:
    patience = taught(0.027, 1e-4, 0.02)
    assert patience.until(10.0, 24, [(8, 10.0)]) == 10.0
    assert patience.until(10.0, 8, [(12, 9.99), (12, 10.0)]) == pytest.approx(10.04)  # back at 10.02, or not in time
    assert patience.until(10.0, 8, [(0, 10.0)]) == 10.0
    assert patience.until(10.0, 8, []) == 10.0
    assert patience.until(10.0, 0, [(8, 9.99)]) == 10.0  # nothing to decide but what values need


def test_nobody_waits_for_a_lane_that_hangs() -> None:
    patience = taught(0.5, 1e-3, 0.02)
    assert patience.until(10.0, 8, [(8, 9.97)]) > 10.0
    assert patience.until(10.0, 8, [(8, 9.95)]) == 10.0
    late = patience.until(10.0, 8, [(8, -500.0), (8, 10.0)])
    assert late == pytest.approx(10.04)  # for the other one, and no longer than that takes


def test_a_compiler_at_work_is_no_call() -> None:
    patience = taught(0.02, 1e-3, 0.02)
    patience.decided(64, 25.0)
    assert patience.fixed == pytest.approx(0.02)


def test_a_policy_whose_cost_is_its_rows_waits_for_nobody() -> None:
    assert taught(0.0, 0.01, 0.001).until(3.0, 16, [(16, 3.0)]) == pytest.approx(3.0, abs=1e-6)


class Costly(ToyPolicy):
    """A call takes 100 ms, whatever its rows; `calls` notes how many it had."""

    def __init__(self, calls: list[int]) -> None:
        super().__init__()
        self.calls = calls

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        self.calls.append(len(obs.instruction))
        time.sleep(0.1)
        return super().act(obs, rng, mode)


def test_what_is_parked_is_not_waited_for(tmp_path: Path) -> None:
    """At the end of a batch one env group runs its last episodes while the other has none."""
    done: list[Outcome] = []

    def run() -> None:
        setup = Setup(GRPO, groups=3, iterations=8)
        done.append(pipelined(setup, tmp_path, env_ids=5, stages=2, act_wait=3600.0, pause=jitter(1)))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert len(done) == 1


def test_the_engine_waits_for_lanes_that_are_soon_back(tmp_path: Path) -> None:
    """Stepping takes 2 ms: two env groups that never wait take turns with the policy, each with half of the rows."""
    calls: dict[float | None, int] = {}
    for act_wait in (0.0, None):
        rows: list[int] = []
        setup = Setup(GRPO, groups=12, iterations=1)
        found = pipelined(
            setup,
            tmp_path,
            env_ids=8,
            stages=2,
            pause=lambda: time.sleep(0.002),
            act_wait=act_wait,
            policy=Costly(rows),
            share=True,
        )
        assert len(found.batches[0]) == sum(rows)
        calls[act_wait] = len(rows)
    assert (calls[None] or 0) < 0.8 * (calls[0.0] or 0), calls

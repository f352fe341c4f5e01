"""Chunks in time, by hand: alignment, blending, ensembling, and what real-time chunking asks a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.real_robot.core.executor import Chunk, ChunkExecutor, ExecutorConfig, Overlap, prefix_weights

STEP = 50_000_000
CONFIG = ExecutorConfig(chunk_len=8, action_dim=2, period_ns=STEP, overlap=Overlap.NEWEST)


def executor(start_ns: int = 0, **changes: Any) -> ChunkExecutor:
    return ChunkExecutor(replace(CONFIG, **changes), start_ns)


def ramp(step: int, offset: float = 0.0) -> Chunk:
    """A chunk observed at a step whose actions are the numbers of their steps, plus `offset`."""
    return Chunk(step * STEP, np.arange(step, step + 8)[:, None] + np.full(2, offset))


def value(found: ChunkExecutor, step: int) -> float | None:
    action = found.action(step * STEP)
    return None if action is None else float(action.values[0])


def test_actions_belong_to_the_time_of_their_observation() -> None:
    found = executor()
    assert value(found, 3) is None
    receipt = found.add(ramp(0), 3 * STEP)
    assert (receipt.accepted, receipt.delay_steps) == (True, 3)
    assert [value(found, step) for step in range(3, 9)] == [3, 4, 5, 6, 7, None]


@pytest.mark.parametrize("jitter_ns", [-STEP // 2 + 1, -1, 0, 1, STEP // 2 - 1])
def test_ticks_out_of_time_neither_skip_nor_repeat(jitter_ns: int) -> None:
    found = executor(start_ns=7)
    found.add(Chunk(7 + jitter_ns, ramp(0).actions), 7 + STEP)
    times = [7 + step * STEP + (jitter_ns if step % 2 else -jitter_ns // 2) for step in range(1, 8)]
    actions = [found.action(time) for time in times]
    assert [action.values[0] for action in actions if action is not None] == [1, 2, 3, 4, 5, 6, 7]


def test_the_newest_chunk_wins_from_its_arrival() -> None:
    found = executor()
    found.add(ramp(0), 0)
    found.add(ramp(2, offset=100.0), 4 * STEP)
    assert [value(found, step) for step in (2, 3, 4, 9)] == [2, 3, 104, 109]


def test_a_blend_goes_over_step_by_step() -> None:
    found = executor(overlap=Overlap.BLEND, blend_steps=3)
    found.add(ramp(0), 0)
    found.add(ramp(2, offset=100.0), 3 * STEP)
    assert [value(found, step) for step in range(2, 9)] == pytest.approx([2, 28, 54, 79 + 1, 106, 107, 108])
    action = found.action(4 * STEP)
    assert action is not None
    assert action.parts == ((0, 4, 0.5), (2 * STEP, 2, 0.5))


def test_an_ensemble_weighs_older_chunks_more() -> None:
    found = executor(overlap=Overlap.ENSEMBLE, decay=0.5)
    for step in range(3):
        found.add(ramp(step, offset=10.0 * step), step * STEP)
    weights = np.exp(-0.5 * np.arange(3))
    assert value(found, 2) == pytest.approx(2 + (weights @ [0, 10, 20]) / weights.sum())
    assert value(found, 9) == 29, "only the newest reaches this step"


def steps(found: ChunkExecutor, first: int, last: int, still: bool) -> None:
    """Let control steps begin, `last` among them."""
    for step in range(first, last + 1):
        found.begin(step * STEP, still=still)


def test_after_a_standstill_a_chunk_starts_from_its_first_action() -> None:
    """Seen at step 2 of a standstill, it comes in step 12: all its steps would be past on an arm that moves."""
    found = executor()
    steps(found, 0, 12, still=True)
    receipt = found.add(ramp(2), 12 * STEP + 1)
    assert (receipt.accepted, receipt.in_time, receipt.delay_steps) == (True, False, 11)
    assert [value(found, step) for step in (12, 13, 14, 20, 21)] == [None, 2, 3, 9, None]
    steps(found, 13, 15, still=False)
    found.add(ramp(11, offset=100.0), 15 * STEP)  # seen at rest too, and three actions have been executed since
    assert [value(found, step) for step in (15, 16, 17)] == [4, 114, 115]
    steps(found, 16, 30, still=False)
    moving = found.add(ramp(22), 30 * STEP)
    assert (moving.accepted, moving.reason) == (False, "all its steps are past: it came 9 steps after its observation")


def test_a_step_is_still_where_all_its_ticks_are() -> None:
    for ticks, delay in (((True, True), 0), ((True, False), 1), ((False, True), 1)):
        found = executor()
        for number, still in enumerate(ticks):
            found.begin(number * STEP // 4, still=still)
        found.add(ramp(0), STEP // 4)
        assert value(found, 1) == delay


def test_an_action_whose_step_has_begun_is_past() -> None:
    """It is looked up as the step begins: a chunk whose last action belongs to this step moves nothing."""
    found = executor(chunk_len=4)
    chunk = Chunk(0, np.zeros((4, 2)))
    steps(found, 0, 3, still=False)
    assert not found.add(chunk, 3 * STEP).accepted
    other = executor(chunk_len=4)
    steps(other, 0, 2, still=False)
    assert other.add(chunk, 3 * STEP).accepted
    blending = executor(overlap=Overlap.BLEND, blend_steps=1)
    blending.add(ramp(0), 0)
    steps(blending, 0, 3, still=False)
    blending.add(ramp(2, offset=100.0), 3 * STEP)
    assert [value(blending, step) for step in (4, 5)] == [54, 105], "the first action that is executed is blended"


def test_the_expected_delay_is_that_of_most_answers_used_or_not() -> None:
    found = executor(execution_horizon=4)
    found.add(ramp(0), 7 * STEP)  # the first one is slow
    found.add(Chunk(7 * STEP, np.zeros((8, 2))), 7 * STEP)
    asked = found.request(8 * STEP)
    assert (asked.frozen, found.delay_steps) == (0, 0), "it freezes nothing once another has come"
    for step in range(10, 30, 2):
        found.add(ramp(step), (step + 2) * STEP)
    assert found.delay_steps == 2
    found.add(ramp(30), 36 * STEP)
    assert found.delay_steps == 2, "nor does a slow one among others"
    for step in range(40, 140, 10):
        assert not found.add(ramp(step), (step + 9) * STEP).accepted
    assert found.delay_steps == 9, "where all are late, that is expected"


def test_the_first_answer_is_expected_again_for_a_horizon_at_most() -> None:
    found = executor(execution_horizon=4)
    found.add(ramp(0), 7 * STEP)
    assert found.delay_steps == 4


def test_the_pace_counts_what_an_arm_that_moves_would_use() -> None:
    found = executor(chunk_len=4)
    chunks = [Chunk(step * STEP, np.zeros((4, 2))) for step in (0, 2, 4, 6, 9)]
    for chunk, arrived in zip(chunks, (0, 3, 6, 10, 11), strict=True):  # the first counts for nothing, one is late
        found.add(chunk, arrived * STEP)
    found.add(Chunk(12 * STEP, np.zeros((3, 2))), 12 * STEP)
    pace = found.pace
    assert (pace.answers, pace.used, pace.steps, pace.reached) == (5, 3, 9, 6)  # 3 4 5, 6 7, 11 of 3 to 11
    assert pace.problem == "2 of 5 answers cannot be used: actions (3, 2) instead of (4, 2)"


def test_discrete_numbers_are_the_newest_chunks() -> None:
    for overlap in (Overlap.BLEND, Overlap.ENSEMBLE):
        found = executor(overlap=overlap, discrete=(1,))
        found.add(Chunk(0, np.tile([0.0, -1.0], (8, 1))), 0)
        found.add(Chunk(STEP, np.tile([1.0, 1.0], (8, 1))), STEP)
        action = found.action(STEP)
        assert action is not None
        assert 0 < action.values[0] < 1
        assert action.values[1] == 1


@pytest.mark.parametrize(
    ("chunk", "now", "reason"),
    [
        (Chunk(0, np.zeros((7, 2))), 0, "instead of (8, 2)"),
        (Chunk(0, np.full((8, 2), np.nan)), 0, "not finite"),
        (ramp(3), 0, "future"),
        (ramp(0), 8, "it came 8 steps after"),
        (ramp(1), 2, "a newer observation's chunk"),
        (ramp(0), 2, "a newer observation's chunk"),
    ],
)
def test_a_chunk_that_cannot_be_used_changes_nothing(chunk: Chunk, now: int, reason: str) -> None:
    found = executor()
    if "newer" in reason:
        found.add(ramp(1), STEP)
    before = [value(found, step) for step in range(12)]
    receipt = found.add(chunk, now * STEP)
    assert not receipt.accepted
    assert reason in receipt.reason
    assert [value(found, step) for step in range(12)] == before


def test_what_is_cleared_is_not_executed() -> None:
    found = executor()
    found.request(0)
    found.add(ramp(0), 0)
    assert not found.due(0)
    found.clear()
    assert value(found, 1) is None
    assert found.due(0)
    late = found.add(ramp(0), STEP)
    assert (late.accepted, late.reason) == (False, "a newer observation's chunk is in use")


def test_the_policy_is_asked_every_execution_horizon() -> None:
    found = executor(execution_horizon=4)
    assert found.due(0)
    found.request(0)
    assert [found.due(step * STEP) for step in (3, 4, 5)] == [False, True, True]


def test_the_prefix_is_what_will_have_been_executed() -> None:
    found = executor(execution_horizon=3)
    first = found.request(0)
    assert (first.planned, first.frozen) == (0, 0)
    assert not first.previous.any()
    assert not first.weights.any()
    found.add(ramp(0), 2 * STEP)
    found.add(ramp(1), 3 * STEP)
    again = found.request(4 * STEP)
    assert (again.planned, again.frozen, found.delay_steps) == (5, 2, 2)
    np.testing.assert_array_equal(again.previous[:, 0], [4, 5, 6, 7, 8, 0, 0, 0])
    np.testing.assert_array_equal(again.weights, prefix_weights(8, frozen=2, execution_horizon=3))


def test_a_policy_that_keeps_its_prefix_makes_no_seam() -> None:
    """The answer's first `frozen` actions are the old ones: the arm executes the same whenever the answer comes."""
    for delay in (0, 1, 2, 3):
        found = executor(execution_horizon=4)
        found.add(ramp(0), 3 * STEP)
        asked = found.request(4 * STEP)
        assert asked.frozen == 3
        new = np.full((8, 2), 50.0)
        new[: asked.frozen] = asked.previous[: asked.frozen]
        found.add(Chunk(asked.observed_ns, new), (4 + delay) * STEP)
        assert [value(found, step) for step in range(4, 8)] == [4, 5, 6, 50]


def test_the_soft_mask_by_hand() -> None:
    c = np.array([3, 2, 1]) / 4  # H - s - i for i = 2, 3, 4, over H - s - d + 1
    soft = c * (np.exp(c) - 1) / (np.e - 1)
    np.testing.assert_allclose(prefix_weights(8, frozen=2, execution_horizon=3), [1, 1, *soft, 0, 0, 0])
    np.testing.assert_array_equal(prefix_weights(4, frozen=0, execution_horizon=4), 0)
    np.testing.assert_array_equal(prefix_weights(4, frozen=2, execution_horizon=2), [1, 1, 0, 0])


@given(
    delays=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    overlap=st.sampled_from(Overlap),
    horizon=st.integers(1, 8),
)
@settings(max_examples=60, deadline=None)
def test_whatever_comes_actions_stay_between_those_of_the_chunks(
    delays: list[int], overlap: Overlap, horizon: int
) -> None:
    found, step = executor(overlap=overlap, execution_horizon=horizon), 0
    for number, delay in enumerate(delays):
        asked = found.request(step * STEP)
        assert asked.frozen <= asked.planned
        assert (np.diff(asked.weights) <= 1e-12).all()
        assert (asked.weights[asked.planned :] == 0).all()
        receipt = found.add(ramp(step, offset=float(number)), (step + delay) * STEP)
        assert receipt.accepted == (delay < 8)
        step += delay + 1
        action = found.action(step * STEP)
        if action is not None:
            assert action.step <= action.values[0] <= action.step + number
            assert sum(part[2] for part in action.parts) == pytest.approx(1)


@pytest.mark.parametrize(
    "changes", [{"chunk_len": 0}, {"execution_horizon": 9}, {"decay": -1.0}, {"discrete": (2,)}, {"blend_steps": 0}]
)
def test_configurations_that_make_no_sense(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        replace(CONFIG, **changes)

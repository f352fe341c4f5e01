"""The stream of episodes: whole groups, every episode once, balanced, resumable."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.rollout.retries import MAX_ATTEMPTS, FailureCause, RetryPolicy
from embodied_rl.rollout.sampler import EpisodeSampler, evaluation_specs
from embodied_rl.types import EpisodeSpec

TASKS = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.lists(st.integers(0, 99), min_size=1, max_size=7, unique=True),
    min_size=1,
    max_size=5,
)
SEEDS = st.integers(0, 2**40)


def take(sampler: EpisodeSampler, groups: int) -> list[EpisodeSpec]:
    return [spec for _ in range(groups) for spec in sampler.next_group()]


@given(SEEDS, TASKS, st.integers(1, 6), st.integers(1, 30))
@settings(deadline=None, max_examples=60)
def test_every_episode_once_and_groups_whole(
    seed: int, tasks: dict[str, list[int]], group_size: int, groups: int
) -> None:
    specs = take(EpisodeSampler(seed, tasks, group_size), groups)
    assert [spec.episode_id for spec in specs] == list(range(groups * group_size))
    assert len({spec.seed for spec in specs}) == len(specs)
    for group in range(groups):
        members = [spec for spec in specs if spec.group == group]
        assert [m.episode_id for m in members] == list(range(group * group_size, (group + 1) * group_size))
        assert len({(m.task, m.init_state) for m in members}) == 1
        assert members[0].init_state in tasks[members[0].task]


@given(SEEDS, TASKS)
@settings(deadline=None, max_examples=40)
def test_tasks_are_balanced_and_states_come_once_a_lap(seed: int, tasks: dict[str, list[int]]) -> None:
    lap = max(len(states) for states in tasks.values())
    specs = take(EpisodeSampler(seed, tasks), lap * len(tasks))
    for start in range(0, len(specs), len(tasks)):
        assert {spec.task for spec in specs[start : start + len(tasks)]} == set(tasks)
    for task, states in tasks.items():
        drawn = [spec.init_state for spec in specs if spec.task == task]
        assert sorted(drawn[: len(states)]) == sorted(states)


@given(SEEDS, TASKS, st.integers(1, 4), st.integers(0, 9), st.integers(1, 9))
@settings(deadline=None, max_examples=40)
def test_a_resumed_stream_goes_on_exactly(
    seed: int, tasks: dict[str, list[int]], group_size: int, first: int, more: int
) -> None:
    whole = EpisodeSampler(seed, tasks, group_size)
    for spec in take(whole, first):
        whole.finish(spec)
    resumed = EpisodeSampler(seed, tasks, group_size)
    resumed.load_state_dict(whole.state_dict())
    assert take(resumed, more) == take(whole, more)
    assert resumed.counts == whole.counts


def test_streams_of_different_seeds_differ() -> None:
    tasks = {"a": range(50), "b": range(50)}
    one, two = (take(EpisodeSampler(seed, tasks), 40) for seed in (0, 1))
    assert [(s.task, s.init_state) for s in one] != [(s.task, s.init_state) for s in two]
    assert not {s.seed for s in one} & {s.seed for s in two}


def test_the_ledger_refuses_what_was_not_issued_and_double_counting() -> None:
    sampler = EpisodeSampler(0, {"a": [0, 1]}, 2)
    first, second = sampler.next_group()
    sampler.finish(first)
    with pytest.raises(ValueError, match="not outstanding"):
        sampler.finish(first)
    with pytest.raises(ValueError, match="not outstanding"):
        sampler.finish(EpisodeSpec(7, "a", 0, 1))
    with pytest.raises(RuntimeError, match="in flight"):
        sampler.state_dict()
    sampler.finish(second)
    assert (sampler.counts.issued, sampler.counts.finished, sampler.counts.outstanding) == (2, 2, {})


def again(sampler: EpisodeSampler, spec: EpisodeSpec, cause: FailureCause = FailureCause.SIMULATOR) -> EpisodeSpec:
    found = sampler.requeue(spec, cause)
    assert found is not None
    return found


def test_a_failed_episode_is_run_again_same_first_then_with_new_seeds_then_given_up() -> None:
    sampler = EpisodeSampler(0, {"a": [5]})
    (spec,) = sampler.next_group()
    runs = [spec]
    for _ in range(MAX_ATTEMPTS - 1):
        runs.append(again(sampler, runs[-1]))
    assert runs[1] == runs[0]
    assert len({run.seed for run in runs}) == MAX_ATTEMPTS - 1
    assert {(run.episode_id, run.task, run.init_state, run.group) for run in runs} == {(0, "a", 5, 0)}
    assert sampler.requeue(runs[-1]) is None
    assert sampler.counts.finished == 0


def test_who_gave_an_episode_up_is_told_what_happened_to_it() -> None:
    sampler = EpisodeSampler(0, {"a": [5]})
    (spec,) = sampler.next_group()
    for cause in (FailureCause.POLICY, FailureCause.SIMULATOR, FailureCause.SIMULATOR, FailureCause.POLICY):
        spec = again(sampler, spec, cause)
    what = "not finite from the policy 3 times and broke the simulator 2 times"
    with pytest.raises(UserError, match=f"^episode 0 of .* got actions that are {what}; check the checkpoint with"):
        sampler.requeue(spec, FailureCause.POLICY)


def test_an_episode_that_ended_is_not_held_against_the_next() -> None:
    attempts = RetryPolicy()
    spec = EpisodeSpec(3, "a", 0, 1)
    for _ in range(3):
        assert [attempts.record_failure(spec, FailureCause.SIMULATOR) for _ in range(MAX_ATTEMPTS - 1)] == [1, 2, 3, 4]
        attempts.forget(spec)


@pytest.mark.parametrize("change", [{"seed": 1}, {"group_size": 4}, {"tasks": {"a": [0]}}])
def test_state_of_another_stream_is_refused(change: dict[str, object]) -> None:
    arguments = {"seed": 0, "tasks": {"a": [0, 1]}, "group_size": 2}
    state = EpisodeSampler(**arguments).state_dict()  # type: ignore[arg-type]
    with pytest.raises(UserError, match=next(iter(change))):
        EpisodeSampler(**(arguments | change)).load_state_dict(state)  # type: ignore[arg-type]


def test_tasks_without_states_are_refused() -> None:
    with pytest.raises(UserError, match="no tasks"):
        EpisodeSampler(0, {})
    with pytest.raises(UserError, match="'b' has no initial states"):
        EpisodeSampler(0, {"a": [1], "b": []})


@given(SEEDS, TASKS)
@settings(deadline=None, max_examples=30)
def test_evaluation_runs_each_task_and_state_once(seed: int, tasks: dict[str, list[int]]) -> None:
    specs = evaluation_specs(tasks, seed)
    expected = Counter((task, state) for task, states in tasks.items() for state in states)
    assert Counter((spec.task, spec.init_state) for spec in specs) == expected
    assert specs == evaluation_specs(tasks, seed)
    training = {spec.seed for spec in take(EpisodeSampler(seed, tasks), 20)}
    assert not training & {spec.seed for spec in specs}

"""A schedule played on paper: hand-worked times, what no schedule can do, and a search that a whole grid confirms."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.autotune.costs import Cost, Costs, fit
from embodied_rl.autotune.search import Choice, Space, ladder, predict, schedulers, search
from embodied_rl.autotune.simulate import Played, Work, play
from embodied_rl.benchmarks.pipeline import MICROBATCHES, work_of
from embodied_rl.benchmarks.pipeline_profiles import PROFILES
from embodied_rl.benchmarks.pipeline_timed import Profile
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.utils.profiler import Span

COSTS = Costs(
    simulate=Cost("cpu", row=0.4),
    act=Cost("gpu", row=0.01, fixed=0.1),
    learn=Cost("gpu", row=0.02, fixed=0.5),
    servers={"cpu": 4},
)
WORK = Work(worlds=8, groups=4, group_size=4, length=lambda spec: 5, microbatch=16)
ASYNC = PipelinedConfig(env_groups=4, mode="async")


def test_serial_by_hand() -> None:
    """16 episodes in 8 envs are 2 x 5 rounds; a round: 8 worlds on 4 cores, then the policy; then 80 rows learn."""
    played = play(COSTS, WORK, SerialConfig())
    assert played.rows == 3 * 80
    assert played.seconds == pytest.approx(3 * (10 * (8 * 0.4 / 4 + 0.18) + 80 * 0.02 + 0.5))


def test_two_halves_in_lockstep_hide_the_policy_behind_the_simulator() -> None:
    """A half takes 0.4 s to simulate and 0.14 s to act, so the simulator never waits but for the very first act."""
    played = play(COSTS, WORK, SerialConfig(), lockstep=2)
    assert played.seconds == pytest.approx(3 * (0.14 + 20 * 0.4 + 80 * 0.02 + 0.5))


def test_one_stage_by_hand() -> None:
    """One lane's worlds share one core; async hides the update, but for the step of the policy that a batch needs."""
    one = replace(WORK, worlds=1, groups=1, group_size=1)
    played = play(COSTS, one, PipelinedConfig(env_groups=1))
    assert played.seconds == pytest.approx(3 * (5 * (0.11 + 0.4) + 5 * 0.02 + 0.5))


def test_a_lane_stepped_by_several_threads_by_hand() -> None:
    """Three worlds in one lane on two of four cores: the longer share, of two worlds, is what a round takes."""
    costs = Costs(Cost("cpu", 0.4), Cost("gpu", 0.0), Cost("other", 0.0), servers={"cpu": 4})
    three = Work(worlds=3, groups=3, group_size=1, length=lambda spec: 5)
    config = PipelinedConfig(env_groups=1)
    for steppers, longest in ((1, 3), (2, 2), (3, 1), (8, 1)):
        played = play(replace(costs, steppers=steppers), three, config)
        assert played.seconds == pytest.approx(3 * 5 * 0.4 * longest)


def test_one_learner_thread_by_hand() -> None:
    """While the second of two episodes runs, the first one's micro-batches take turns; the second one's need not."""
    costs = Costs(Cost("sim", 0.1), Cost("gpu", 0.0), Cost("cpu", 0.2), servers={"cpu": 2}, learners=1)
    two = Work(worlds=1, groups=2, group_size=1, length=lambda spec: 8, microbatch=2)
    config = PipelinedConfig(env_groups=1)
    assert play(costs, two, config).seconds == pytest.approx(3 * (8 * 0.1 + 8 * 0.2 + 8 * 0.2 / 2))
    both = replace(costs, learners=None)
    assert play(both, two, config).seconds == pytest.approx(3 * (8 * 0.1 + 8 * 0.2 / 2 + 8 * 0.2 / 2))


def test_later_epochs_wait_for_the_last_row_by_hand() -> None:
    """The first episode is learned from while the second runs; the second pass over both follows, then the step."""
    costs = Costs(Cost("sim", 0.1), Cost("gpu", 0.0), Cost("other", 0.05, 0.3))
    two = Work(worlds=1, groups=2, group_size=1, length=lambda spec: 8, microbatch=2)
    for epochs in (1, 2, 3):
        later = (epochs - 1) * (16 * 0.05 + 0.3)
        stream = play(costs, replace(two, epochs=epochs), PipelinedConfig(env_groups=1))
        assert stream.seconds == pytest.approx(3 * (16 * 0.1 + 8 * 0.05 + 0.3 + later))
        serial = play(costs, replace(two, epochs=epochs), SerialConfig())
        assert serial.seconds == pytest.approx(3 * (16 * 0.1 + 16 * 0.05 + 0.3 + later))


def test_calls_steps_and_another_pass_by_hand() -> None:
    """20 rows in minibatches of 10, micro-batches of 4: 4 + 4 + 2, twice; another pass has 5 of 4."""
    costs = Costs(Cost("sim", 0.0), Cost("gpu", 0.0), Cost("gpu", 0.1, 0.3), learn_call=0.5)
    one = Work(worlds=1, groups=1, group_size=1, length=lambda spec: 20, microbatch=4, minibatch_size=10)
    assert play(costs, one, SerialConfig()).seconds == pytest.approx(3 * (20 * 0.1 + 6 * 0.5 + 2 * 0.3))
    again = replace(costs, evaluate=Cost("gpu", 0.02, 0.2))
    assert play(again, one, SerialConfig()).seconds == play(costs, one, SerialConfig()).seconds
    more = play(again, replace(one, recompute=True), SerialConfig()).seconds
    assert more == pytest.approx(3 * (20 * 0.1 + 6 * 0.5 + 2 * 0.3 + 20 * 0.02 + 5 * 0.2))
    unknown = play(costs, replace(one, recompute=True), SerialConfig()).seconds
    assert unknown == pytest.approx(3 * (20 * 0.1 + 6 * 0.5 + 2 * 0.3 + 20 * 0.1 / 3))


def test_stale_rows_are_evaluated_again_by_hand() -> None:
    """Two minibatches of 10 rows: 0.5 s to evaluate, 1 s to learn from each; a rollout takes no time."""
    costs = Costs(Cost("sim", 0.0), Cost("gpu2", 0.0), Cost("gpu", 0.1), evaluate=Cost("gpu", 0.05))
    two = Work(worlds=1, groups=2, group_size=1, length=lambda spec: 10, microbatch=10, minibatch_groups=1)
    ahead = PipelinedConfig(env_groups=1, mode="async", max_lookahead=2)
    elsewhere = replace(costs, evaluate=Cost("gpu2", 0.05))
    for config in (SerialConfig(), PipelinedConfig(env_groups=1)):
        assert play(costs, two, config).seconds == pytest.approx(3 * 2.0), "nothing is stale"
    assert play(costs, two, ahead, warm_up=0, measured=1).seconds == pytest.approx(2.0), "nor is the first batch"
    assert play(costs, two, ahead).seconds == pytest.approx(3 * 3.0)
    assert play(elsewhere, two, ahead).seconds == pytest.approx(3 * 2.5), "the second while the first is learned from"
    one = replace(ahead, max_lookahead=None)  # which fills the world
    assert play(costs, two, one).seconds == pytest.approx(3 * 2.5), "the other begins when its policy is there"
    by_rows = replace(two, minibatch_groups=None, minibatch_size=10)
    assert play(elsewhere, by_rows, ahead).seconds == pytest.approx(3 * 3.0), "a minibatch has rows of all episodes"
    both = replace(two, minibatch_size=10)  # where both are given, groups are learned from as they come
    assert play(elsewhere, both, ahead).seconds == pytest.approx(3 * 2.5)
    again = replace(both, recompute=True)  # all rows, whoever acted
    assert play(elsewhere, again, ahead).seconds == pytest.approx(3 * 2.5)
    stream = PipelinedConfig(env_groups=1)
    assert play(elsewhere, again, stream).seconds == pytest.approx(3 * 3.0), "the second came too late to be seen"
    assert play(elsewhere, again, SerialConfig()).seconds == pytest.approx(3 * 3.0), "before anything is learned"


work = st.builds(
    Work,
    worlds=st.integers(1, 12),
    groups=st.integers(1, 6),
    group_size=st.integers(1, 4),
    length=st.integers(1, 9).map(lambda most: lambda spec: 1 + spec.seed % most),
    microbatch=st.integers(1, 40),
    keep=st.sampled_from([None, (0.1, 0.9)]),
    max_factor=st.floats(1.0, 3.0),
    won=st.just(lambda spec: spec.seed % 3 > 0),
    epochs=st.integers(1, 3),
    minibatch_groups=st.none() | st.integers(1, 3),
    minibatch_size=st.none() | st.integers(1, 60),
    parts=st.booleans(),
)
number = st.floats(1e-3, 2.0)
costs = st.builds(
    Costs,
    simulate=st.builds(Cost, st.just("cpu"), number, number),
    act=st.builds(Cost, st.just("gpu"), number, number),
    learn=st.builds(Cost, st.sampled_from(["gpu", "gpu2", "cpu"]), number, number),
    servers=st.integers(1, 4).map(lambda cores: {"cpu": cores}),
)


@settings(max_examples=40, deadline=None)
@given(costs, work, st.integers(1, 6), st.sampled_from([None, "stream", "async"]))
def test_nothing_is_done_twice_at_once_or_not_at_all(
    costs: Costs, work: Work, stages: int, overlap: Literal["on_policy", "async"] | None
) -> None:
    config: SchedulerConfig = SerialConfig()
    if overlap is not None:
        config = PipelinedConfig(env_groups=min(stages, work.worlds), mode=overlap)
    played = play(costs, work, config, warm_up=0, measured=2)
    served: dict[str, list[Span]] = {}
    for span in played.spans:
        served.setdefault(span.worker, []).append(span)
    for spans in served.values():
        assert all(two.begin >= one.end - 1e-9 for one, two in pairwise(spans))
    again = sum(span.end - span.begin for span in played.spans if span.name == "evaluate")
    assert 0 <= again <= played.rows * costs.learn.row / 3 + work.epochs * 2 * 1e-6
    assert overlap == "async" or not again
    learned = sum(span.end - span.begin for span in played.spans if span.name == "learn")
    assert learned == pytest.approx(work.epochs * played.rows * costs.learn.row)
    busiest = max(
        sum(span.end - span.begin for span in spans if span.end <= played.seconds + 1e-9) for spans in served.values()
    )
    assert played.seconds >= busiest - 1e-6
    assert play(costs, work, config, warm_up=0, measured=2).seconds == played.seconds


def test_overlap_never_loses_to_waiting_on_devices_of_their_own() -> None:
    """With a device each and no fixed costs: async <= stream <= serial."""
    apart = Costs(simulate=Cost("a", 0.1), act=Cost("b", 0.1), learn=Cost("c", 0.1))
    lengths = replace(WORK, length=lambda spec: 1 + spec.seed % 9)
    times = [play(apart, lengths, config).seconds for config in (ASYNC, PipelinedConfig(env_groups=4), SerialConfig())]
    assert times == sorted(times)
    assert times[0] < 0.5 * times[2]


def grid(profile: Profile) -> Space:
    """What can be chosen on a profile."""
    return Space(
        placements={"": profile.costs},
        schedulers=schedulers(("stream", "async"), ladder(profile.worlds)[::2]),
        worlds=(profile.worlds // 2, profile.worlds),
        microbatches=MICROBATCHES,
    )


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_plan_is_within_a_tenth_of_the_best_of_the_whole_grid(profile: Profile) -> None:
    """The plan knows costs only from a few probes with 5 % of noise; the grid is played with the true ones."""
    draw = random.Random(profile.name)
    true, work = profile.costs, replace(work_of(profile), groups=12)
    noisy = replace(
        true,
        **{
            name: fit(cost.device, [(rows, cost.of(rows) * draw.uniform(0.95, 1.05)) for rows in (1, 2, 4, 8, 16, 32)])
            for name in ("simulate", "act")
            for cost in (getattr(true, name),)
        },
    )
    space = grid(profile)
    found = search(replace(space, placements={"": noisy}), work)
    played: dict[Choice, Played] = {choice: predict(space, work, choice) for choice in space.all()}
    best = min(value.seconds_per_row for value in played.values())
    assert played[found.choice].seconds_per_row <= 1.1 * best
    assert found.tried < len(played)


def test_a_search_takes_only_what_fits() -> None:
    space = replace(
        grid(PROFILES[2]),
        fits=lambda choice: choice.worlds * choice.microbatch <= 200 and choice.scheduler == ASYNC,
        schedulers=(SerialConfig(), ASYNC),
    )
    choice = search(space, replace(work_of(PROFILES[2]), groups=8)).choice
    assert choice.scheduler == ASYNC
    assert choice.worlds * choice.microbatch <= 200
    with pytest.raises(ValueError, match="no choice fits"):
        search(replace(space, fits=lambda choice: False), WORK)


def test_a_cost_is_read_off_its_probes() -> None:
    cost = fit("gpu", [(1, 0.3), (2, 0.5), (4, 0.9)])
    assert (cost.device, cost.row, cost.fixed) == ("gpu", pytest.approx(0.2), pytest.approx(0.1))
    assert fit("cpu", [(8, 0.8)]) == Cost("cpu", 0.1)
    assert fit("cpu", [(1, 0.1), (10, 2.0)]).fixed == 0  # never negative


def test_the_bound_counts_what_shares_a_device() -> None:
    """A call for all worlds at best: 100 rows are 10 calls."""
    costs = Costs(Cost("cpu", 0.4), Cost("gpu", 0.01, 0.1), Cost("gpu", 0.02, 0.5), {"cpu": 4})
    assert costs.bound(10, 100, 1) == pytest.approx(max(100 * 0.4 / 4, 100 * 0.01 + 10 * 0.1 + 100 * 0.02 + 0.5))
    assert costs.total(10, 100, 1) == pytest.approx(100 * 0.4 / 4 + 100 * 0.01 + 10 * 0.1 + 100 * 0.02 + 0.5)


def test_steps_between_powers_of_two() -> None:
    assert ladder(20) == (1, 2, 3, 4, 6, 8, 12, 16, 20)

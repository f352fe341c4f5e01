"""The adaptive sampler: its weights, and that no draw sees a batch that is still open."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import beta

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.rollout.adaptive import MEMORY, STATE_PRIOR, AdaptiveDraws, SuccessTracker, failure_rate
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.groups import BatchEnd, Group
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.types import EpisodeResult, EpisodeSpec

TASKS = {"always": [0, 1, 2], "never": [5, 6], "half": [0, 1, 2, 3]}
ODDS = {"always": 1.0, "never": 0.0, "half": 0.5}


def outcome(spec: EpisodeSpec) -> bool:
    return random.Random(spec.episode_id).random() < ODDS[spec.task]


def ended(spec: EpisodeSpec, success: bool) -> EpisodeResult:
    return EpisodeResult(spec, success, True, False, float(success), 1, 1)


def ends(task: str, init_state: int, successes: int, episodes: int) -> list[EpisodeResult]:
    """So many episodes of an initial state."""
    return [ended(EpisodeSpec(0, task, init_state, 0), number < successes) for number in range(episodes)]


@given(pairs=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=4))
@settings(deadline=None, max_examples=15)
def test_weights_are_expected_over_the_posterior(pairs: list[tuple[int, int]]) -> None:
    """Against integrals over its density."""
    counts = np.array([(min(pair), max(pair)) for pair in pairs], np.float64)
    wins, episodes = counts.sum(axis=0)
    mean = float(np.asarray(beta.mean(1 + wins, 1 + episodes - wins)))
    for (won, ran), weight in zip(counts, failure_rate(counts), strict=True):
        a, b = STATE_PRIOR * mean + won, STATE_PRIOR * (1 - mean) + ran - won
        mean_weight, _ = quad(lambda p, a=a, b=b: (1 - p) * beta.pdf(p, a, b), 0, 1)
        assert weight == pytest.approx(mean_weight, rel=1e-4)


@given(
    share=st.floats(0.01, 1.0),
    outcomes=st.lists(st.tuples(st.sampled_from(sorted(TASKS)), st.integers(0, 1), st.integers(0, 4)), max_size=40),
)
@settings(deadline=None, max_examples=60)
def test_every_task_and_state_keeps_its_uniform_part(share: float, outcomes: list[tuple[str, int, int]]) -> None:
    seen = [result for task, place, wins in outcomes for result in ends(task, TASKS[task][place], wins, 4)]
    tracker = SuccessTracker(TASKS, share).after(seen)
    for probability in (tracker.task_probability, *tracker.state_probability):
        assert probability.sum() == pytest.approx(1.0)
        assert probability.min() >= share / len(probability) * (1 - 1e-12)
    if share == 1.0:
        np.testing.assert_allclose(tracker.task_probability, 1 / 3)


def test_the_newest_batches_count_most() -> None:
    tracker = SuccessTracker({"a": [0]}, 0.5).after(ends("a", 0, 4, 4)).after(ends("a", 0, 1, 4))
    np.testing.assert_allclose(tracker.counts[0], [[MEMORY * 4 + 1, MEMORY * 4 + 4]])


@given(st.integers(0, 2**40), st.integers(0, 10**6), st.integers(1, 300))
@settings(deadline=None, max_examples=40)
def test_any_stretch_has_each_task_about_as_often_as_its_probability_says(seed: int, first: int, count: int) -> None:
    draws = AdaptiveDraws(seed, TASKS)
    outcomes = ends("always", 0, 8, 8) + ends("half", 1, 4, 8) + ends("never", 5, 0, 8)
    draws.close_batch(0, outcomes, lag=0)
    drawn = Counter(draws.draw(first + step, 1)[0] for step in range(count))
    probability = SuccessTracker(TASKS, 0.25).after(outcomes).task_probability
    for name, share in zip(TASKS, probability, strict=True):
        assert abs(drawn[name] - count * share) < 5.0


class CountsTheOpenBatch(GroupQueue):
    """Broken: each episode counts when it ends."""

    def add(self, trajectory: Trajectory) -> list[Trajectory]:
        draws = self.sampler._adaptive
        assert draws is not None
        draws._trackers[self._batch] = draws._trackers[self._batch].after([trajectory.result])
        return super().add(trajectory)


def make_queue(
    lag: int, draws: type[AdaptiveDraws] = AdaptiveDraws, queue: type[GroupQueue] = GroupQueue
) -> GroupQueue:
    sampler = EpisodeSampler(3, TASKS, 1, draws(3, TASKS))
    return queue(sampler, groups=24, lookahead=Lookahead(lag, 12 if lag else None))


def play(queue: GroupQueue, env_ids: int, batches: int, order: random.Random) -> tuple[list[EpisodeSpec], list[Any]]:
    """Episodes end in a random order: all of them, and the state after each batch.

    With a lookahead, weights are published late or at once.
    """
    running: list[EpisodeSpec] = []
    begun: list[EpisodeSpec] = []
    states: list[Any] = []
    start = queue.version
    queue.begin(start, start + batches)
    while len(states) < batches:
        while len(running) < env_ids and (spec := queue.next_episode()) is not None:
            running.append(spec)
            begun.append(spec)
        if running and order.random() < 0.8:
            spec = running.pop(order.randrange(len(running)))
            queue.add(Trajectory(ended(spec, outcome(spec))))
            continue
        while isinstance(event := queue.take(), Group):
            pass
        if isinstance(event, BatchEnd):
            states.append(json.loads(json.dumps(queue.sampler.state_dict(queue.next_group))))
            queue.publish(queue.version + 1)
        else:
            assert running
    return sorted(begun, key=lambda spec: spec.episode_id), states


def groups(specs: list[EpisodeSpec], most: int) -> dict[int, tuple[str, int]]:
    return {spec.group: (spec.task, spec.init_state) for spec in specs if spec.group < most}


class IgnoresTheLag(AdaptiveDraws):
    """Broken: it draws from every batch that has ended."""

    def draw(self, group: int, closed: int) -> tuple[str, int]:
        return super().draw(group, 10**9)


LAGS = [0, 1, 2]


@pytest.mark.parametrize("lag", LAGS)
def test_what_is_drawn_does_not_depend_on_the_order_in_which_episodes_end(lag: int) -> None:
    runs = [play(make_queue(lag), envs, 6, random.Random(envs)) for envs in (1, 3, 9, 24)]
    most = min(len({spec.group for spec in specs}) for specs, _ in runs)
    assert most >= 6 * 24
    first = groups(runs[0][0], most)
    assert len(set(first.values())) > 3
    for specs, states in runs[1:]:
        assert groups(specs, most) == first
        assert [state["adaptive"] for state in states] == [state["adaptive"] for state in runs[0][1]]


@pytest.mark.parametrize(
    "queue",
    [lambda: make_queue(1, IgnoresTheLag), lambda: make_queue(0, queue=CountsTheOpenBatch)],
    ids=["newer batches than the lag allows", "the open batch"],
)
def test_broken_samplers_depend_on_the_order(queue: Callable[[], GroupQueue]) -> None:
    """With a lookahead some groups of a batch begin before the one before has ended, others after."""
    runs = [play(queue(), envs, 6, random.Random(envs))[0] for envs in (1, 3, 9, 24)]
    assert len({str(groups(specs, 6 * 24)) for specs in runs}) > 1


@pytest.mark.parametrize("lag", LAGS)
def test_a_resumed_sampler_goes_on_exactly(lag: int) -> None:
    whole, states = play(make_queue(lag), 5, 6, random.Random(0))
    resumed = make_queue(lag)
    resumed.sampler.load_state_dict(states[2])
    resumed.version = 3
    more, later = play(resumed, 8, 3, random.Random(1))
    begun = groups(whole, 10**9)
    assert all(begun.get(group, where) == where for group, where in groups(more, 10**9).items())
    assert [state["adaptive"] for state in later] == [state["adaptive"] for state in states[3:]]


def test_more_of_what_fails() -> None:
    specs, _ = play(make_queue(0), 8, 12, random.Random(0))
    late = Counter(spec.task for spec in specs if spec.group >= 6 * 24)
    assert late["never"] > 1.5 * late["half"] > 1.5 * late["always"]
    assert min(late.values()) >= 0.25 / 3 * late.total() - 5


def test_another_sampler_does_not_go_on() -> None:
    uniform = EpisodeSampler(3, TASKS)
    adaptive = EpisodeSampler(3, TASKS, adaptive=AdaptiveDraws(3, TASKS))
    for one, two in ((uniform, adaptive), (adaptive, uniform)):
        with pytest.raises(UserError, match="another sampler"):
            one.load_state_dict(two.state_dict())
    with pytest.raises(UserError, match="another uniform_share"):
        EpisodeSampler(3, TASKS, adaptive=AdaptiveDraws(3, TASKS, 0.5)).load_state_dict(adaptive.state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampler": "best"}, "must be uniform or adaptive"),
        ({"uniform_share": 0.5}, "goes with --rollout.sampler adaptive"),
        ({"sampler": "adaptive", "uniform_share": 0.0}, r"must lie in \(0, 1\]"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        RolloutConfig(**options)


def test_groups_are_drawn_uniformly() -> None:
    config = TrainConfig(rollout=RolloutConfig(sampler="adaptive"), algorithm=GRPOConfig())
    with pytest.raises(UserError, match=r"sampler adaptive is for --algorithm ppo"):
        config.check()
    replace(config, algorithm=PPOConfig()).check()
    replace(config, rollout=RolloutConfig()).check()


def test_tasks_without_success_have_nothing_to_go_by() -> None:
    assert RolloutConfig().draws(0, TASKS, has_success=False) is None
    with pytest.raises(UserError, match="goes by success"):
        RolloutConfig(sampler="adaptive").draws(0, TASKS, has_success=False)

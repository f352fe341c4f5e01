"""Successive halving over made-up trials, and real trials on the toy world."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.autotune.trials import CLEARLY, FINALISTS, ROUNDS, Round, Trial, halve, num_trials, run_trial
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.threads import set_torch_threads
from tests.toy import TASKS, ToyEnv, ToyPolicy

CONFIG = TrainConfig(
    algorithm=GRPOConfig(group_size=4, success_rate_range=None),
    rollout=RolloutConfig(episodes_per_iteration=16),
    env=MujocoConfig(num_envs=8, num_threads=1),
    device="cpu",
    learner=LearnerConfig(minibatch_size=None, minibatch_groups=2, microbatch_size=32),
    num_threads=1,
)


def trial(rate: float) -> Trial:
    return Trial(seconds=1000 / rate, decisions=1000, spans=[])


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    set_torch_threads(before)


@given(
    order=st.permutations(range(9)),
    count=st.integers(1, 9),
    drift=st.floats(0.99, 1.01),
    noise=st.lists(st.floats(0.97, 1.03), min_size=64, max_size=64),
)
def test_the_fastest_wins_under_noise_that_is_small_against_the_gaps(
    order: list[int], count: int, drift: float, noise: list[float]
) -> None:
    """Speeds 15 % apart, 3 % of noise, and a machine that gets slower or faster all the while."""
    speeds = {f"c{index}": 100 * 1.15**index for index in order[:count]}
    made: list[str] = []

    def made_up(name: str, round_: Round) -> Trial:
        made.append(name)
        slow = drift ** (len(made) / max(1, count))  # little within a round
        return trial(speeds[name] * slow * noise[len(made)])

    best, outcomes = halve(list(speeds), made_up)
    assert best.candidate == max(speeds, key=speeds.__getitem__)
    assert [outcome.candidate for outcome in outcomes] == list(speeds)
    assert len(made) == num_trials(count) <= 2 * count + 2 * FINALISTS
    assert all(outcome.trials and outcome.error is None for outcome in outcomes)


def test_trials_are_paired_there_and_back() -> None:
    made: list[tuple[int, int]] = []

    def made_up(name: int, round_: Round) -> Trial:
        made.append((name, round_.waves))
        return trial(100 + 10 * name)

    halve([0, 1, 2, 3, 4], made_up)
    first, second, last = (round_.waves for round_ in ROUNDS)
    assert made == [
        *((name, first) for name in range(5)),
        *((name, second) for name in (2, 3, 4)),
        *((name, last) for name in (3, 4, 4, 3)),
    ]


def test_of_equals_the_simpler_one_is_chosen() -> None:
    slow, little, clearly = 100.0, 100 * (1 + (CLEARLY - 1) / 2), 100 * (1 + 2 * (CLEARLY - 1))
    for second, expected in ((little, 0), (clearly, 1)):
        speeds = [slow, second]
        assert halve([0, 1], lambda at, _, speeds=speeds: trial(speeds[at]))[0].candidate == expected


@given(failing=st.sets(st.integers(0, 5)), late=st.booleans())
def test_a_candidate_that_fails_is_out_by_name(failing: set[int], late: bool) -> None:
    """In its first or in a later trial; the others go on, and without any there is an error."""
    seen: dict[int, int] = {}

    def made_up(name: int, round_: Round) -> Trial:
        seen[name] = seen.get(name, 0) + 1
        if name in failing and seen[name] > int(late):
            raise MemoryError(f"number {name}\nand more")
        return trial(100 + 30 * name)

    if len(failing) == 6 and not late:
        with pytest.raises(RuntimeError, match=r"^MemoryError: number 0$"):
            halve(range(6), made_up)
        return
    try:
        best, outcomes = halve(range(6), made_up)
    except RuntimeError:
        assert late
        assert len(failing) > 2
        return
    assert best.candidate not in failing
    for outcome in outcomes:
        if outcome.error is not None:
            assert outcome.error == f"MemoryError: number {outcome.candidate}"
            assert not outcome.trials
        assert (outcome.error is None) == bool(outcome.trials)
    if not late:
        assert {outcome.candidate for outcome in outcomes if outcome.error} == failing
        assert best.candidate == max(set(range(6)) - failing)


def test_ctrl_c_is_not_a_failed_trial() -> None:
    def made_up(name: int, round_: Round) -> Trial:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        halve([0, 1, 2], made_up)


SCHEDULERS = [SerialConfig(), PipelinedConfig(env_groups=2), PipelinedConfig(env_groups=2, mode="async")]


@pytest.mark.parametrize("scheduler", SCHEDULERS, ids=lambda scheduler: scheduler.describe())
def test_a_trial_trains_a_copy_and_leaves_nothing_behind(
    scheduler: SchedulerConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy's policy learns, also under PPO whose critic learns alone at first; the original and torch's random
    stream stay as they are, and all threads end."""
    config = replace(
        CONFIG, algorithm=PPOConfig(critic_warmup_iterations=2), num_threads=2, scheduler=scheduler, autotune=True
    )
    learned: list[bool] = []
    update = Learner.update

    def watched(self: Learner, batch: RolloutBatch) -> dict[str, float]:
        before = self.policy.state_dict()["body.weight"].clone()
        out = update(self, batch)
        learned.append(not torch.equal(self.policy.state_dict()["body.weight"], before))
        return out

    monkeypatch.setattr(Learner, "update", watched)
    policy = ToyPolicy()
    policy.head.requires_grad_(False)
    weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    stream, threads = torch.get_rng_state(), threading.active_count()
    found = run_trial(config, ToyEnv(8), policy, TASKS)
    assert learned == [True] * (2 if scheduler == SCHEDULERS[2] else 1)
    assert found.seconds > 0
    assert found.decisions >= 16
    assert {"act", "simulate", "update"} <= {span.name for span in found.spans}
    assert all(torch.equal(policy.state_dict()[name], tensor) for name, tensor in weights.items())
    assert all(parameter.grad is None for parameter in policy.parameters())
    assert torch.equal(torch.get_rng_state(), stream)
    assert threading.active_count() == threads


def test_trials_of_on_policy_schedules_do_the_same_work() -> None:
    """Whatever the env groups, worlds and micro-batches: so their seconds compare."""
    configs = [
        CONFIG,
        replace(CONFIG, scheduler=SCHEDULERS[1]),
        replace(CONFIG, env=replace(CONFIG.env, num_envs=4), learner=replace(CONFIG.learner, microbatch_size=8)),
    ]
    work = {run_trial(config, ToyEnv(config.env.num_envs), ToyPolicy(), TASKS).decisions for config in configs}
    assert len(work) == 1

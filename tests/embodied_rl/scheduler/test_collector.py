"""Rollout: the batch does not depend on envs, failures leave no trace, rows say what happened."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.group_queue import GroupQueue, SuccessRateRange
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector
from embodied_rl.types import ActOutput, Observation, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.toy import ACTION_DIM, CHUNK, HORIZON, TASKS, ToyEnv, ToyPolicy


def collector(
    env: ToyEnv,
    policy: ToyPolicy,
    *,
    group_size: int = 4,
    groups: int = 6,
    keep: SuccessRateRange | None = None,
    max_factor: float = 3.0,
    final_value: bool = False,
) -> Collector:
    sampler = EpisodeSampler(5, TASKS, group_size)
    return Collector(
        env,
        policy,
        GroupExchange(GroupQueue(sampler, groups=groups, success_rate_range=keep, max_oversampling=max_factor)),
        Profiler(),
        final_value=final_value,
    )


def assert_same(one: RolloutBatch, two: RolloutBatch) -> None:
    assert one.episodes == two.episodes
    assert one.instruction == two.instruction
    for name in ("images", "proprio", "log_prob", "value", "reward", "mask", "episode"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=0, atol=0, msg=name)
    assert torch.equal(one.replay["tokens"], two.replay["tokens"])


@given(st.integers(1, 40), st.sampled_from([None, (0.1, 0.9)]))
@settings(deadline=None, max_examples=8)
def test_the_batch_does_not_depend_on_the_number_of_slots(env_ids: int, keep: SuccessRateRange | None) -> None:
    policy = ToyPolicy()
    reference, other = (collector(ToyEnv(n), policy, keep=keep) for n in (7, env_ids))
    for version in range(2):  # the second batch shows that the stream's position agrees too
        assert_same(reference.collect(version), other.collect(version))


def test_rows_hold_what_happened() -> None:
    policy = ToyPolicy()
    batch = collector(ToyEnv(5), policy, group_size=1, groups=400, final_value=True).collect(3)
    assert batch.version == 3
    assert batch.episode.tolist() == sorted(batch.episode.tolist())
    assert [e.spec.episode_id for e in batch.episodes] == list(range(400))
    for index, episode in enumerate(batch.episodes):
        rows = (batch.episode == index).nonzero()[:, 0]
        assert len(rows) == episode.num_decisions
        assert episode.num_decisions == -(-episode.num_steps // CHUNK)
        assert float(batch.reward[rows].sum()) == episode.reward == float(episode.success)
        assert episode.terminated == episode.success
        assert episode.truncated == (not episode.success)
        assert episode.truncated <= (episode.num_steps == HORIZON)
        terms = torch.zeros(episode.num_decisions * CHUNK * ACTION_DIM, dtype=torch.bool)
        terms[: episode.num_steps * ACTION_DIM] = True
        assert torch.equal(batch.mask[rows].flatten(), terms)
    ended_inside = [e for e in batch.episodes if e.num_steps % CHUNK]
    assert ended_inside, "the test needs an episode that ends inside a chunk"
    again = policy.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay)
    torch.testing.assert_close(again.log_prob, batch.log_prob, rtol=0, atol=0)


def test_truncated_episodes_carry_the_value_of_the_observation_after_the_last_step() -> None:
    """A policy whose value is the x position: the final value is where the point ended, not where it last acted."""
    policy = ToyPolicy()
    with torch.no_grad():
        policy.head.weight.zero_()
        policy.head.bias.copy_(torch.tensor([0.0, 0, 0, 90, 0] * CHUNK * ACTION_DIM))  # always half speed up and right

    def act(obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        out = ToyPolicy.act(policy, obs, rng, mode)
        return ActOutput(out.actions, out.log_prob, obs.proprio[:, 0].clone(), out.replay)

    policy.act = act  # type: ignore[method-assign]
    batch = collector(ToyEnv(6), policy, group_size=1, groups=20, final_value=True).collect(0)
    truncated = [e for e in batch.episodes if e.truncated]
    assert 0 < len(truncated) < 20
    for index, episode in enumerate(batch.episodes):
        last = batch.proprio[batch.episode == index][-1, 0].item()
        expected = min(last + CHUNK * 0.25 * 0.5, 1.0) if episode.truncated else 0.0
        assert episode.final_value == pytest.approx(expected, abs=1e-6)


def test_a_critic_that_is_missing_is_reported() -> None:
    with pytest.raises(RuntimeError, match="value head"):
        collector(ToyEnv(4), ToyPolicy(with_value=False), final_value=True).collect(0)


def test_a_simulator_failure_changes_nothing_but_the_ledger() -> None:
    policy = ToyPolicy()
    broken = ToyEnv(6, breaks={0: 1, 5: 1, 17: 1})
    whole, lossy = collector(ToyEnv(6), policy), collector(broken, policy)
    assert_same(whole.collect(0), lossy.collect(0))
    assert lossy.sampler.counts.requeued == 3
    assert lossy.sampler.counts.finished == lossy.sampler.counts.issued == 24
    assert len(broken.started) == 27


def test_where_every_episode_breaks_the_simulator_the_run_ends_in_one_line() -> None:
    every = {(task, state) for task, states in TASKS.items() for state in states}
    with pytest.raises(
        UserError, match=r"^the simulator breaks in 3 of 3 groups of training, .* initial state"
    ) as error:
        collector(ToyEnv(6, broken=every), ToyPolicy()).collect(0)
    assert "\n" not in str(error.value)


def test_dynamic_sampling_keeps_the_first_groups_with_contrast_and_runs_no_more_than_it_needs() -> None:
    policy = ToyPolicy()
    everything = collector(ToyEnv(9), policy, groups=30).collect(0)
    rates: dict[int, list[bool]] = {}
    for episode in everything.episodes:
        rates.setdefault(episode.spec.group, []).append(episode.success)
    passing = [group for group, wins in rates.items() if 0.1 <= sum(wins) / 4 <= 0.9]
    batch = collector(ToyEnv(9), policy, groups=4, keep=(0.1, 0.9), max_factor=9).collect(0)
    assert sorted({e.spec.group for e in batch.episodes}) == passing[:4]
    assert batch.info["rollout/episodes"] == 4 * (passing[3] + 1)
    assert batch.info["rollout/filtered_groups"] == passing[3] + 1 - 4
    assert batch.info["rollout/incomplete_batch"] == 0


def test_the_sampling_limit_gives_a_short_or_empty_batch_and_says_so() -> None:
    hopeless = collector(ToyEnv(8), ToyPolicy(), groups=4, keep=(1.0, 1.0), max_factor=2.5)
    batch = hopeless.collect(0)
    assert len(batch) == 0
    assert batch.info["rollout/incomplete_batch"] == 1
    assert batch.info["rollout/filtered_groups"] == 10
    assert hopeless.sampler.counts.outstanding == {}


def test_a_group_that_can_no_longer_pass_is_run_to_its_end() -> None:
    """In one env, each group is decided by its first failure, and all is the same as with many envs."""
    one, many = (collector(ToyEnv(n), ToyPolicy(), groups=2, keep=(1.0, 1.0), max_factor=5) for n in (1, 40))
    batch = one.collect(0)
    assert batch.episodes == many.collect(0).episodes
    assert batch.info["rollout/filtered_groups"] == 10
    assert batch.info["rollout/episodes"] == 40
    assert one.sampler.counts.finished == one.sampler.counts.issued == 40


def test_slots_are_refilled_at_once() -> None:
    """While episodes wait, every decision uses all envs."""
    sizes: list[int] = []

    class Counting(ToyPolicy):
        def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
            sizes.append(len(obs.instruction))
            return super().act(obs, rng, mode)

    batch = collector(ToyEnv(8), Counting(), group_size=1, groups=64).collect(0)
    shrinking = next(i for i, size in enumerate(sizes) if size < 8)
    assert sum(sizes) == len(batch)
    assert len(sizes) - shrinking < HORIZON // CHUNK  # only the last episodes drain
    assert sizes[shrinking:] == sorted(sizes[shrinking:], reverse=True)


def test_memory_is_reused_between_iterations() -> None:
    env = ToyEnv(8)
    allocated = [0]
    original = env.new_observation

    def counting(rows: int) -> Observation:
        allocated[0] += 1
        return original(rows)

    env.new_observation = counting  # type: ignore[method-assign]
    gather = collector(env, ToyPolicy(), group_size=1, groups=32)
    first = gather.collect(0)
    pixels = first.images.clone()
    needed = allocated[0]
    for version in range(1, 4):
        gather.collect(version)
    assert allocated[0] <= needed + 3  # episodes differ in length
    assert torch.equal(first.images, pixels)  # a batch owns its memory


def test_images_are_not_mixed_up_between_rows() -> None:
    batch = collector(ToyEnv(7), ToyPolicy(), group_size=2, groups=32).collect(0)
    for index in range(len(batch.episodes)):
        images = batch.images[batch.episode == index]
        assert (images == images[0]).all()  # the goal stays where it is
    assert len(np.unique(batch.images.numpy(), axis=0)) == 4


def test_a_group_size_that_does_not_divide_is_refused_with_numbers_that_do() -> None:
    assert RolloutConfig(episodes_per_iteration=64).groups(8) == 8
    with pytest.raises(UserError, match=r"--algorithm.group-size 8 does not divide .* 60; use 56 or 64"):
        RolloutConfig(episodes_per_iteration=60).groups(8)
    with pytest.raises(UserError, match="use 8 episodes"):
        RolloutConfig(episodes_per_iteration=6).groups(8)

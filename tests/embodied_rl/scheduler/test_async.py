"""Overlap `async`: never staler than allowed, really ahead, and corrected for what it is."""

from __future__ import annotations

import tempfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.advantages import gae
from embodied_rl.algorithms.config import AlgorithmConfig
from embodied_rl.algorithms.losses import MAX_IMPORTANCE
from embodied_rl.learner.batches import join_batches, split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.off_policy import ess_ratio, importance_correction, stale_metrics
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.rollout.metrics import empty_batch
from embodied_rl.types import EvalOutput, RolloutBatch
from embodied_rl.utils.threads import WorkerPool
from tests.embodied_rl.scheduler.toys import GRPO, KEEPING, PPO, Setup, SlowEnv, jitter, pipelined, serial
from tests.toy import ToyPolicy

BY_ROWS = LearnerConfig(lr=1e-2, minibatch_size=60, microbatch_size=24)
BY_GROUPS = replace(BY_ROWS, minibatch_size=None, minibatch_groups=2)
PATIENCE = 900.0


def staleness(batch: RolloutBatch) -> torch.Tensor:
    assert batch.row_version is not None
    return batch.version - batch.row_version


@given(
    algorithm=st.sampled_from([GRPO, KEEPING, PPO]),
    env_ids=st.integers(1, 9),
    stages=st.integers(1, 4),
    workers=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    most=st.integers(1, 3),
    slow_learner=st.booleans(),
    learner=st.sampled_from([BY_ROWS, BY_GROUPS]),
    groups=st.sampled_from([None, 1, 2, 5]),
)
@settings(deadline=None, max_examples=25)
def test_no_row_is_staler_than_allowed_and_every_batch_is_the_stream_s_next(
    algorithm: AlgorithmConfig,
    env_ids: int,
    stages: int,
    workers: int,
    seed: int,
    most: int,
    slow_learner: bool,
    learner: LearnerConfig,
    groups: int | None,
) -> None:
    setup = Setup(algorithm, groups=3, iterations=4, learner=learner, breaks={2: 1, 14: 1})
    pause = jitter(seed)
    with tempfile.TemporaryDirectory() as folder:
        found = pipelined(
            setup,
            Path(folder),
            env_ids=env_ids,
            stages=min(stages, env_ids),
            workers=workers,
            pause=pause,
            ahead=Lookahead(most, groups),
            during=lambda version: time.sleep(0.02) if slow_learner else None,
        )
    first = 0
    for batch, state in zip(found.batches, found.states, strict=True):
        assert 0 <= int(staleness(batch).min()) <= int(staleness(batch).max()) <= most if len(batch) else True
        found_groups = [episode.spec.group for episode in batch.episodes]
        assert found_groups == sorted(found_groups)
        assert all(first <= index < state["next_group"] for index in found_groups)
        assert state["issued"] == state["finished"] == state["next_group"] * found.sampler.group_size
        count = state["next_group"] - first
        assert count == batch.info["rollout/accepted_groups"] + batch.info["rollout/filtered_groups"]
        first = state["next_group"]
    assert found.sampler.counts.outstanding == {}
    assert len(found.episodes) == len(set(found.episodes))
    stopped = sum(batch.info["rollout/stopped"] for batch in found.batches)
    assert len(found.episodes) == found.sampler.counts.finished - stopped == first * found.sampler.group_size - stopped


@pytest.mark.parametrize("most", [1, 2])
def test_the_rollout_goes_on_during_an_update_just_as_far_as_it_may(tmp_path: Path, most: int) -> None:
    """The first update waits until nothing moves any more: then `most` further batches were begun, and no more."""
    setup = Setup(GRPO, groups=2, iterations=4, learner=BY_ROWS)
    env = SlowEnv(5)
    ahead: list[set[int]] = []

    def until_still(version: int) -> None:
        if version:
            return
        wanted = 2 * GRPO.group_size * (1 + most)
        end = time.monotonic() + PATIENCE
        while len(env.started) < wanted:
            assert time.monotonic() < end, "the next rollout does not begin"
            time.sleep(0.005)
        time.sleep(0.1)  # one too many would begin now
        ahead.append({spec.group // 2 for spec in env.started})

    found = pipelined(setup, tmp_path, env_ids=5, stages=5, env=env, ahead=Lookahead(most), during=until_still)
    assert ahead == [set(range(1 + most))]
    assert [int(staleness(batch).max()) for batch in found.batches[: 1 + most]] == list(range(1 + most))


def test_an_update_on_fresh_rows_is_that_of_the_oracle(tmp_path: Path) -> None:
    """With one batch nothing can be stale."""
    setup = Setup(GRPO, iterations=1, learner=BY_ROWS)
    one, two = serial(setup, tmp_path), pipelined(setup, tmp_path, ahead=Lookahead(2))
    for name, tensor in one.weights.items():
        torch.testing.assert_close(two.weights[name], tensor, rtol=0, atol=0, msg=name)
    assert "train/ess" not in two.metrics[0]


def stale_batch(setup: Setup, folder: Path, noise: float) -> tuple[RolloutBatch, Learner]:
    """A batch whose odd rows were acted by version 3, and a learner whose policy, version 4, is `noise` away."""
    (batch,) = serial(replace(setup, iterations=1), folder).batches
    batch.version = 4
    batch.row_version = 4 - torch.arange(len(batch)) % 2
    policy = ToyPolicy()
    with torch.no_grad():
        policy.head.weight.add_(noise * torch.randn(policy.head.weight.shape, generator=torch.manual_seed(1)))
        fresh = batch.row_version == 4
        again = policy.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay)
        batch.log_prob[fresh] = again.log_prob[fresh]
        if batch.value is not None and again.value is not None:
            batch.value[fresh] = again.value[fresh]
    return batch, setup.parts(policy, folder)[1]


def test_stale_rows_count_by_their_truncated_ratio(tmp_path: Path) -> None:
    """The gradient of one step, written out: sum of w min(r, 2) A grad log pi, no clipping at ratio 1."""
    config = replace(BY_ROWS, lr=10.0, minibatch_size=10**6, max_grad_norm=1e9)
    setup = Setup(replace(GRPO, entropy_coef=0.0), groups=8, learner=config)
    batch, learner = stale_batch(setup, tmp_path, noise=0.5)
    behaviour = batch.log_prob.clone()
    policy = learner.policy
    out = policy.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay)
    score = torch.tensor([e.reward for e in batch.episodes]).reshape(8, -1)
    advantage = (score - score.mean(1, keepdim=True)) / (score.std(1, keepdim=True) + 1e-6)
    ratio = (out.log_prob.detach() - behaviour).exp()
    assert (ratio[batch.row_version == 3] > MAX_IMPORTANCE).any()
    assert ((ratio - 1).abs() > 0.01).any(dim=1).equal(batch.row_version == 3)
    terms = batch.mask.float()
    per_episode = torch.zeros(len(batch.episodes)).index_add(0, batch.episode, terms.sum(1))
    weight = terms / per_episode[batch.episode][:, None] / len(batch.episodes) * ratio.clamp(max=2.0)
    loss = -(weight * advantage.flatten()[batch.episode][:, None] * out.log_prob).sum()
    expected = torch.autograd.grad(loss, [policy.head.weight, policy.body.weight])  # type: ignore[attr-defined]

    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    learner.optimizer_step.optimizer = torch.optim.SGD(list(dict(policy.named_parameters()).values()))  # type: ignore[assignment]
    metrics = learner.update(batch)
    decision = torch.where(batch.mask, out.log_prob.detach() - behaviour, 0.0).sum(dim=1).exp()
    ess = float(decision.sum() ** 2 / (decision**2).sum() / len(decision))  # of whole decisions, not of tokens
    assert ess < float(ratio[batch.mask].sum() ** 2 / (ratio[batch.mask] ** 2).sum() / batch.mask.sum()) - 0.05
    assert metrics["train/ess"] == pytest.approx(ess, rel=1e-5)
    old = decision[batch.row_version == 3]
    assert learner.ess == pytest.approx(float(old.sum() ** 2 / (old**2).sum() / len(old)), rel=1e-5)
    assert learner.ess == metrics["train/ess_stale"] < ess - 0.05, "of the stale ones alone"
    assert (metrics["train/staleness_max"], metrics["train/stale"]) == (1, len(old) / len(batch))
    rate = 10 * ess**0.5
    for name, gradient in zip(("head.weight", "body.weight"), expected, strict=True):
        moved = before[name] - policy.state_dict()[name]
        torch.testing.assert_close(moved, rate * gradient, rtol=1e-4, atol=1e-6)


def test_groups_and_rows_are_corrected_alike(tmp_path: Path) -> None:
    """One step over the whole batch, cut the one way and the other."""
    moved = []
    for way in ({"minibatch_size": 10**6}, {"minibatch_size": None, "minibatch_groups": 10**6}):
        setup = Setup(GRPO, learner=replace(BY_ROWS, **way))  # type: ignore[arg-type]
        batch, learner = stale_batch(setup, tmp_path, noise=0.3)
        learner.update(batch)
        moved.append(learner.policy.state_dict())
    for name in moved[0]:
        torch.testing.assert_close(moved[0][name], moved[1][name], rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("threads", [1, 2])
def test_stale_rows_are_valued_by_the_critic_that_learns(threads: int, tmp_path: Path) -> None:
    """Advantages, and the range of `value_clip`, come from its values on every row, whoever acted on it."""
    batch, learner = stale_batch(Setup(PPO), tmp_path, noise=0.3)
    assert batch.value is not None
    behaviour, stale = batch.value.clone(), batch.row_version == 3
    with torch.no_grad():
        learner.policy.value_head.weight.fill_(0.1)  # type: ignore[attr-defined]
        value = learner.policy.evaluate(batch.images, batch.proprio, batch.instruction, batch.replay).value
    assert value is not None
    assert ((value - behaviour).abs() > 1e-4)[stale].all()
    with closing(WorkerPool(threads, "learn")) as several:
        shared = several if threads > 1 else None
        importance_correction(batch, learner.policy, 10, threads=shared)
    torch.testing.assert_close(batch.value[stale], value[stale])
    assert torch.equal(batch.value[~stale], behaviour[~stale])  # as they were: not evaluated again
    learner.algorithm.prepare(batch, learner.policy.terms_per_step)
    _, returns = gae(batch.reward, torch.where(stale, value, behaviour), batch.episodes, PPO.gamma, PPO.gae_lambda)
    assert batch.returns is not None
    torch.testing.assert_close(batch.returns, returns)


@pytest.mark.parametrize("algorithm", [GRPO, PPO])
@pytest.mark.parametrize("way", [{"minibatch_size": 60}, {"minibatch_size": None, "minibatch_groups": 2}])
def test_rows_that_are_stale_by_name_only_are_learned_from_as_if_fresh(
    algorithm: AlgorithmConfig, way: dict[str, Any], tmp_path: Path
) -> None:
    """What is done for stale rows changes nothing by itself: only weights that differ can."""
    weights = []
    for lag in (0, 1):
        setup = Setup(algorithm, iterations=1, learner=replace(BY_ROWS, **way))
        (batch,) = serial(setup, tmp_path).batches
        policy = ToyPolicy()
        batch.version, batch.row_version = lag, torch.zeros(len(batch), dtype=torch.int64)
        batch.advantage = batch.returns = None
        metrics = setup.parts(policy, tmp_path)[1].update(batch)
        assert metrics.get("train/ess", 1.0) == pytest.approx(1.0, abs=1e-9)
        assert ("train/staleness" in metrics) == bool(lag)
        weights.append(policy.state_dict())
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=0, atol=1e-6, msg=name)


def test_what_stale_rows_are_worth(tmp_path: Path) -> None:
    """(sum r)^2 / (n sum r^2) of the ratios r of whole decisions, wherever the rows lie."""
    batch, _ = stale_batch(Setup(GRPO), tmp_path, noise=0.0)
    rows = len(batch)

    def of(ratios: torch.Tensor) -> RolloutBatch:
        terms = torch.zeros_like(batch.log_prob)
        terms[:, 0] = ratios.log()  # the first term is always executed
        return replace(batch, log_importance=terms)

    assert ess_ratio([batch]) == 1.0
    assert ess_ratio([of(torch.full((rows,), 0.3))]) == pytest.approx(1.0)
    assert ess_ratio([of(torch.tensor([1e6] + [1e-6] * (rows - 1)))]) == pytest.approx(1 / rows)
    half = of(torch.tensor([3.0, 1.0] + [1.0] * (rows - 2)))
    expected = (rows + 2) ** 2 / (rows * (rows + 8))
    assert ess_ratio([half]) == pytest.approx(expected)
    assert ess_ratio([half], torch.tensor([0, 1])) == pytest.approx(16 / 20)
    assert ess_ratio([half, batch]) == pytest.approx((2 * rows + 2) ** 2 / (2 * rows * (2 * rows + 8)))


@pytest.mark.parametrize("lr", [1e-4, 0.3])
def test_how_far_an_update_moved_says_what_stale_rows_will_be_worth(tmp_path: Path, lr: float) -> None:
    """Of fresh rows: the second minibatch's, under the policy that the first one's step made."""
    setup = Setup(GRPO, groups=4, iterations=1, learner=LearnerConfig(lr=lr, minibatch_groups=2, minibatch_size=None))
    (batch,) = serial(setup, tmp_path).batches
    policies = []
    for groups in (slice(0, 2), slice(0, 4)):
        batch.advantage = batch.returns = None
        learner = setup.parts(ToyPolicy(), tmp_path)[1]
        part = join_batches(list(split_groups(batch))[groups])
        learner.update(part)
        policies.append((learner, part))
    (first, _), (both, whole) = policies
    rows = slice(sum(map(len, list(split_groups(whole))[:2])), None)
    with torch.no_grad():
        now = first.policy.evaluate(
            whole.images[rows],
            whole.proprio[rows],
            whole.instruction[rows],
            {name: tensor[rows] for name, tensor in whole.replay.items()},
        ).log_prob
    ratio = torch.where(whole.mask[rows], now - whole.log_prob[rows], 0.0).sum(dim=1).exp()
    expected = float(ratio.sum() ** 2 / (ratio**2).sum() / len(ratio))
    assert both.ess == pytest.approx(expected, rel=1e-4)
    assert (both.ess > 0.999) == (lr < 1e-3)


def test_an_empty_batch_says_nothing_of_the_one_before(tmp_path: Path) -> None:
    batch, learner = stale_batch(Setup(GRPO), tmp_path, noise=0.5)
    learner.update(batch)
    assert learner.ess < 0.99
    learner.update(empty_batch(5))
    assert learner.ess == 1.0, "or the next rollout would wait for nothing"


def test_fresh_rows_are_left_alone(tmp_path: Path) -> None:
    batch, learner = stale_batch(Setup(GRPO), tmp_path, noise=0.3)
    batch.row_version = torch.full((len(batch),), 4)
    before = batch.log_prob.clone()
    importance_correction(batch, learner.policy, 10)
    assert (stale_metrics(batch, "token", 2), batch.log_importance) == ({}, None)
    assert torch.equal(batch.log_prob, before)


@pytest.mark.parametrize("case", ["stale", "recomputed"])
def test_the_learner_s_threads_share_the_rows_that_are_evaluated_again(case: str, tmp_path: Path) -> None:
    """Two microbatches meet: each waits until the other is evaluated too. Log-probs are those of one thread."""
    found = []
    for threads in (1, 2):
        setup = Setup(GRPO)
        batch, learner = stale_batch(setup, tmp_path, noise=0.3)
        if case == "recomputed":
            batch.row_version = None
            batch.log_prob += 0.01
        rows = len(batch) if batch.row_version is None else int((batch.row_version == 3).sum())
        config = LearnerConfig(microbatch_size=(rows + 1) // 2, recompute_old_log_probs=case == "recomputed")
        evaluate, meet = learner.policy.evaluate, threading.Barrier(2, timeout=PATIENCE)

        def together(*args: Any, threads: int = threads, evaluate: Any = evaluate, meet: Any = meet) -> EvalOutput:
            if threads > 1 and not torch.is_grad_enabled():
                meet.wait()
            out: EvalOutput = evaluate(*args)
            return out

        learner.policy.evaluate = together  # type: ignore[method-assign]
        with closing(
            Learner(learner.policy, learner.algorithm, config, seed=0, dump_dir=tmp_path, threads=threads)
        ) as several:
            before = batch.log_prob.clone()
            metrics = several.update(batch)
        assert not torch.equal(batch.log_prob, before)
        found.append((metrics.get("train/ess"), metrics.get("train/log_prob_drift"), batch.log_prob))
    assert found[0][:2] == found[1][:2]
    assert torch.equal(found[0][2], found[1][2])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algorithm", [GRPO, KEEPING, PPO])
def test_group_by_group_the_update_is_that_of_the_whole_batch(
    algorithm: AlgorithmConfig, threads: int, tmp_path: Path
) -> None:
    """Rows that older policies acted on are given log-probs and values by the weights that the update began with."""
    setup = Setup(algorithm, groups=6, iterations=4, learner=replace(BY_GROUPS, lr=3e-2), threads=threads)
    found = pipelined(setup, tmp_path, env_ids=8, pause=jitter(2), ahead=Lookahead(2, 5), ess=lambda: 1.0)
    assert sum(int((staleness(batch) > 0).sum()) for batch in found.batches if len(batch)) > 5
    policy = ToyPolicy()
    with closing(setup.parts(policy, tmp_path)[1]) as learner:
        for batch, metrics in zip(found.batches, found.metrics, strict=True):
            whole = replace(batch, log_importance=None, advantage=None, returns=None)
            if batch.log_importance is not None:
                whole.log_prob = batch.log_prob - batch.log_importance  # who acted
            again = learner.update(whole)
            assert again == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    for name, tensor in policy.state_dict().items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=0, atol=1e-5, msg=name)


def test_each_step_has_the_rate_that_its_own_rows_are_worth(tmp_path: Path) -> None:
    setup = Setup(GRPO, groups=4, learner=BY_GROUPS)
    batch, learner = stale_batch(setup, tmp_path, noise=0.5)
    assert batch.row_version is not None
    rows = sum(map(len, list(split_groups(batch))[:2]))
    batch.row_version[rows:] = 4  # the second minibatch is fresh
    rates: list[float] = []
    step = learner.optimizer_step.optimizer.step

    def noted(*args: Any) -> Any:
        rates.append(learner.optimizer_step.optimizer.param_groups[0]["lr"])
        return step(*args)

    learner.optimizer_step.optimizer.step = noted  # type: ignore[method-assign]
    learner.update(batch)
    first = list(split_groups(batch))[:2]
    assert rates == pytest.approx([1e-2 * ess_ratio(first) ** 0.5, 1e-2])
    assert rates[0] < 0.95e-2


def test_stale_rows_are_evaluated_while_others_are_learned_from(tmp_path: Path) -> None:
    """All groups that are there are begun with at once; the last of them waits here until the first is learned."""
    setup = Setup(GRPO, groups=4, iterations=2, learner=replace(BY_GROUPS, minibatch_groups=1))
    env = SlowEnv(8)
    learned = threading.Event()
    seen: list[int] = []

    def look(version: int) -> None:  # the second batch is whole before it is learned from
        end = time.monotonic() + PATIENCE
        while version == 0 and len(env.started) < 8 * GRPO.group_size:
            assert time.monotonic() < end, "the next rollout does not begin"
            time.sleep(0.005)
        time.sleep(0.1)

    def hold(group: RolloutBatch) -> None:
        if group.version == 1:
            seen.append(group.episodes[0].spec.group)
            assert len(seen) < 4 or learned.wait(PATIENCE), "nothing is learned meanwhile"

    accumulate = Learner.accumulate

    def watched(self: Learner, group: RolloutBatch) -> None:
        accumulate(self, group)
        if group.version == 1:
            learned.set()

    with patch.object(Learner, "accumulate", watched):
        found = pipelined(setup, tmp_path, env_ids=8, env=env, ahead=Lookahead(1), during=look, correcting=hold)
    assert seen == [4, 5, 6, 7]
    assert int(staleness(found.batches[1]).min()) == 1


def test_what_goes_wrong_in_correcting_ends_the_run(tmp_path: Path) -> None:
    def broken(group: RolloutBatch) -> None:
        raise RuntimeError("the other device is gone")

    setup = Setup(GRPO, groups=4, learner=BY_GROUPS)
    with pytest.raises(RuntimeError, match="the other device is gone"):
        pipelined(setup, tmp_path, ahead=Lookahead(1), correcting=broken)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("evaluate")]


@pytest.mark.parametrize(
    ("worth", "batch", "groups"), [(1.0, 8, 3), (0.8, 8, 3), (0.5, 8, 2), (0.5, 64, 3), (0.4, 12, 2), (0.01, 8, 0)]
)
def test_so_many_groups_may_begin_that_their_batch_keeps_its_sample(worth: float, batch: int, groups: int) -> None:
    given_ = Lookahead(1, 3).limited_by_ess(worth, batch)
    assert given_ == Lookahead(1, groups)
    share = groups / batch
    ratios = torch.full((batch * 1000,), 1.0, dtype=torch.float64)  # mean 1, and for stale rows mean square 1 / worth
    spread = (1 / worth - 1) ** 0.5
    stale = int(share * len(ratios))
    ratios[:stale] += spread * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(stale // 2)
    assert float(ratios.sum() ** 2 / (ratios**2).sum() / len(ratios)) >= 0.8 - 1e-9
    whole = Lookahead(3).limited_by_ess(worth, batch)
    assert whole == (Lookahead(3) if worth >= 0.8 else Lookahead(1, int(batch * 0.25 / (1 / worth - 1))))


@pytest.mark.parametrize("worth", [0.5, 0.8])
def test_after_a_batch_that_was_too_stale_the_next_rollout_waits(tmp_path: Path, worth: float) -> None:
    """Batch 0 was worth `worth`: whether batch 2 begins in the update on batch 1 depends on that."""
    setup = Setup(GRPO, groups=2, iterations=4, learner=BY_ROWS)
    env = SlowEnv(5)
    begun: list[int] = []

    def look(version: int) -> None:
        end = time.monotonic() + PATIENCE
        while version == 1 and worth >= 0.8 and len(env.started) <= 4 * GRPO.group_size:
            assert time.monotonic() < end, "the next rollout does not begin"
            time.sleep(0.005)
        time.sleep(0.05)
        begun.append(max(spec.group // 2 for spec in env.started))

    values = iter([1.0, worth])
    found = pipelined(
        setup, tmp_path, env_ids=5, stages=5, env=env, ahead=Lookahead(1), during=look, ess=lambda: next(values, 1.0)
    )
    assert begun == [1, 1 if worth < 0.8 else 2, 3, 3]
    assert int(staleness(found.batches[2]).max()) == (0 if worth < 0.8 else 1)


def test_the_simulator_is_free_in_a_pause(tmp_path: Path) -> None:
    """Evaluations use the same envs: in a pause no other thread may step or reset."""
    setup = Setup(GRPO, groups=2, iterations=4, learner=BY_ROWS)
    env = SlowEnv(5, jitter(3))
    inside = threading.Event()
    wrong: list[str] = []
    for name in ("reset", "step", "observe"):
        original = getattr(env, name)

        def watched(*args: object, original: object = original, name: str = name) -> object:
            if inside.is_set():
                wrong.append(name)
            return original(*args)  # type: ignore[operator]

        setattr(env, name, watched)

    def pause(version: int) -> None:
        inside.set()
        time.sleep(0.03)
        inside.clear()

    found = pipelined(setup, tmp_path, env_ids=5, stages=5, env=env, ahead=Lookahead(1), paused=pause)
    assert wrong == []
    assert len(found.batches) == 4

"""The learner: exact accumulation, the ratio check, non-finite numbers, parameter groups."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import NonFiniteError, RatioError, split_parameters
from embodied_rl.reward_model import with_rewards
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector
from embodied_rl.types import EvalOutput, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from tests.toy import TASKS, ToyEnv, ToyPolicy


def setup(
    tmp_path: Path, config: AlgorithmConfig, policy: ToyPolicy | None = None, **options: Any
) -> tuple[Learner, RolloutBatch]:
    policy = policy or ToyPolicy()
    algorithm = make_algorithm(config)
    sampler = EpisodeSampler(1, TASKS, algorithm.group_size)
    collector = Collector(
        ToyEnv(8),
        policy,
        GroupExchange(
            GroupQueue(
                sampler,
                groups=32 // algorithm.group_size,
                success_rate_range=algorithm.success_rate_range,
                max_oversampling=algorithm.max_oversampling,
            )
        ),
        Profiler(),
        final_value=algorithm.needs_final_value,
    )
    batch = collector.collect(0)
    learner = Learner(policy, algorithm, LearnerConfig(**options), seed=0, dump_dir=tmp_path / "dumps")
    return learner, batch


def weights(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}


@pytest.mark.parametrize("config", [GRPOConfig(entropy_coef=0.01), PPOConfig(entropy_coef=0.01)])
@pytest.mark.parametrize("microbatch", [1, 7, 1000])
def test_microbatches_add_up_exactly(tmp_path: Path, config: AlgorithmConfig, microbatch: int) -> None:
    results = []
    for size in (microbatch, 33):
        learner, batch = setup(tmp_path, config, ToyPolicy(), lr=1e-2, minibatch_size=40, microbatch_size=size)
        metrics = learner.update(batch)
        results.append((metrics, weights(learner)))
    (one, w1), (two, w2) = results
    assert one == pytest.approx(two, rel=1e-3, abs=1e-5)
    for name in w1:
        torch.testing.assert_close(w1[name], w2[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("config", [GRPOConfig(), PPOConfig(), PPOConfig(critic_warmup_iterations=1)])
def test_threads_change_nothing_but_rounding_and_repeat_exactly(tmp_path: Path, config: AlgorithmConfig) -> None:
    moved = []
    for threads in (1, 3, 3):
        policy = ToyPolicy()
        learner, batch = setup(tmp_path, config, policy, minibatch_size=40, microbatch_size=7)
        learner = Learner(policy, learner.algorithm, learner.config, seed=0, dump_dir=tmp_path, threads=threads)
        metrics = learner.update(batch)
        moved.append((metrics, weights(learner)))
    (one, w1), (three, w3), (again, w3_again) = moved
    assert three == again
    assert one == pytest.approx(three, rel=1e-3, abs=1e-5)
    for name in w1:
        torch.testing.assert_close(w1[name], w3[name], rtol=1e-3, atol=1e-5)
        assert torch.equal(w3[name], w3_again[name])


def test_what_stops_a_microbatch_stops_the_update_of_all_threads(tmp_path: Path) -> None:
    policy = ToyPolicy()
    learner, batch = setup(tmp_path, GRPOConfig(), policy, microbatch_size=7)
    learner = Learner(policy, learner.algorithm, learner.config, seed=0, dump_dir=tmp_path, threads=2)
    batch.log_prob[-1] += 1.0
    before = weights(learner)
    with pytest.raises(RatioError):
        learner.update(batch)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(learner).items())


def test_minibatch_gradients_average_to_that_of_the_batch(tmp_path: Path) -> None:
    """Seen through a plain SGD step of tiny size, which is linear in the gradient."""
    moves = []
    for rows in (16, 10_000):
        learner, batch = setup(tmp_path, GRPOConfig(), ToyPolicy(), minibatch_size=rows, max_grad_norm=1e9)
        before = weights(learner)
        learner.optimizer_step.optimizer = torch.optim.SGD(learner.policy.parameters(), lr=1e-2)  # type: ignore[attr-defined]
        metrics = learner.update(batch)
        steps = metrics["train/steps"]
        moves.append({name: (after - before[name]) / steps for name, after in weights(learner).items()})
    for name in ("body.weight", "head.weight", "head.bias"):
        torch.testing.assert_close(moves[0][name], moves[1][name], rtol=0.05, atol=1e-6)


def test_every_row_is_used_once_an_epoch(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, GRPOConfig(epochs=3), minibatch_size=20, microbatch_size=8)
    seen: list[int] = []
    original = learner.algorithm.loss

    def spy(policy: Any, rows: Any, iteration: int) -> Any:
        seen.extend(rows.index.tolist())
        return original(policy, rows, iteration)

    learner.algorithm.loss = spy  # type: ignore[method-assign]
    learner.update(batch)
    count = len(batch)
    epochs = [seen[i * count : (i + 1) * count] for i in range(3)]
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_a_policy_that_disagrees_with_itself_is_found_before_the_first_step(tmp_path: Path) -> None:
    class Forgetful(ToyPolicy):
        """Divides its logits by another temperature when it learns."""

        def evaluate(self, *arguments: Any) -> EvalOutput:
            out = super().evaluate(*arguments)
            return EvalOutput(out.log_prob * 0.9, out.entropy, out.value)

    learner, batch = setup(tmp_path, GRPOConfig(), Forgetful())
    before = weights(learner)
    with pytest.raises(RatioError, match=r"update 1 a probability ratio differs from 1 by .* act\(\) and evaluate\(\)"):
        learner.update(batch)
    assert all(torch.equal(before[name], after) for name, after in weights(learner).items())


@pytest.mark.parametrize("coarse", ["", "autocast", "a frozen weight"])
def test_advice_for_rounding_is_given_only_where_something_rounds(tmp_path: Path, coarse: str) -> None:
    class Otherwise(ToyPolicy):
        """Its rows look improbable when it learns."""

        def evaluate(self, *arguments: Any) -> EvalOutput:
            out = super().evaluate(*arguments)
            return EvalOutput(out.log_prob * 1.5, out.entropy, out.value)

    policy: Any = Otherwise()
    if coarse == "autocast":
        policy.mixed_precision = True
    if coarse == "a frozen weight":
        policy.register_parameter("frozen", nn.Parameter(torch.zeros(1, dtype=torch.bfloat16), requires_grad=False))
    learner, batch = setup(tmp_path, GRPOConfig(), policy)
    with pytest.raises(RatioError) as raised:
        learner.update(batch)
    assert ("--learner.recompute-old-log-probs" in str(raised.value)) == bool(coarse)


class Counting:
    """A reward model that pays each row 1 more, and says how often it saw one."""

    needs_final_images = False
    judged = 0

    def relabel(self, batch: RolloutBatch) -> RolloutBatch:
        self.judged += len(batch)
        return with_rewards(batch, batch.reward + 1)

    def drain(self) -> dict[str, float]:
        return {}


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("sizes", [{"minibatch_size": 16}, {"minibatch_size": None, "minibatch_groups": 3}])
def test_a_reward_model_judges_each_row_once_also_for_statistics(
    tmp_path: Path, streams: bool, sizes: dict[str, Any]
) -> None:
    """The policy takes in whole batches, with the returns of the judged rewards."""
    taken: list[RolloutBatch] = []
    policy: Any = ToyPolicy()
    policy.register_buffer("count", torch.zeros(1))
    policy.traits = replace(ToyPolicy.traits, update_normalizer=taken.append)
    learner, batch = setup(tmp_path, PPOConfig(), policy, **sizes)
    judge = Counting()
    learner = Learner(
        policy, learner.algorithm, learner.config, seed=0, dump_dir=tmp_path / "dumps", reward_model=judge
    )
    if streams and learner.config.minibatch_groups is not None:
        for group in split_groups(batch):
            learner.accumulate(group)
    learner.update(batch)
    assert judge.judged == len(batch)
    (normalized,) = taken
    assert torch.equal(normalized.reward, batch.reward + 1)
    assert normalized.returns is not None


def test_statistics_that_no_checkpoint_would_hold_are_refused(tmp_path: Path) -> None:
    policy: Any = ToyPolicy()
    policy.traits = replace(ToyPolicy.traits, update_normalizer=print)
    with pytest.raises(UserError, match=r"ToyPolicy has PolicyTraits\.update_normalizer and no buffer"):
        setup(tmp_path, GRPOConfig(), policy)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_non_finite_number_stops_the_step_and_dumps_the_batch(tmp_path: Path, where: str) -> None:
    learner, batch = setup(tmp_path, GRPOConfig(), minibatch_size=10_000)
    before = weights(learner)
    if where == "loss":
        batch.log_prob[3] = float("nan")
        batch.mask[3] = True
        learner.optimizer_step.config = LearnerConfig(minibatch_size=10_000, ratio_tolerance=1e9)
    else:
        learner.policy.head.weight.register_hook(lambda g: g * float("inf"))  # type: ignore[attr-defined]
    with pytest.raises(NonFiniteError, match="no step was taken") as error:
        learner.update(batch)
    assert all(torch.equal(before[name], after) for name, after in weights(learner).items())
    (dump,) = (tmp_path / "dumps").iterdir()
    assert str(dump) in str(error.value)
    content = torch.load(dump, weights_only=True)
    assert torch.equal(content["images"], batch.images)
    assert torch.equal(content["replay"]["tokens"], batch.replay["tokens"])


def test_the_critic_has_its_own_learning_rate_and_grpo_leaves_it_alone(tmp_path: Path) -> None:
    ppo, batch = setup(tmp_path, PPOConfig(), lr=1e-9, value_lr=1e-2)
    before = weights(ppo)
    ppo.update(batch)
    moved = {name: (after - before[name]).abs().max().item() for name, after in weights(ppo).items()}
    assert moved["value_head.weight"] > 1e-3
    assert moved["head.weight"] < 1e-6
    grpo, batch = setup(tmp_path, GRPOConfig(), lr=1e-2, weight_decay=0.1)
    before = weights(grpo)
    grpo.update(batch)
    after = weights(grpo)
    assert torch.equal(before["value_head.bias"], after["value_head.bias"])
    assert not torch.equal(before["head.weight"], after["head.weight"])


def test_in_warm_up_the_policy_does_not_move_at_all(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, PPOConfig(critic_warmup_iterations=1), lr=1e-2, value_lr=1e-2, weight_decay=0.1)
    before = weights(learner)
    learner.update(batch)
    after = weights(learner)
    assert torch.equal(before["head.weight"], after["head.weight"])
    assert torch.equal(before["body.weight"], after["body.weight"])
    assert not torch.equal(before["value_head.weight"], after["value_head.weight"])
    batch.log_prob = batch.log_prob.clone()
    learner.update(batch)
    assert not torch.equal(before["head.weight"], weights(learner)["head.weight"])


def test_ppo_on_a_policy_without_a_value_head_is_refused(tmp_path: Path) -> None:
    policy = ToyPolicy(with_value=False)
    del policy.value_head
    with pytest.raises(UserError, match="no value head"):
        Learner(policy, make_algorithm(PPOConfig()), LearnerConfig(), seed=0, dump_dir=tmp_path)


def test_frozen_parameters_are_left_out() -> None:
    policy = ToyPolicy()
    policy.body.requires_grad_(False)
    actor, critic = split_parameters(policy, policy.traits.critic)
    assert {id(p) for p in actor} == {id(policy.head.weight), id(policy.head.bias)}
    assert {id(p) for p in critic} == {id(policy.value_head.weight), id(policy.value_head.bias)}


def test_an_empty_batch_changes_nothing_but_counts(tmp_path: Path) -> None:
    learner, _ = setup(tmp_path, GRPOConfig())
    collector = Collector(
        ToyEnv(4),
        learner.policy,
        GroupExchange(GroupQueue(EpisodeSampler(0, TASKS, 4), groups=2, success_rate_range=(1.0, 1.0))),
        Profiler(),
    )
    before = weights(learner)
    assert learner.update(collector.collect(0)) == {"train/num_samples": 0, "train/steps": 0}
    assert learner.version == 1
    assert all(torch.equal(before[name], after) for name, after in weights(learner).items())


@pytest.mark.parametrize("way", [{"minibatch_size": 40}, {"minibatch_size": None, "minibatch_groups": 2}])
def test_between_updates_no_gradient_takes_memory(tmp_path: Path, way: dict[str, Any]) -> None:
    """`embodied-rl plan` gives that memory to the rollout."""
    learner, batch = setup(tmp_path, PPOConfig(epochs=2), **way)
    learner.update(batch)
    assert all(parameter.grad is None for _, parameter in learner.policy.named_parameters())


def test_saved_state_continues_exactly(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, PPOConfig(), lr=1e-2)
    learner.update(batch)
    copy_policy = copy.deepcopy(learner.policy)
    other = Learner(copy_policy, learner.algorithm, learner.config, seed=0, dump_dir=tmp_path)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    learner.optimizer_step.config = other.optimizer_step.config = LearnerConfig(ratio_tolerance=1e9)
    assert learner.update(batch) == other.update(batch)
    for (name, one), two in zip(weights(learner).items(), weights(other).values(), strict=True):
        assert torch.equal(one, two), name


@pytest.mark.parametrize("bad", [{"lr": 0.0}, {"minibatch_size": 0}, {"weight_decay": -1.0}, {"betas": (0.9, 1.0)}])
def test_options_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(bad)).replace("_", "-")):
        LearnerConfig(**bad)


def test_learning_rates_fall_linearly_to_a_tenth_and_are_those_in_use(tmp_path: Path) -> None:
    config = LearnerConfig(lr_decay_updates=10)
    assert [round(config.lr_factor(update), 3) for update in (0, 5, 10, 40)] == [1.0, 0.55, 0.1, 0.1]
    assert LearnerConfig().lr_factor(1000) == 1.0
    config = LearnerConfig(lr_warmup_updates=3, lr_decay_updates=100)
    assert [round(config.lr_factor(update), 4) for update in (0, 1, 3, 100)] == [0.25, 0.4955, 0.973, 0.1]
    learner, batch = setup(tmp_path, PPOConfig(), lr=1e-3, value_lr=1e-2, lr_decay_updates=10)[:2]
    learner.version = 5
    learner.update(batch)
    assert [group["lr"] for group in learner.optimizer_step.optimizer.param_groups] == pytest.approx([0.55e-3, 0.55e-2])

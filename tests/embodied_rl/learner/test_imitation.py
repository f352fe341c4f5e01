"""The imitation term of an update: its gradient and schedule, and that seed, update and step alone decide it."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig, demo_weight
from embodied_rl.errors import UserError
from embodied_rl.learner import imitation
from embodied_rl.learner.imitation import BATCH, DemoRows, Demos, Imitation
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import NonFiniteError
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainSettings
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.learner.test_learner import setup, weights
from tests.embodied_rl.toy_run import JsonObserver, files_of, newest, settings_of
from tests.policies.pi0_models import tiny_policy
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy
from tests.toy_demos import toy_demos

COEF = 0.3
GRPO, PPO = GRPOConfig(demo_coef=COEF), PPOConfig(demo_coef=COEF)
BY_ROWS = {"minibatch_size": 40, "microbatch_size": 7}
BY_GROUPS = {"minibatch_size": None, "minibatch_groups": 16, "microbatch_size": 7}


def imitating(
    tmp_path: Path, config: AlgorithmConfig, demos: Demos | None, **options: Any
) -> tuple[Learner, RolloutBatch]:
    """A learner whose steps are linear in the gradient."""
    learner, batch = setup(tmp_path, config, ToyPolicy(), max_grad_norm=1e9, **options)
    learner.optimizer_step.optimizer = torch.optim.SGD(learner.policy.parameters(), lr=1e-2)  # type: ignore[attr-defined]
    learner.optimizer_step.config = replace(learner.config, lr=1e-2, value_lr=1e-2)
    if demos is not None:
        learner.imitate(Imitation(demos, config, seed=0))
    return learner, batch


def moves(learner: Learner, batch: RolloutBatch) -> tuple[dict[str, Tensor], dict[str, float]]:
    before = weights(learner)
    metrics = learner.update(batch)
    return {name: after - before[name] for name, after in weights(learner).items()}, metrics


def written_out(update: int, step: int) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradient of the term's whole batch by the policy itself."""
    policy, demos = ToyPolicy(), toy_demos(1.0, 2.0)
    number = update * imitation._MAX_STEPS + step
    seed = Imitation(demos, PPO, seed=0)._seed
    batches = demos.mixture.draw(number, BATCH, seed, demos.change)
    assert sum(map(len, batches)) == BATCH
    assert any(batch.action_mask is not None for batch in batches)
    loss = torch.zeros(())
    for each in batches:
        inputs = each.images, each.proprio, each.instruction, each.actions, None, each.action_mask
        loss = loss + len(each) / BATCH * policy.sft_loss(*inputs)
    loss.backward()
    found = {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in policy.named_parameters()}
    return loss.item(), found


@pytest.mark.parametrize("config", [GRPO, PPO])
@pytest.mark.parametrize("options", [BY_ROWS | {"minibatch_size": 10**6}, BY_GROUPS | {"minibatch_groups": 10**6}])
def test_a_step_moves_by_both_gradients(tmp_path: Path, config: AlgorithmConfig, options: dict[str, Any]) -> None:
    one_step = replace(config, epochs=1)
    both, metrics = moves(*imitating(tmp_path, one_step, toy_demos(1.0, 2.0), **options))
    alone, without = moves(*imitating(tmp_path, replace(one_step, demo_coef=0.0), None, **options))
    assert metrics["train/steps"] == 1
    loss, gradient = written_out(0, 0)
    assert metrics["train/demo_loss"] == pytest.approx(loss, rel=1e-5)
    assert metrics["train/demo_coef"] == COEF
    assert metrics["train/loss"] == pytest.approx(without["train/loss"], abs=1e-6)
    assert "train/demo_loss" not in without
    for name, moved in both.items():
        torch.testing.assert_close(moved, alone[name] - 1e-2 * COEF * gradient[name], rtol=1e-3, atol=1e-6)
    assert gradient["head.weight"].abs().max() > 1e-3


@pytest.mark.parametrize("config", [GRPO, PPO])
@pytest.mark.parametrize("options", [BY_ROWS, BY_GROUPS])
def test_microbatches_and_threads_change_nothing_but_rounding(
    tmp_path: Path, config: AlgorithmConfig, options: dict[str, Any]
) -> None:
    found = []
    for threads, size in ((1, 100), (1, 5), (3, 100), (3, 100)):
        policy = ToyPolicy()
        learner, batch = setup(tmp_path, config, policy, **options | {"microbatch_size": size})
        learner = Learner(policy, learner.algorithm, learner.config, seed=0, dump_dir=tmp_path, threads=threads)
        learner.imitate(Imitation(toy_demos(1.0, 2.0), config, seed=0))
        found.append((learner.update(batch), weights(learner)))
        learner.close()
    assert found[2][0] == found[3][0]
    for metrics, after in found[1:]:
        assert metrics == pytest.approx(found[0][0], rel=1e-3, abs=1e-5)
        for name, tensor in found[0][1].items():
            torch.testing.assert_close(after[name], tensor, rtol=1e-3, atol=1e-5)


def test_every_step_imitates_other_chunks() -> None:
    term = Imitation(toy_demos(1.0), PPO, seed=0)

    def seen(update: int, step: int, demos: Imitation = term) -> bytes:
        (rows,) = demos.rows(update, step)
        return rows.batch.images.numpy().tobytes() + rows.batch.actions.numpy().tobytes() + rows.rng.seed.tobytes()

    places = [(0, 0), (0, 1), (1, 0), (1, 1), (7, 500)]
    assert len({seen(*place) for place in places}) == len(places)
    assert (
        seen(1, 1)
        == seen(1, 1, Imitation(toy_demos(1.0), PPO, seed=0))
        != seen(1, 1, Imitation(toy_demos(1.0), PPO, 1))
    )


@pytest.mark.parametrize(("ranks", "most"), [(1, 64), (3, 4), (5, 64), (70, 1)])
def test_ranks_share_out_the_chunks_of_a_step(ranks: int, most: int) -> None:
    term = Imitation(toy_demos(1.0, 2.0), PPO, seed=0)
    whole = term.rows(0, 3)
    shares = [term.rows(0, 3, rank=rank, ranks=ranks, most=most) for rank in range(ranks)]
    assert len({len(found) for found in shares}) == 1  # FSDP's ranks take all passes together
    assert all(len(rows.batch) <= most for found in shares for rows in found)
    counted = [rows for found in shares for rows in found if rows.share]
    assert sum(rows.share for rows in counted) == pytest.approx(1)

    def parts(rows: Sequence[DemoRows]) -> list[tuple[bytes, int]]:
        return sorted(
            (each.batch.proprio[row].numpy().tobytes(), int(each.rng.seed[row]))
            for each in rows
            for row in range(len(each.batch))
        )

    assert parts(counted) == parts(whole)


def test_weights_decide_how_often_a_data_set_is_drawn() -> None:
    mixture = toy_demos(1.0, 3.0).mixture
    drawn = np.zeros(2)
    for number in range(40):
        drawn += [len(batch) for batch in mixture.draw(number, BATCH, 5, toy_demos(1.0).change)]
    assert drawn[1] / drawn.sum() == pytest.approx(0.75, abs=0.03)


def test_the_weight_falls_with_the_updates_of_the_policy() -> None:
    falls = PPOConfig(demo_coef=0.4, demo_decay=0.5, critic_warmup_iterations=2)
    assert [demo_weight(falls, update) for update in range(5)] == [0, 0, 0.4, 0.2, 0.1]
    assert [demo_weight(GRPOConfig(demo_coef=0.4, demo_decay=1), update) for update in (0, 9)] == [0.4, 0.4]


def test_while_the_critic_warms_up_nothing_is_imitated(tmp_path: Path) -> None:
    config = PPOConfig(demo_coef=1.0, critic_warmup_iterations=1)
    learner, batch = setup(tmp_path, config, ToyPolicy(), **BY_ROWS)
    learner.imitate(Imitation(toy_demos(1.0), config, seed=0))
    before = weights(learner)
    metrics = learner.update(copy.deepcopy(batch))
    assert "train/demo_loss" not in metrics
    assert torch.equal(weights(learner)["head.weight"], before["head.weight"])
    learner.optimizer_step.config = replace(learner.config, ratio_tolerance=1e9)
    assert learner.update(batch)["train/demo_coef"] == 1.0


def test_where_every_group_is_left_out_demonstrations_alone_are_learned(tmp_path: Path) -> None:
    config = GRPOConfig(demo_coef=COEF, epochs=2)
    learner, batch = setup(tmp_path, config, ToyPolicy())
    empty = replace(batch, episodes=[], log_prob=batch.log_prob[:0], reward=batch.reward[:0], mask=batch.mask[:0])
    assert len(empty) == 0
    before = weights(learner)
    assert learner.update(empty) == {"train/num_samples": 0.0, "train/steps": 0.0}
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(learner).items())
    learner.imitate(Imitation(toy_demos(1.0), config, seed=0))
    metrics = learner.update(empty)
    assert metrics["train/steps"] == 2
    assert metrics["train/demo_coef"] == pytest.approx(COEF * 0.95)
    assert not torch.equal(before["head.weight"], weights(learner)["head.weight"])


def test_a_loss_that_is_not_finite_takes_no_step(tmp_path: Path) -> None:
    learner, batch = setup(tmp_path, GRPO, ToyPolicy())
    demos = toy_demos(1.0)
    demos.mixture.parts[0].samples.data.state[:] = np.nan
    learner.imitate(Imitation(demos, GRPO, seed=0))
    before = weights(learner)
    with pytest.raises(NonFiniteError, match="the loss on demonstrations is nan in update 1"):
        learner.update(batch)
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(learner).items())


def test_other_demonstrations_are_refused_on_resuming(tmp_path: Path) -> None:
    learner, _ = setup(tmp_path, GRPO, ToyPolicy())
    plain = learner.state_dict()
    assert "demos" not in plain
    learner.imitate(Imitation(toy_demos(1.0), GRPO, seed=0))
    learner.load_state_dict(learner.state_dict())
    for state in (plain, plain | {"demos": "other"}):
        with pytest.raises(UserError, match="--demos are no longer those of the run"):
            learner.load_state_dict(state)


def test_noise_of_a_flow_policys_loss_is_by_row() -> None:
    """So that it does not matter who else is in a piece, and training mode is not needed."""
    policy = tiny_policy()
    (rows,) = Imitation(toy_demos(1.0), PPO, seed=0).rows(0, 0)
    config, count = policy.config, 8
    generator = np.random.default_rng(0)
    images = torch.from_numpy(generator.integers(0, 256, (count, 2, 28, 28, 3), dtype=np.uint8))
    shape = (count, config.horizon, config.action_dim)
    actions = torch.from_numpy(generator.uniform(-0.5, 0.5, shape).astype(np.float32))
    batch = imitation.SftBatch(images, torch.zeros(count, 2), ["touch"] * count, actions)
    rng = replace(rows.rng, seed=rows.rng.seed[:count], decision=rows.rng.decision[:count])

    def loss(index: Tensor) -> float:
        part = replace(rng, seed=rng.seed[index.numpy()], decision=rng.decision[index.numpy()])
        return imitation.imitation_loss(policy, batch.rows(index), part).item()

    calls = int(policy.loss_calls)
    whole = loss(torch.arange(count))
    assert loss(torch.arange(count)) == whole
    assert int(policy.loss_calls) == calls
    halves = [loss(torch.arange(0, count, 2)), loss(torch.arange(1, count, 2))]
    assert sum(halves) / 2 == pytest.approx(whole, rel=1e-5)
    other = replace(rng, seed=rng.seed + 1)
    assert imitation.imitation_loss(policy, batch, other).item() != whole


def settings(config: AlgorithmConfig, iterations: int, *, stream: bool) -> TrainSettings:
    groups = {"minibatch_size": None, "minibatch_groups": 4} if stream else {}
    found = settings_of(config, iterations, **groups)  # type: ignore[arg-type]
    found = replace(found, imitation=Imitation(toy_demos(1.0, 2.0), config, seed=3), workers=2)
    return replace(found, scheduler=PipelinedConfig(env_groups=2)) if stream else found


def run(folder: Path, found: TrainSettings, *, resume: bool = False, envs: int = 8) -> dict[str, Tensor]:
    torch.set_num_threads(1)
    policy = ToyPolicy(with_value=isinstance(found.algorithm, PPOConfig))
    train(
        folder,
        ToyEnv(envs),
        policy,
        files_of(policy),
        found,
        TaskSplit(TASKS, HELDOUT),
        JsonObserver(folder / "metrics.jsonl"),
        RunOptions(resume=newest(folder) if resume else None),
    )
    return policy.state_dict()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("config", [GRPO, replace(PPO, critic_warmup_iterations=1)])
def test_a_resumed_run_is_the_undisturbed_one(tmp_path: Path, config: AlgorithmConfig, stream: bool) -> None:
    whole = run(tmp_path / "whole", settings(config, 4, stream=stream), envs=5)
    run(tmp_path / "part", settings(config, 2, stream=stream))
    resumed = run(tmp_path / "part", settings(config, 4, stream=stream), resume=True)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())
    rows = [
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "part")
    ]
    rows = [[row for row in found if "train/loss" in row] for found in rows]
    assert rows[0] == rows[1]
    assert rows[0][-1]["train/demo_coef"] < COEF
    without = run(tmp_path / "without", replace(settings(config, 4, stream=stream), imitation=None))
    assert not torch.equal(without["head.weight"], whole["head.weight"])

"""A learner over several ranks, each with the frames of its own episodes: the weights and metrics of one process."""

from __future__ import annotations

import multiprocessing
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.base import LossOutput, Rows
from embodied_rl.algorithms.config import AlgorithmConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.learner.distributed.fsdp import FSDPCollectives
from embodied_rl.learner.distributed.join import for_learner, joined
from embodied_rl.learner.gradients import Gradients
from tests.embodied_rl.learner.ranked import CASES, GRPO, PPO, Case, Result, batch_of, by_rows, every_case, learn
from tests.embodied_rl.ranks import others, place
from tests.toy import ToyPolicy

SIZE = 3


Found = tuple[dict[str, Result], list[dict[str, Any]]]
KINDS = ("whole", "in parts")


@pytest.fixture(scope="module")
def together() -> dict[str, Found]:
    """Every case with three ranks, which hold the policy whole or in parts: the lead's results, and the others'."""
    queue = multiprocessing.get_context("spawn").Queue()
    found: dict[str, Found] = {}
    with others(SIZE, every_case, queue), joined(place(0, SIZE)) as ranks:
        for name, kind in zip(KINDS, (ranks, FSDPCollectives(0, SIZE)), strict=True):
            results = {name: learn(case, kind, batch_of(case)) for name, case in CASES.items()}
            found[name] = results, [queue.get()[1] for _ in range(1, SIZE)]
    return found


@cache
def by_one(name: str) -> Result:
    """The case in one process."""
    return learn(CASES[name], SINGLE_PROCESS, batch_of(CASES[name]))


@pytest.mark.process
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_one_process(name: str, kind: str, together: dict[str, Found]) -> None:
    lead, rest = together[kind]
    case, found, alone = CASES[name], lead[name], by_one(name)
    assert found.error == alone.error
    assert (found.error != "") == (case.spoil != "")
    assert len(found.metrics) == len(alone.metrics)
    for one, two in zip(alone.metrics, found.metrics, strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-6)
        assert two.get("train/loss") == pytest.approx(one.get("train/loss"), rel=0, abs=1e-6)
    assert found.weights.keys() == alone.weights.keys()
    for key, tensor in alone.weights.items():
        torch.testing.assert_close(found.weights[key], tensor, rtol=0, atol=1e-6, msg=key)
    shares, dumped = [found.held], found.dumps
    for other in rest:
        metrics, error, dumps, weights, held = other[name]
        assert (metrics, error) == (found.metrics, found.error)
        dumped += dumps
        assert all(np.array_equal(weights[key], found.weights[key].numpy()) for key in weights)
        shares.append(held)
    assert dumped == alone.dumps == (case.spoil in ("loss", "gradient"))  # by the rank that has the frames
    if kind == "whole":
        assert shares == [alone.held] * SIZE
    else:
        assert sum(shares) == alone.held
        assert case.normalizes or max(shares) <= 1.2 * alone.held / SIZE  # a layer of one row can't be shared out


def test_parts_need_somebody_to_share_with() -> None:
    with pytest.raises(UserError, match="needs ranks to shard over"):
        for_learner(SINGLE_PROCESS, fsdp=True)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_every_row_is_learned_from_by_one_rank_and_sharded_ranks_take_all_passes_together(size: int) -> None:
    batch = batch_of(Case(PPO, by_rows(20, 7)))
    index = torch.randperm(len(batch), generator=torch.manual_seed(size))[:30]
    whole = [Collectives(rank, size) for rank in range(size)]
    own = [rank.own(batch, index) for rank in whole]
    assert sorted(torch.cat(own).tolist()) == sorted(index.tolist())
    for rank, rows in zip(whole, own, strict=True):
        assert all(batch.episodes[batch.episode[row]].spec.group % size == rank.rank for row in rows.tolist())
    parts = [FSDPCollectives(rank, size).pad(batch, index, 7, rows.split(7)) for rank, rows in enumerate(own)]
    assert len({len(passes) for passes in parts}) == 1
    assert sorted(row for passes in parts for piece, counts in passes if counts for row in piece.tolist()) == sorted(
        index.tolist()
    )


@pytest.mark.parametrize("algorithm", [GRPO, PPO])
def test_a_row_that_does_not_count_may_be_anything(algorithm: AlgorithmConfig) -> None:
    """The gradient is that of the others, and nothing is reported of it."""

    def gradient(pad: bool) -> Tensor:
        policy, maker = ToyPolicy(), make_algorithm(algorithm)
        batch = batch_of(Case(algorithm, by_rows(20, 7)))
        weight, _ = maker.prepare(batch, policy.terms_per_step)
        assert batch.advantage is not None
        for values in (batch.log_prob, batch.value, batch.advantage, batch.returns):
            if values is not None:
                values[0] = float("nan")

        def loss(rows: Rows) -> LossOutput:
            return maker.loss(policy, rows, 0)

        gradients = Gradients(loss, [policy.head.get_parameter("weight")], SINGLE_PROCESS, None, ratio_tolerance=1e-3)
        rows = [(torch.arange(1, 9), True), (torch.tensor([0]), False)][: 1 + pad]
        gradients.begin([(Rows(batch, index, weight[index], torch.ones(len(index))), counts) for index, counts in rows])
        totals, fault = gradients.collect()
        assert fault is None
        assert totals["ratio/rows"] == 8
        assert policy.head.weight.grad is not None
        return policy.head.weight.grad

    assert torch.equal(gradient(pad=True), gradient(pad=False))


def test_sharded_ranks_are_padded_with_a_finite_row_if_there_is_one() -> None:
    batch, ranks = batch_of(Case(PPO, by_rows(20, 7))), FSDPCollectives(0, 2)
    here = torch.arange(len(batch)) % 2 == 0
    batch.frame_row = torch.where(here, torch.arange(len(batch)), -1)
    index = ranks.owners(batch, torch.arange(len(batch))).nonzero()[:, 0]  # all of them the other rank's

    def padded_with() -> int:
        ((piece, counts),) = ranks.pad(batch, index, len(batch), [])
        assert not counts
        return int(piece)

    assert padded_with() == 0
    batch.log_prob[0, 0] = float("inf")
    batch.proprio[2, 0] = float("nan")
    assert padded_with() == 4
    batch.proprio[:] = float("nan")
    assert padded_with() == 0

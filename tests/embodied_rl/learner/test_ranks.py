"""A learner over several processes: the weights and metrics of one process, and one clear line when a rank is lost."""

from __future__ import annotations

import multiprocessing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives, RankError
from embodied_rl.learner.distributed.fsdp import FSDPCollectives
from embodied_rl.learner.distributed.learner import make_learner
from embodied_rl.learner.distributed.processes import join, open_store
from embodied_rl.learner.learner import Learner
from embodied_rl.training.on_policy import RunOptions, TaskSplit, train
from tests.embodied_rl.learner.ranked import (
    CASES,
    GRPO,
    BrokenRank,
    Case,
    Mortal,
    Result,
    ShortLived,
    ToyRank,
    batch_of,
    by_rows,
    every_case,
    learn,
)
from tests.embodied_rl.toy_run import ALGORITHMS, JsonObserver, files_of, newest, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

SIZE = 3


Found = tuple[dict[str, Result], list[dict[str, Any]]]
KINDS = ("whole", "in parts")


@pytest.fixture(scope="module")
def together() -> dict[str, Found]:
    """Every case with three ranks, which hold the policy whole or in parts: the lead's results, and the others'."""
    context = multiprocessing.get_context("spawn")
    store = open_store(0, SIZE, lead=True)
    queue = context.Queue()
    others = [
        context.Process(target=every_case, args=(rank, SIZE, store.port, queue), daemon=True) for rank in range(1, SIZE)
    ]
    for process in others:
        process.start()
    ranks = join(0, SIZE, store)
    found: dict[str, Found] = {}
    try:
        for name, kind in zip(KINDS, (ranks, FSDPCollectives(0, SIZE)), strict=True):
            results = {name: learn(case, kind, batch_of(case)) for name, case in CASES.items()}
            found[name] = results, [queue.get()[1] for _ in others]
    finally:
        distributed.destroy_process_group()
    for process in others:
        process.join()
    return found


@cache
def by_one(name: str) -> Result:
    """The case in one process."""
    return learn(CASES[name], SINGLE_PROCESS, batch_of(CASES[name]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_one_process(name: str, kind: str, together: dict[str, Found]) -> None:
    lead, others = together[kind]
    case, found, alone = CASES[name], lead[name], by_one(name)
    assert found.error == alone.error
    assert (found.error != "") == (case.spoil != "")
    assert found.dumps == alone.dumps == (case.spoil in ("loss", "gradient"))
    assert len(found.metrics) == len(alone.metrics)
    for one, two in zip(alone.metrics, found.metrics, strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-6)
    assert found.weights.keys() == alone.weights.keys()
    for key, tensor in alone.weights.items():
        torch.testing.assert_close(found.weights[key], tensor, rtol=0, atol=1e-6, msg=key)
    shares = [found.held]
    for other in others:
        metrics, error, dumps, weights, held = other[name]
        assert (metrics, error, dumps) == (found.metrics, found.error, 0)
        assert all(np.array_equal(weights[key], found.weights[key].numpy()) for key in weights)
        assert bool(weights) == (kind == "whole")
        shares.append(held)
    if kind == "whole":
        assert shares == [alone.held] * SIZE
    else:
        assert sum(shares) == alone.held
        assert max(shares) <= 1.2 * alone.held / SIZE


@pytest.mark.parametrize(("rows", "most", "size"), [(10, 3, 4), (2, 5, 3), (7, 7, 1), (12, 4, 3), (1, 1, 2)])
def test_every_row_belongs_to_one_rank_and_shares_are_even(rows: int, most: int, size: int) -> None:
    pieces = Collectives(0, size).cut(torch.arange(rows), most)
    assert torch.cat(pieces).tolist() == list(range(rows))
    assert all(0 < len(piece) <= most for piece in pieces)
    shares = [Collectives(rank, size).shard(pieces) for rank in range(size)]
    assert sorted(row for share in shares for piece, _ in share for row in piece.tolist()) == list(range(rows))
    if rows >= size:
        assert len({len(share) for share in shares}) == 1
    together = [FSDPCollectives(rank, size).shard(pieces) for rank in range(size)]
    assert len({len(share) for share in together}) == 1  # they take every pass together
    assert sum(counts for share in together for _, counts in share) == len(pieces)


def lead_learner(folder: Path, factory: Any, ranks: int = 2) -> Learner:
    config = by_rows(50, 7, num_processes=ranks)
    return make_learner(
        ToyPolicy(), make_algorithm(GRPO), config, seed=0, dump_dir=folder, threads=1, worker_policy=factory
    )


def test_the_lead_starts_its_helper_and_both_continue_from_a_saved_state(tmp_path: Path) -> None:
    """The weights of a checkpoint are loaded into the lead's policy only."""
    case = Case(GRPO, by_rows(50, 7))
    learner = lead_learner(tmp_path, ToyRank())
    alone = Learner(ToyPolicy(), make_algorithm(GRPO), case.learner, seed=0, dump_dir=tmp_path)
    try:
        for one in (learner, alone):
            one.update(batch_of(case))
            state = one.state_dict()
            with torch.no_grad():
                for _, parameter in one.policy.named_parameters():
                    parameter.mul_(0.9)
            one.load_state_dict(state)
            assert isinstance(one.policy, ToyPolicy)
            assert one.update(batch_of(case, one.policy))["train/num_samples"] > 0
    finally:
        learner.close()
    for (name, one), two in zip(alone.policy.state_dict().items(), learner.policy.state_dict().values(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=1e-6, msg=name)
    assert multiprocessing.active_children() == []


def test_a_rank_that_is_killed_stops_the_update_with_one_line(tmp_path: Path) -> None:
    learner = lead_learner(tmp_path, ToyRank(dies=3))
    before = {name: tensor.clone() for name, tensor in learner.policy.state_dict().items()}
    try:
        with pytest.raises(RankError, match=r"rank 1 of the learner stopped \(killed by signal 9\).*resume from it"):
            learner.update(batch_of(Case(GRPO, by_rows(50, 7))))
    finally:
        learner.close()
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.policy.state_dict().items())
    assert not distributed.is_initialized()


def test_parts_need_somebody_to_share_with() -> None:
    with pytest.raises(UserError, match="needs processes to shard over"):
        by_rows(50, 7, fsdp=True)


def test_a_rank_that_cannot_begin_says_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rank 1 of the learner could not begin: FileNotFoundError: no weights"):
        lead_learner(tmp_path, BrokenRank())
    assert multiprocessing.active_children() == []


def test_a_rank_that_ends_while_another_begins_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RankError, match=r"rank 1 of the learner stopped \(killed by signal 9\)"):
        lead_learner(tmp_path, ShortLived(), ranks=3)
    assert multiprocessing.active_children() == []


def run(folder: Path, helper: ToyRank | None, *, resume: bool = False) -> Mortal:
    """A whole training run of the toy; helper: with two ranks."""
    policy = Mortal(with_value=False)
    settings = settings_of(ALGORITHMS["grpo"], 4, lr=1e-3, num_processes=1 if helper is None else 2)
    train(
        folder,
        ToyEnv(16),
        policy,
        files_of(policy),
        settings,
        TaskSplit(TASKS, HELDOUT),
        JsonObserver(folder / "metrics.jsonl"),
        RunOptions(resume=newest(folder) if resume else None, resume_command="toy --resume", worker_policy=helper),
    )
    return policy


def test_a_run_that_lost_a_rank_resumes_to_the_end_of_an_undisturbed_one(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", None)
    # A rank of two evaluates about 2 microbatches where one process has 3: this is after about 3 of 4 updates.
    dies = round(-alone.left * 2 / 3 * 3 / 4)
    with pytest.raises(RankError, match="killed by signal 9"):
        run(tmp_path / "broken", ToyRank(dies, with_value=False))
    assert (tmp_path / "broken/checkpoints/latest").read_text().strip() == "iter-000002"
    resumed = run(tmp_path / "broken", ToyRank(with_value=False), resume=True)
    for (name, one), two in zip(alone.state_dict().items(), resumed.state_dict().values(), strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=2e-6, msg=name)
    assert multiprocessing.active_children() == []

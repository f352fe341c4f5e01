"""Threads that act or learn: half of them while others are busy, all as soon as they are not."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.rollout.actor import MIN_ROWS, ParallelActor
from embodied_rl.types import EvalOutput
from embodied_rl.utils.threads import OrderedMap, WorkerPool
from tests.embodied_rl.scheduler.toys import Setup, serial
from tests.toy import ToyPolicy

LONG = 20.0


def test_while_others_are_busy_half_of_them_work() -> None:
    running, most, lock = 0, 0, threading.Lock()

    def work(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1
        return number * number

    with closing(WorkerPool(4, "test")) as threads:
        threads.busy = lambda: True
        assert threads.map(work, range(7)) == [number * number for number in range(7)]
        assert most == 2


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """The cores of a machine that is not this one, under 'cores'; threads may keep to some."""
    here, found = threading.local(), {"cores": {2, 5}}
    monkeypatch.setattr(os, "getpid", lambda: -1)
    monkeypatch.setattr(
        os,
        "sched_getaffinity",
        lambda pid: found["cores"] if pid else getattr(here, "cores", found["cores"]),
        raising=False,
    )
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: setattr(here, "cores", set(cores)), raising=False)
    return found


def where(number: int) -> set[int]:
    return set(os.sched_getaffinity(0))


def test_of_two_cores_they_keep_to_one_while_others_are_busy(machine: dict[str, set[int]]) -> None:
    """And leave it as soon as they may; with more cores, or fewer, they go everywhere."""
    halves: tuple[tuple[Literal["lower", "upper"], int], ...] = (("lower", 2), ("upper", 5))
    for half, core in halves:
        with closing(WorkerPool(4, "test", half=half)) as threads:
            for busy, cores in ((True, {core}), (False, {2, 5}), (True, {core})):
                threads.busy = lambda busy=busy: busy
                assert threads.map(where, range(7)) == [cores] * 7
    with closing(WorkerPool(4, "test")) as threads:
        threads.busy = lambda: True
        assert threads.map(where, range(7)) == [{2, 5}] * 7
    for cores in ({3}, {0, 1, 2}, set(range(16))):
        machine["cores"] = cores
        with closing(WorkerPool(4, "test", half="upper")) as threads:
            threads.busy = lambda: True
            assert threads.map(where, range(7)) == [cores] * 7


def test_who_acts_and_who_learns_keep_to_different_cores(machine: dict[str, set[int]], tmp_path: Path) -> None:
    policy = ToyPolicy()
    algorithm = Setup(GRPOConfig()).parts(policy, tmp_path)[1].algorithm
    with (
        closing(ParallelActor(policy, 2 * MIN_ROWS, 2)) as actor,
        closing(Learner(policy, algorithm, LearnerConfig(), seed=0, dump_dir=tmp_path, threads=2)) as learner,
    ):
        places = []
        for one in (actor, learner):
            one.share_cores_with(lambda: True)
            assert one._threads is not None
            places.append(one._threads.map(where, range(4)))
    assert places == [[{2}] * 4, [{5}] * 4]


def test_where_threads_may_not_choose_they_work_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cores: set[int]) -> None:
        raise PermissionError

    for refused in (True, False):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
        if refused:
            monkeypatch.setattr(os, "sched_setaffinity", refuse, raising=False)
        else:
            monkeypatch.delattr(os, "sched_setaffinity")
        with closing(WorkerPool(2, "test", half="upper")) as threads:
            threads.busy = lambda: True
            assert threads.map(abs, [-1, -2]) == [1, 2]
    with pytest.raises(ValueError, match="inside operators"):
        WorkerPool(2, "test", inner=2, half="lower")


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) != 2, reason="wants two cores to tell apart"
)
def test_really_they_do_and_nobody_else_does() -> None:
    everywhere = os.sched_getaffinity(0)
    with closing(WorkerPool(2, "test", half="upper")) as threads:
        threads.busy = lambda: True
        assert threads.map(where, range(4)) == [{max(everywhere)}] * 4
    assert os.sched_getaffinity(0) == everywhere


def test_the_others_join_in_as_soon_as_nobody_else_is_busy() -> None:
    """In the middle of an item: the first one ends only once the second has begun."""
    busy, begun = threading.Event(), threading.Event()
    busy.set()

    def work(number: int) -> bool:
        if number == 1:
            begun.set()
            return True
        threading.Timer(0.2, busy.clear).start()  # by then the learner waits
        return begun.wait(LONG)

    with closing(WorkerPool(2, "test")) as threads:
        threads.busy = busy.is_set
        assert threads.map(work, [0, 1]) == [True, True]


def test_an_error_is_raised_when_nothing_works_any_more() -> None:
    begun, ended = threading.Event(), threading.Event()

    def work(number: int) -> None:
        if number == 0:
            assert begun.wait(LONG)
            raise RuntimeError("this one")
        begun.set()
        threading.Event().wait(0.1)
        ended.set()

    with closing(WorkerPool(2, "test")) as threads:
        with pytest.raises(RuntimeError, match="this one"):
            threads.map(work, [0, 1])
        assert ended.is_set()


def test_a_thread_keeps_its_number_of_torch_threads() -> None:
    """Also where another thread sets another one before the first has used it."""
    with closing(WorkerPool(1, "test")) as threads:
        threads.map(lambda number: None, [0])
        other = threading.Thread(target=torch.set_num_threads, args=(3,))
        other.start()
        other.join()
        assert threads.map(lambda number: torch.get_num_threads(), [0]) == [1]


def test_few_results_wait_to_be_taken() -> None:
    """Gradients are as large as the weights."""
    begun: list[int] = []
    taken: list[int] = []
    waiting: list[int] = []

    def work(number: int) -> int:
        begun.append(number)
        return number

    with closing(WorkerPool(2, "test")) as threads:
        line = OrderedMap(threads, work, lambda result: taken.append(result) or waiting.append(len(begun) - result))
        for number in range(40):
            line.put(number)
        line.finish()
    assert taken == list(range(40))
    assert max(waiting) <= 4  # itself, and three more


@pytest.mark.parametrize("threads", [1, 3])
def test_all_threads_get_as_many_microbatches(tmp_path: Path, threads: int) -> None:
    seen: list[int] = []

    class Counting(ToyPolicy):
        def evaluate(
            self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
        ) -> EvalOutput:
            seen.append(len(images))
            return super().evaluate(images, proprio, instruction, replay)

    config = LearnerConfig(minibatch_size=None, minibatch_groups=100, microbatch_size=24)
    setup = Setup(GRPOConfig(group_size=4, success_rate_range=None), iterations=1)
    batch = serial(setup, tmp_path).batches[0]
    policy = Counting()
    with closing(
        Learner(policy, setup.parts(policy, tmp_path)[1].algorithm, config, seed=0, dump_dir=tmp_path, threads=threads)
    ) as learner:
        learner.update(batch)
    assert sum(seen) == len(batch)
    assert max(seen) <= 24
    assert len(seen) % threads == 0


def test_learning_goes_on_while_the_next_group_is_awaited(tmp_path: Path) -> None:
    go = threading.Event()

    class Slow(ToyPolicy):
        def evaluate(
            self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
        ) -> EvalOutput:
            assert go.wait(LONG)
            return super().evaluate(images, proprio, instruction, replay)

    setup = Setup(GRPOConfig(group_size=4, success_rate_range=None), iterations=1)
    batch = serial(setup, tmp_path).batches[0]
    first, *others = split_groups(batch)
    config = LearnerConfig(minibatch_size=None, minibatch_groups=100, microbatch_size=len(first))
    policy = Slow()
    with closing(
        Learner(policy, setup.parts(policy, tmp_path)[1].algorithm, config, seed=0, dump_dir=tmp_path, threads=4)
    ) as learner:
        learner.accumulate(first)
        assert learner.working
        go.set()
        for group in others:
            learner.accumulate(group)
        learner.update(batch)
        assert not learner.working


@pytest.mark.parametrize("threads", [1, 3])
def test_nothing_is_left_of_a_step_that_failed(tmp_path: Path, threads: int) -> None:
    """As good as a learner that never failed."""

    class Failing(ToyPolicy):
        fails = False

        def evaluate(
            self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
        ) -> EvalOutput:
            if self.fails:
                self.fails = False
                raise RuntimeError("out of memory")
            return super().evaluate(images, proprio, instruction, replay)

    setup = Setup(GRPOConfig(group_size=4, success_rate_range=None), iterations=1, threads=threads)
    batch = serial(setup, tmp_path).batches[0]
    found = []
    for fails in (True, False):
        policy = Failing()
        learner = setup.parts(policy, tmp_path)[1]
        policy.fails = fails
        if fails:
            with pytest.raises(RuntimeError, match="out of memory"):
                learner.update(batch)
            learner.version = 0
        found.append((learner.update(batch), policy.state_dict()))
        learner.close()
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][name], tensor) for name, tensor in found[1][1].items())


def test_a_line_says_until_when_it_worked() -> None:
    go = threading.Event()
    with closing(WorkerPool(2, "test")) as threads:
        line = OrderedMap(threads, lambda number: go.wait(LONG), lambda result: None)
        assert line.worked_until == 0
        line.put(0)
        first = line.worked_until
        assert line.working
        assert line.worked_until > first > 0  # it still goes on
        go.set()
        line.finish()
        assert first < line.worked_until == line.worked_until

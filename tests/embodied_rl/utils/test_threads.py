"""Threads that act or learn: half of them while others are busy, all as soon as they are not."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.learner.batches import split_groups
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.types import EvalOutput
from embodied_rl.utils.threads import CoreBudget, OrderedMap, WorkerPool
from tests.embodied_rl.scheduler.toys import Setup, serial
from tests.toy import ToyPolicy

LONG = 900.0


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

    cores = CoreBudget()
    with closing(WorkerPool(4, "test", cores=cores)) as threads, cores.at_work("rollout"):
        assert threads.map(work, range(7)) == [number * number for number in range(7)]
        assert most == 2


def test_a_side_is_at_work_while_any_of_its_pieces_is() -> None:
    """Its pool's tasks and its own calls; and the budget knows until when."""
    go, cores = threading.Event(), CoreBudget()
    assert cores.busy_until("learner") == 0
    with closing(WorkerPool(2, "test", cores=cores, side="learner")) as threads:
        future = threads.submit(lambda number: go.wait(LONG), 0)
        with cores.at_work("learner"):
            pass
        assert cores.busy("learner")
        assert not cores.busy("rollout")
        first = cores.busy_until("learner")
        assert cores.busy_until("learner") > first > 0  # it still goes on
        go.set()
        assert future.result()
    assert not cores.busy("learner")
    assert first < cores.busy_until("learner") == cores.busy_until("learner")


def test_a_piece_that_fails_is_no_longer_at_work() -> None:
    cores = CoreBudget()
    with closing(WorkerPool(2, "test", cores=cores)) as threads, pytest.raises(ZeroDivisionError):
        threads.map(lambda number: 1 / number, [0])
    assert not cores.busy("learner")


def test_the_others_join_in_as_soon_as_nobody_else_is_busy() -> None:
    """In the middle of an item: the first one ends only once the second has begun."""
    cores, begun = CoreBudget(), threading.Event()
    cores.begin("rollout")

    def work(number: int) -> bool:
        if number == 1:
            begun.set()
            return True
        threading.Timer(0.2, cores.end, ("rollout",)).start()  # by then the learner waits
        return begun.wait(LONG)

    with closing(WorkerPool(2, "test", cores=cores)) as threads:
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
        assert learner.cores.busy("learner")
        go.set()
        for group in others:
            learner.accumulate(group)
        learner.update(batch)
        assert not learner.cores.busy("learner")


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

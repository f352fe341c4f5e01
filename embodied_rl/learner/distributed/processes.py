"""The helper ranks of a learner on this machine: processes that the lead starts, tells what to do, and watches."""

from __future__ import annotations

import io
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from embodied_rl.algorithms.rows import Algorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import Collectives, RankError, Watched
from embodied_rl.utils import processes
from embodied_rl.utils.threads import set_torch_threads

PolicyFactory = Callable[[int], Any]
"""Opens the policy of a rank, on its device, with the run's starting weights; sent to that rank's process."""
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a helper needs to build its learner, beside its policy."""

    algorithm: Algorithm
    config: LearnerConfig
    seed: int
    dump_dir: Path
    threads: int


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    said: str | None = None


class WorkerProcesses:
    """`size` - 1 helper ranks of this process, which is the lead; `ranks` is the lead's.

    Raises RankError, or the helper's UserError, if one cannot begin. Close it when done.
    """

    def __init__(self, size: int, factory: PolicyFactory, orders: WorkerSpec) -> None:
        context = multiprocessing.get_context("spawn")
        store = open_store(0, size, lead=True)
        self._helpers: list[_Worker] = []
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, size, store.port, theirs, factory, orders),
                name=f"learner-{rank}",
                daemon=True,
            )
            processes.start(process)
            theirs.close()
            self._helpers.append(_Worker(process, ours))
        try:
            self._await_ready()
            with Watched(self.lost):
                self.collectives = join(0, size, store, self.lost, sharded=orders.config.fsdp)
        except BaseException:
            self._end()
            raise

    def broadcast_call(self, method: str, *arguments: Any) -> None:
        """Let every helper call `method` of its learner; the lead must call its own next. Raises RankError."""
        buffer = io.BytesIO()
        torch.save(arguments, buffer)
        content = buffer.getbuffer()
        for helper in self._helpers:
            try:
                helper.pipe.send((method, len(content)))
            except OSError as error:
                raise RankError(self.lost() or "a rank of the learner hung up") from error
        self.collectives.message(bytes(content), len(content))

    def lost(self) -> str | None:
        """What became of a helper that is no more, None while all live."""
        for rank, helper in enumerate(self._helpers, 1):
            if helper.said is None and helper.pipe.poll():
                helper.said = _hear(helper.pipe)
            if helper.process.exitcode is not None:
                return (
                    f"rank {rank} of the learner stopped ({_end_of(helper)}); no step was taken without it. The last "
                    "checkpoint is intact: resume from it."
                )
        return None

    def close(self) -> None:
        """Let the helpers go."""
        for helper in self._helpers:
            try:
                helper.pipe.send(("", 0))
            except OSError:
                continue  # it is gone already
        for helper in self._helpers:
            helper.process.join(10)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._end()

    def _await_ready(self) -> None:
        for rank, helper in enumerate(self._helpers, 1):
            wait([helper.pipe, helper.process.sentinel])
            helper.said = _hear(helper.pipe)
            if helper.said is not None:
                helper.process.join()
                raise UserError(f"rank {rank} of the learner could not begin: {_end_of(helper)}.")
        if what := self.lost():  # while later ones began
            raise RankError(what)

    def _end(self) -> None:
        for helper in self._helpers:
            if helper.process.is_alive():
                helper.process.kill()
                helper.process.join()
            helper.pipe.close()


def _hear(pipe: Connection) -> str | None:
    """What a helper says: None if all is well, nothing if it has gone."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return ""


def _end_of(helper: _Worker) -> str:
    """How a process ended: in its own words, if it had time for them."""
    code = helper.process.exitcode
    return helper.said or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")


def open_store(port: int, size: int, *, lead: bool) -> Any:
    """torch's store for `size` ranks of this machine, by which they find each other. port: 0 for the lead's."""
    kind = distributed.TCPStore  # pyright: ignore[reportPrivateImportUsage]
    return kind(_HOST, port, size, is_master=lead, wait_for_workers=False)


def join(
    rank: int, size: int, store: Any, lost: Callable[[], str | None] = lambda: None, *, sharded: bool = False
) -> Collectives:
    """Set up torch's default process group; `lost` as in `Collectives`."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all on one machine, whatever its name resolves to
    # Gradients go by the backend of their device, everything else by gloo.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    if sharded:
        from embodied_rl.learner.distributed.fsdp import FSDPCollectives

        return FSDPCollectives(rank, size, lost)
    return Collectives(rank, size, lost)


def _serve(rank: int, size: int, port: int, pipe: Connection, factory: PolicyFactory, orders: WorkerSpec) -> None:
    """A helper's life: build policy and learner, then do as the lead does until it hangs up."""
    from embodied_rl.learner.learner import Learner
    from embodied_rl.learner.types import NonFiniteError, RatioError

    processes.leave_stopping_to_the_parent()
    set_torch_threads(1)
    lead = multiprocessing.parent_process()
    assert lead is not None
    try:
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
        policy = factory(rank)
        pipe.send(None)
        store = open_store(port, size, lead=False)
        ranks = join(
            rank, size, store, lambda: None if lead.is_alive() else "the lead is gone", sharded=orders.config.fsdp
        )
        learner = Learner(
            policy,
            orders.algorithm,
            orders.config,
            seed=orders.seed,
            dump_dir=orders.dump_dir,
            threads=orders.threads,
            collectives=ranks,
        )
        while (order := pipe.recv())[0]:
            arguments = torch.load(io.BytesIO(ranks.message(b"", order[1])), weights_only=False)
            getattr(learner, order[0])(*arguments)
    except (EOFError, RankError, NonFiniteError, RatioError):
        return  # the lead is gone, or raises the same
    except Exception as error:  # noqa: BLE001 - the lead says it
        pipe.send(" ".join(f"{type(error).__name__}: {error}".split()))
        os._exit(1)

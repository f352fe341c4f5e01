"""The worker processes of a learner on this machine, which the main process starts, commands and watches."""

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

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.errors import UserError
from embodied_rl.learner.batches import from_dict, to_dict
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import Collectives, RankError, Watched
from embodied_rl.types import RolloutBatch
from embodied_rl.utils import processes
from embodied_rl.utils.threads import set_torch_threads

PolicyFactory = Callable[[int], Any]
"""Opens the policy of a worker, on its device, with the run's starting weights. Gets the rank; sent to the process."""
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker needs to build its learner, beside its policy."""

    algorithm: OnPolicyAlgorithm
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
    """`size` - 1 worker processes of this one, which is rank 0; `collectives` is rank 0's. Close it when done.

    Raises RankError, or the worker's UserError, if one cannot begin.
    """

    def __init__(self, size: int, factory: PolicyFactory, spec: WorkerSpec) -> None:
        context = multiprocessing.get_context("spawn")
        store = open_store(0, size, lead=True)
        self._workers: list[_Worker] = []
        for rank in range(1, size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(rank, size, store.port, theirs, factory, spec), name=f"learner-{rank}", daemon=True
            )
            processes.start(process)
            theirs.close()
            self._workers.append(_Worker(process, ours))
        try:
            self._await_ready()
            with Watched(self.lost):
                self.collectives = join(0, size, store, self.lost, sharded=spec.config.fsdp)
        except BaseException:
            self._end()
            raise

    def broadcast_call(self, method: str, argument: RolloutBatch | dict[str, Any] | None = None) -> None:
        """Let every worker call `method` of its learner; the main process must call its own next. Raises RankError."""
        buffer = io.BytesIO()
        torch.save(to_dict(argument) if isinstance(argument, RolloutBatch) else argument, buffer)
        content = buffer.getbuffer()
        for worker in self._workers:
            try:
                worker.pipe.send((method, len(content)))
            except OSError as error:
                raise RankError(self.lost() or "a rank of the learner hung up") from error
        self.collectives.message(bytes(content), len(content))

    def lost(self) -> str | None:
        """What became of a worker that has ended, None while all live."""
        for rank, worker in enumerate(self._workers, 1):
            if worker.said is None and worker.pipe.poll():
                worker.said = _hear(worker.pipe)
            if worker.process.exitcode is not None:
                return (
                    f"rank {rank} of the learner stopped ({_end_of(worker)}); no step was taken without it. The last "
                    "checkpoint is intact: resume from it."
                )
        return None

    def close(self) -> None:
        """End the workers."""
        for worker in self._workers:
            try:
                worker.pipe.send(("", 0))
            except OSError:
                continue  # it is gone already
        for worker in self._workers:
            worker.process.join(10)
        if distributed.is_initialized():
            distributed.destroy_process_group()
        self._end()

    def _await_ready(self) -> None:
        for rank, worker in enumerate(self._workers, 1):
            wait([worker.pipe, worker.process.sentinel])
            worker.said = _hear(worker.pipe)
            if worker.said is not None:
                worker.process.join()
                raise UserError(f"rank {rank} of the learner could not begin: {_end_of(worker)}.")
        if what := self.lost():  # while later ones began
            raise RankError(what)

    def _end(self) -> None:
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()


def _hear(pipe: Connection) -> str | None:
    """A worker's message: None if all is well, '' if it has gone."""
    try:
        return pipe.recv()
    except (EOFError, OSError):
        return ""


def _end_of(worker: _Worker) -> str:
    """How a process ended: its own message if it sent one."""
    code = worker.process.exitcode
    return worker.said or (f"killed by signal {-code}" if code < 0 else f"exit code {code}")


def open_store(port: int, size: int, *, lead: bool) -> Any:
    """torch's store, by which `size` processes of this machine find each other. port: 0 in the main process."""
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


def _serve(rank: int, size: int, port: int, pipe: Connection, factory: PolicyFactory, spec: WorkerSpec) -> None:
    """Main function of a worker: build policy and learner, then make the calls that the main process sends."""
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
            rank, size, store, lambda: None if lead.is_alive() else "the lead is gone", sharded=spec.config.fsdp
        )
        learner = Learner(
            policy,
            spec.algorithm,
            spec.config,
            seed=spec.seed,
            dump_dir=spec.dump_dir,
            threads=spec.threads,
            collectives=ranks,
        )
        while (order := pipe.recv())[0]:
            argument = torch.load(io.BytesIO(ranks.message(b"", order[1])), weights_only=True)
            if order[0] in ("update", "accumulate"):
                argument = from_dict(argument)
            getattr(learner, order[0])(*([] if argument is None else [argument]))
    except (EOFError, RankError, NonFiniteError, RatioError):
        return  # the lead is gone, or raises the same
    except Exception as error:  # noqa: BLE001 - the lead says it
        pipe.send(" ".join(f"{type(error).__name__}: {error}".split()))
        os._exit(1)

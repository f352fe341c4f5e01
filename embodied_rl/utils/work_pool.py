"""Processes that carry out one piece of work after another, and end when their parent does, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Generic, TypeVar

from embodied_rl.errors import UserError
from embodied_rl.utils import processes
from embodied_rl.utils.signals import Interrupted, StopRequest

ItemT = TypeVar("ItemT")
Say = Callable[[Any], None]
Check = Callable[[], None]
Work = Callable[[ItemT, Say, Check], None]
"""Gets an item, a way to send the parent messages, and a check to call often: it raises Interrupted when the work must
stop. What it keeps, it writes to files."""
_LOOK_SECONDS = 0.2
"""How often the parent looks whether it was asked to stop."""


@dataclass(slots=True)
class _Worker:
    process: SpawnProcess
    pipe: Connection
    item: Any = None


class WorkPool(Generic[ItemT]):
    """`count` processes for `work`, which must be importable by name.

    Example:
        with WorkPool(2, run_job) as pool:
            pool.run(jobs, on_message, stop)
    """

    def __init__(self, count: int, work: Work[ItemT]) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers: list[_Worker] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            # not daemonic: the work may have processes of its own
            process = context.Process(target=_serve, args=(theirs, work, os.getpid()), name=f"worker-{number}")
            processes.start(process)
            theirs.close()
            self._workers.append(_Worker(process, ours))

    def __enter__(self) -> WorkPool[ItemT]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.kill()
            worker.process.join()

    def run(self, items: Sequence[ItemT], on_message: Say, stop: StopRequest) -> None:
        """Carry out the items, each by the next free process; return when all are done.

        Args:
            items: each is sent to a process.
            on_message: gets what the work says.
            stop: what was asked of the parent.

        Raises:
            Interrupted: the parent was asked to stop; every process has stopped before.
            UserError: of an item, or a process died; what the others were doing was stopped.
        """
        waiting = list(items)
        failed: str | None = None
        told = False
        while waiting or any(worker.item is not None for worker in self._workers):
            if (stop.asked or failed is not None) and not told:
                told, waiting = True, []
                self._tell_to_stop()
                continue
            for worker in self._workers:
                if worker.item is None and waiting:
                    worker.item = waiting.pop(0)
                    with suppress(OSError):  # a process that has died is noticed below
                        worker.pipe.send(("work", worker.item))
            busy = {worker.pipe: worker for worker in self._workers if worker.item is not None}
            for pipe in wait(list(busy), _LOOK_SECONDS):
                failed = _hear(busy[pipe], on_message) or failed  # type: ignore[index]
        if failed is not None:
            raise UserError(failed)
        stop.check_interrupt()

    def _tell_to_stop(self) -> None:
        for worker in self._workers:
            if worker.item is not None:
                with suppress(OSError):
                    worker.pipe.send(("stop", None))


def _hear(worker: _Worker, on_message: Say) -> str | None:
    """Take one message; what went wrong, None if nothing has."""
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        worker.process.join()
        worker.item = None
        return (
            f"a process that was at work ended with exit code {worker.process.exitcode}; what was finished is kept: "
            "give the command again, with fewer --jobs if memory was short."
        )
    if kind == "said":
        on_message(content)
        return None
    worker.item = None
    return content


def _serve(pipe: Connection, work: Work[Any], parent: int) -> None:
    """In the process: carry out items until the parent is gone."""
    processes.leave_stopping_to_the_parent()

    def check() -> None:
        if os.getppid() != parent:
            os._exit(1)  # what goes on behind its back would hold the folders of a parent that begins anew
        if pipe.poll():
            pipe.recv()
            raise Interrupted("interrupted")

    while True:
        try:
            kind, item = pipe.recv()
            if kind == "stop":  # it came when the item was done
                continue
            end = _carry_out(work, item, lambda content: pipe.send(("said", content)), check)
            pipe.send(("done", end))
        except (EOFError, OSError):
            os._exit(0)


def _carry_out(work: Work[Any], item: Any, say: Say, check: Check) -> str | None:
    """None, or what went wrong, in words."""
    try:
        work(item, say, check)
    except Interrupted:
        return None
    except UserError as error:
        return str(error)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the parent reports it
        traceback.print_exc()
        return f"a process failed: {type(error).__name__}: {error}"
    return None

"""Simulators in supervised child processes: one that dies, hangs, raises or leaks is replaced, its episodes run again.

Commands and results are small and travel through pipes. Observations lie in shared memory and are never pickled.
Frames of videos, at any size, come through a pipe one at a time.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.policy import action_array
from embodied_rl.sim.wrappers.subprocess_worker import (
    EnvFactory,
    Failure,
    Reply,
    serve,
    shared_bytes,
    shared_observation,
)
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.utils import processes
from embodied_rl.vec_env import EnvInfo, SimulatorFailed

_SPAWN = get_context("spawn")  # a fork would copy the parent's threads' locks in whatever state they are
_MAX_IN_A_ROW = 20
"""So often a child may be lost without a step in between: initial states that kill it are tried a few times each."""


class _Lost(Exception):
    """The child died, hung or raised; the message says which."""


class _Child:
    """One simulator process and its envs; only under `lock`.

    held: local envs that were reset since it started; live: those of them whose episode is not over. blamed: those
    whose command alone was under way when it was lost.
    """

    def __init__(self, factory: EnvFactory, env_ids: int, start_deadline: float) -> None:
        self.lock = threading.Lock()
        self.env_ids = env_ids
        self.held: set[int] = set()
        self.live: set[int] = set()
        self.blamed: set[int] = set()
        self.rss = 0
        self.base_rss = 0
        self._factory = factory
        self._start_deadline = start_deadline
        self._memory: SharedMemory | None = None
        self._process: SpawnProcess | None = None
        try:
            self.info = self._start()
        except BaseException:
            self.free()
            raise

    def _start(self) -> EnvInfo:
        """Start the process; _Lost if it does not come up."""
        self._connection, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=serve, args=(theirs, self._factory, self.env_ids), daemon=True)
        processes.start(process)
        self._process = process
        theirs.close()
        self.held, self.live, self.base_rss = set(), set(), 0
        info = self._receive(time.monotonic() + self._start_deadline)
        assert isinstance(info, EnvInfo)
        if self._memory is None:
            self._memory = SharedMemory(create=True, size=shared_bytes(info, self.env_ids))
            self.shared = shared_observation(info, self._memory, self.env_ids)
        try:
            self._connection.send(self._memory.name)
        except OSError:
            raise _Lost("died") from None
        return info

    def send(self, name: str, *arguments: Any) -> None:
        """Give a command; a child that is gone is noticed by `receive`."""
        try:
            self._connection.send((name, arguments))
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive(self, until: float) -> Any:
        """The result of the last command; raises _Lost."""
        reply = self._receive(until)
        assert isinstance(reply, Reply)
        self.rss = reply.rss
        self.base_rss = self.base_rss or reply.rss
        return reply.value

    def _receive(self, until: float) -> Any:
        try:
            if not self._connection.poll(max(0.0, until - time.monotonic())):
                raise _Lost("hung")
            message = self._connection.recv()
        except (EOFError, OSError):  # OSError also says that it died within a message
            raise _Lost("died") from None
        if isinstance(message, Failure) and message.bad_input:
            raise UserError(message.text)
        if isinstance(message, Failure):
            raise _Lost(f"raised\n{message.text}")
        return message

    def stop(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.join()
            self._process = None

    def replace(self) -> None:
        """Kill the process and start another; the episodes of its envs are gone."""
        self.stop()
        self._start()

    def free(self) -> None:
        """Stop for good."""
        self.stop()
        if self._memory is not None:
            del self.shared
            self._memory.close()
            self._memory.unlink()


@dataclass(slots=True)
class _Part:
    """Local envs of one child, and the rows of a call that they are."""

    local: list[int]
    rows: list[int]

    def of(self, env_ids: set[int]) -> _Part:
        """Only those in `envs`."""
        both = [(place, row) for place, row in zip(self.local, self.rows, strict=True) if place in env_ids]
        return _Part([place for place, _ in both], [row for _, row in both])


class ProcessVecEnv:
    """`embodied_rl.vec_env.VecEnv` over simulators in watched child processes, on the CPU.

    A child that dies, raises or leaves a command unanswered is killed and replaced. Its episodes come back as failed,
    so that they are run again; all but the one whose command alone was under way are also `lost`. A child that leaks is
    replaced when a reset finds no other running episode in it, and at twice `max_growth` in any case.

    Args:
        factory: opens a child's simulator; must be importable by name. If it has an attribute `why_no_processes` that
            is not None, it is refused with that line.
        num_envs: N, shared out evenly.
        processes: number of children.
        deadline: seconds within which a command must be answered.
        start_deadline: seconds within which a new simulator must be there.
        max_growth: bytes by which a child's resident memory may grow after its first reset.
        say: gets one line about each replacement.

    Attributes:
        replaced: replacements by reason: died, hung, raised, grew.

    Raises:
        UserError: if a simulator does not start, if a child is lost again and again without a step in between, and what
            UserError a simulator raises.

    Example:
        >>> with closing(ProcessVecEnv(MujocoFactory(...), num_envs=32, processes=4)) as env:
        ...     env.reset([0], [spec])
    """

    def __init__(
        self,
        factory: EnvFactory,
        num_envs: int,
        *,
        processes: int,
        deadline: float = 60.0,
        start_deadline: float = 300.0,
        max_growth: int = 1 << 30,
        say: Callable[[str], None] | None = None,
    ) -> None:
        if not 1 <= processes <= num_envs:
            raise UserError(f"{num_envs} envs need between 1 and {num_envs} processes, got {processes}.")
        reason = getattr(factory, "why_no_processes", None)
        if reason is not None:
            raise UserError(reason)
        self.num_envs = num_envs
        self.replaced: Counter[str] = Counter()
        self._say = say or (lambda line: None)
        self._deadline = deadline
        self._max_growth = max_growth
        self._in_a_row = [0] * processes
        self._children: list[_Child] = []
        self._place: list[tuple[int, int]] = []
        try:
            for index, env_ids in enumerate(np.array_split(np.arange(num_envs), processes)):
                self._children.append(_Child(factory, len(env_ids), start_deadline))
                self._place += [(index, local) for local in range(len(env_ids))]
        except _Lost as lost:
            self.close()
            raise UserError(f"the simulator did not start: it {lost}") from None
        except BaseException:  # also Ctrl-C: no process and no shared memory is left behind
            self.close()
            raise
        self.info: EnvInfo = self._children[0].info

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; where the simulator breaks, the first step says so."""
        parts = self._parts(env_ids)
        with self._locked(parts):
            for index, part in parts.items():
                child = self._children[index]
                self._recycle(index, part.local)
                child.held -= set(part.local)
                child.live -= set(part.local)
                child.blamed -= set(part.local)
                child.send("reset", part.local, [episodes[row] for row in part.rows])
            for index, part, _ in self._results(parts):
                self._children[index].held |= set(part.local)
                self._children[index].live |= set(part.local)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`; the episodes of a simulator that broke are `failed`."""
        arrays = action_array(actions)
        if len(arrays) != len(env_ids):
            raise ValueError(f"{len(env_ids)} envs for {len(arrays)} rows of actions")
        out = ChunkResult.zeros(*arrays.shape[:2])
        out.failed[:] = True
        parts = self._parts(env_ids)
        with self._locked(parts):
            there = {index: part.of(self._children[index].live) for index, part in parts.items()}
            there = {index: part for index, part in there.items() if part.rows}
            for index, part in there.items():
                self._children[index].send("step", part.local, arrays[part.rows])
            for index, part, values in self._results(there):
                result = ChunkResult.from_numpy(**values)
                out.put(part.rows, result)
                over = (result.terminated | result.truncated | result.failed).tolist()
                self._children[index].live -= {place for place, end in zip(part.local, over, strict=True) if end}
                self._in_a_row[index] = 0
            for index, part in parts.items():
                blamed = self._children[index].blamed
                out.lost[part.rows] = torch.tensor([place not in blamed for place in part.local])
        out.lost &= out.failed
        return out

    def observe(self, env_ids: Sequence[int], out: Observation) -> list[int]:
        """As `VecEnv.observe`; rows whose simulator broke keep what they held."""
        parts = self._parts(env_ids)
        lost = set(range(len(env_ids)))
        with self._locked(parts):
            there = {index: part.of(self._children[index].held) for index, part in parts.items()}
            there = {index: part for index, part in there.items() if part.rows}
            for index, part in there.items():
                self._children[index].send("observe", part.local)
            for index, part, (instruction, unseen) in self._results(there):
                _copy_rows(self._children[index].shared, out, part.rows)
                for row, text in zip(part.rows, instruction, strict=True):
                    out.instruction[row] = text
                lost -= set(part.rows) - {part.rows[place] for place in unseen}
        return sorted(lost)

    def state(self, env_ids: Sequence[int]) -> torch.Tensor:
        """The state of these envs without their pictures, of a simulator that has `state`: float32 [N, S].

        Raises:
            SimulatorFailed: if the simulator of one of them broke.
            NotImplementedError: if it has no `state`.
        """
        out = torch.zeros(len(env_ids), self.info.state_dim)
        parts = self._parts(env_ids)
        seen = 0
        with self._locked(parts):
            there = {index: part for index, part in parts.items() if self._children[index].held.issuperset(part.local)}
            for index, part in there.items():
                self._children[index].send("state", part.local)
            for _, part, values in self._results(there):
                if isinstance(values, str):
                    raise NotImplementedError(values)
                out[part.rows] = torch.from_numpy(values)
                seen += len(part.rows)
        if seen < len(env_ids):
            raise SimulatorFailed("the simulator of an episode broke, so there is no state of it")
        return out

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """As `VecEnv.frame`."""
        parts = self._parts([env_id])
        with self._locked(parts):
            ((index, part),) = parts.items()
            child = self._children[index]
            if not child.held.issuperset(part.local):
                raise SimulatorFailed("the simulator of this episode broke, so there is no frame of it")
            child.send("frame", part.local[0], camera, size)
            for _, _, image in self._results(parts):
                if isinstance(image, str):
                    raise NotImplementedError(image)
                return image
        raise SimulatorFailed("the simulator broke while it rendered a frame")

    def task_states(self) -> Any:
        """Initial states by task, those to train on and those held out, of a simulator that says them."""
        child = self._children[0]
        with child.lock:
            child.send("task_states")
            try:
                return child.receive(time.monotonic() + self._deadline)
            except _Lost as lost:
                raise UserError(f"the simulator did not say its initial states: it {lost}") from None
            finally:
                child.base_rss = 0  # of after the first reset

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Kill the processes and free the shared memory."""
        ended, self._children = self._children, []  # first, so that no thread replaces one any more
        for child in ended:
            child.free()

    def _parts(self, env_ids: Sequence[int]) -> dict[int, _Part]:
        """The rows of a call by the child that they concern, children in ascending order."""
        parts: dict[int, _Part] = {}
        for row, env_id in enumerate(env_ids):
            index, local = self._place[env_id]
            part = parts.setdefault(index, _Part([], []))
            part.local.append(local)
            part.rows.append(row)
        return dict(sorted(parts.items()))

    def _locked(self, parts: dict[int, _Part]) -> ExitStack:
        """Hold the children of a call; always taken in ascending order, so that two calls cannot block each other."""
        stack = ExitStack()
        for index in parts:
            stack.enter_context(self._children[index].lock)
        return stack

    def _results(self, parts: dict[int, _Part]) -> Iterator[tuple[int, _Part, Any]]:
        """The answers to the commands just sent; a child that has none is replaced."""
        until = time.monotonic() + self._deadline
        for index, part in parts.items():
            try:
                value = self._children[index].receive(until)
            except _Lost as lost:
                if len(part.local) == 1:
                    self._children[index].blamed |= set(part.local)
                self._replace(index, str(lost))
            else:
                yield index, part, value

    def _recycle(self, index: int, local: Sequence[int]) -> None:
        """Replace a child that grew too much, if no other episode is lost by it or it grew far too much."""
        child = self._children[index]
        growth = child.rss - child.base_rss
        if growth > 2 * self._max_growth or (growth > self._max_growth and not child.live - set(local)):
            self._replace(index, "grew")

    def _replace(self, index: int, reason: str) -> None:
        """Start another child until one comes up; UserError after too many in a row."""
        while True:
            self.replaced[reason.split()[0]] += 1
            what, *details = reason.strip().splitlines()
            why = f"{what} ({details[-1].strip()})" if details else what
            self._say(f"Simulator process {index} {why}: replaced, the episodes in it run again.")
            self._in_a_row[index] += reason != "grew"
            if self._in_a_row[index] > _MAX_IN_A_ROW:
                raise UserError(
                    f"a simulator process was lost {self._in_a_row[index]} times without a step in between; the last "
                    f"time it {why}. Look for what it needs, or leave --env.processes out."
                )
            try:
                self._children[index].replace()
            except _Lost as lost:
                reason = str(lost)
            else:
                return


def _copy_rows(shared: Observation, out: Observation, rows: list[int]) -> None:
    """Copy the first rows of `shared` into `rows` of `out`, with NumPy: torch's indexed copy of bytes is slower."""
    for source, target in ((shared.images, out.images), (shared.proprio, out.proprio), (shared.state, out.state)):
        if source is not None and target is not None:
            target.numpy()[rows] = source.numpy()[: len(rows)]

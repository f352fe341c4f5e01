"""The learner in virtual time: what `Learner` and `GroupUpdate` cut an update into, each part at its cost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from embodied_rl.autotune.virtual import Machine
from embodied_rl.autotune.work import Work


class VirtualLearner:
    """Takes its time for updates. shared: whether episodes run at the moment, which may leave it fewer servers.

    streams: the first pass over a batch begins with `add`, as its groups come, of which `correct` was told; further
    passes are left to `update`, as they are to `GroupUpdate.finish`. Other methods return when their work is done.
    """

    def __init__(self, machine: Machine, work: Work, shared: Callable[[], bool], *, streams: bool) -> None:
        self._machine, self._work, self._shared, self._streams = machine, work, shared, streams
        costs = machine.costs
        self._cost = costs.learn
        self._again = costs.evaluated
        self._size = work.minibatch_groups or work.groups
        self._groups = 0  # of the present minibatch
        self._pending = 0
        self._pieces: list[int] = []  # rows; of the present minibatch
        self._whole: list[list[int]] = []
        self._due = False
        self._stale: deque[tuple[int, int]] = deque()  # group and rows of what is still to be evaluated
        self._correcting = False
        self._told = self._added = 0

    def correct(self, stale: int) -> None:
        """Begin to evaluate the stale rows of the next group, behind those of the groups before."""
        self._stale += [(self._told, rows) for rows in self._in_order(stale)]
        self._told += 1
        self._correct()

    def _correct(self) -> None:
        if self._correcting or not self._stale:
            return
        self._correcting = True

        def done() -> None:
            self._correcting = False
            self._stale.popleft()
            self._correct()

        self._machine.device(self._again).use("evaluate", self._again.of(self._stale[0][1]), done)

    def add(self, rows: int) -> None:
        """Take the next group of the batch, as soon as its stale rows are evaluated."""
        while self._streams and self._stale and self._stale[0][0] <= self._added:
            self._machine.clock.step()
        self._added += 1
        if self._groups == self._size:
            self._end_minibatch()
        self._groups += 1
        self._pending += rows
        if self._groups == self._size or (self._work.parts and self._pending >= self._work.microbatch):
            self._take_pending()

    def update(self, groups: Sequence[int], stale: Sequence[int] = ()) -> None:
        """Do what is left of the update with a batch of groups with that many rows; stale: rows of older policies, if
        they are not corrected yet.
        """
        if not groups:
            return
        if self._streams:
            self._finish()
            return
        again = sum(groups if self._work.recompute else stale)
        self._play([self._again.of(rows) for rows in self._in_order(again)], "evaluate")
        if self._work.minibatch_size or not self._work.minibatch_groups:
            self._update_by_rows(sum(groups))
            return
        for rows in groups:
            self.add(rows)
        self._finish()

    def _update_by_rows(self, rows: int) -> None:
        parts = max(1, round(rows / (self._work.minibatch_size or rows)))
        for _ in range(self._work.epochs):
            for minibatch in _even(rows, parts):
                self._learn(self._in_order(minibatch))
                self._step()

    def _finish(self) -> None:
        self._end_minibatch()
        self._step_if_due()
        for _ in range(1, self._work.epochs):
            for minibatch in self._whole:
                for piece in minibatch:
                    self._learn(self._cut(piece))
                self._step()
        self._whole = []

    def _take_pending(self) -> None:
        self._step_if_due()
        self._learn(self._cut(self._pending))
        self._pieces.append(self._pending)
        self._pending = 0

    def _end_minibatch(self) -> None:
        if self._pending:
            self._take_pending()
        self._whole.append(self._pieces)
        self._pieces, self._groups, self._due = [], 0, True

    def _step_if_due(self) -> None:
        if self._due:
            self._due = False
            self._step()

    def _step(self) -> None:
        if self._cost.fixed:
            self._play([self._cost.fixed], "step", 1)

    def _in_order(self, rows: int) -> list[int]:
        """Micro-batches of minibatches of rows: as large as they may be, and what is left."""
        most = self._work.microbatch
        return [min(most, rows - first) for first in range(0, rows, most)]

    def _cut(self, rows: int) -> list[int]:
        """Micro-batches of groups; those of a given minibatch of groups are of equal size, as many for each thread."""
        if self._work.minibatch_groups is None:
            return self._in_order(rows)
        threads = self._machine.costs.servers_of(self._cost)
        parts = -(-rows // self._work.microbatch)
        return _even(rows, min(rows, -(-parts // threads) * threads))

    def _learn(self, rows: Sequence[int]) -> None:
        self._play([self._machine.costs.learn_call + self._cost.row * count for count in rows])

    def _play(self, pieces: Sequence[float], stage: str = "learn", servers: int | None = None) -> None:
        """Take pieces of work one after the other, so many at a time, and wait for them all."""
        costs = self._machine.costs
        most = costs.learners if self._shared() else None
        left, open_ = deque(pieces), 0

        def more() -> None:
            nonlocal open_
            if left:
                open_ += 1
                self._machine.device(self._cost).use(stage, left.popleft(), done)

        def done() -> None:
            nonlocal open_
            open_ -= 1
            more()

        for _ in range(servers or most or costs.servers_of(self._cost)):
            more()
        while open_:
            self._machine.clock.step()


def _even(rows: int, parts: int) -> list[int]:
    """So many parts of about equal size."""
    return [rows // parts + (part < rows % parts) for part in range(parts)]

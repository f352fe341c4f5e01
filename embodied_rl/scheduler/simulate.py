"""A schedule played on paper: the pipelined scheduler's rules and stage costs in virtual time, without threads.

Which episode runs next and when a batch is whole is decided by the real `GroupStream`; what is modelled is how long
stages take and who waits for whom. Used to predict a plan before it is tried.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from embodied_rl.rollout.groups import Closed, GroupStream
from embodied_rl.rollout.lane import make_lanes
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.rollout.store import Recording
from embodied_rl.rollout.timeline import Span
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig
from embodied_rl.scheduler.costs import Cost, Costs
from embodied_rl.types import EpisodeResult, EpisodeSpec


@dataclass(frozen=True, slots=True)
class Work:
    """What an iteration is made of. length: decisions of an episode; microbatch: rows that are learned in one go."""

    worlds: int
    groups: int
    group_size: int
    length: Callable[[EpisodeSpec], int]
    microbatch: int = 32


@dataclass(frozen=True, slots=True)
class Played:
    """The measured part of a run: seconds and decisions of `iterations` iterations, and what each server did when."""

    seconds: float
    rows: int
    iterations: int
    spans: list[Span]

    @property
    def seconds_per_row(self) -> float:
        """What a schedule is judged by."""
        return self.seconds / self.rows


class _Clock:
    """Virtual time: a heap of what happens when; ties in the order of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, action))

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, action = heapq.heappop(self._heap)
        action()


class _Device:
    """Servers with one queue, first come, first served."""

    def __init__(self, clock: _Clock, name: str, servers: int, spans: list[Span]) -> None:
        self._clock, self._name, self._spans = clock, name, spans
        self._free = list(range(servers))[::-1]
        self._queue: deque[tuple[str, float, Callable[[], None]]] = deque()

    def use(self, stage: str, seconds: float, done: Callable[[], None]) -> None:
        """Occupy a server, as soon as one is free, and then call `done`."""
        self._queue.append((stage, seconds, done))
        self._serve()

    def _serve(self) -> None:
        while self._free and self._queue:
            stage, seconds, done = self._queue.popleft()
            self._begin(self._free.pop(), stage, seconds, done)

    def _begin(self, server: int, stage: str, seconds: float, done: Callable[[], None]) -> None:
        began = self._clock.now

        def end() -> None:
            self._spans.append(Span(f"{self._name} {server}", stage, began, self._clock.now, 0.0))
            self._free.append(server)
            done()
            self._serve()

        self._clock.after(seconds, end)


@dataclass(slots=True)
class _Lane:
    """Slots that go together; `running` holds [spec, decisions left, decisions] of each filled one."""

    size: int
    running: list[list[EpisodeSpec | int]] = field(default_factory=list)


class _Pipeline:
    """One run. spread: a lane's worlds step on all servers at once, one lane at a time, as a lockstep loop does."""

    def __init__(self, costs: Costs, work: Work, config: SchedulerConfig, *, spread: bool, lanes: int) -> None:
        self.clock = _Clock()
        self.spans: list[Span] = []
        self._costs, self._work, self._spread = costs, work, spread
        pipelined = config if isinstance(config, PipelinedConfig) else None
        self._streams = pipelined is not None and pipelined.overlap == "stream"
        self._wait = pipelined.act_wait_ms / 1e3 if pipelined else 0.0
        self.stream = GroupStream(
            EpisodeSampler(0, {"plan": range(64)}, work.group_size), groups=work.groups, keep=None, max_factor=1.0,
            max_staleness=pipelined.staleness if pipelined else 0,
        )  # fmt: skip
        self._devices: dict[str, _Device] = {}
        self._lanes = [_Lane(len(lane.slots)) for lane in make_lanes(work.worlds, lanes)]
        self._parked = deque(self._lanes)
        self._queue: list[_Lane] = []
        self._acting = False
        self._deadline_set = False
        self._rows_early = 0

    def run(self, warm_up: int, measured: int) -> Played:
        """Play the run; the first `warm_up` iterations do not count, nor does what runs ahead of the last one."""
        last = warm_up + measured
        self.stream.begin(0, last + 2 + self.stream.max_staleness)
        self._wake()
        rows, began, cut = 0, 0.0, 0
        for version in range(last):
            if version == warm_up:
                began, cut = self.clock.now, len(self.spans)
            batch = self._gather()
            self._learn(batch - self._rows_early, step=True)
            self._rows_early = 0
            rows += batch if version >= warm_up else 0
            self.stream.version = version + 1
            self._wake()
        return Played(self.clock.now - began, rows, measured, self.spans[cut:])

    # The learner: the only one that waits for things in turn

    def _gather(self) -> int:
        rows = 0
        while not isinstance(event := self.stream.take(), Closed):
            if event is None:
                self.clock.step()
                continue
            count = sum(member.result.num_decisions for member in event.members)
            rows += count
            if self._streams:
                self._rows_early += count
                self._learn(count, step=False)
        return rows

    def _learn(self, rows: int, *, step: bool) -> None:
        cost = self._costs.learn
        left = deque(
            [cost.row * min(self._work.microbatch, rows - first) for first in range(0, rows, self._work.microbatch)]
        )
        busy = len(self._parked) < len(self._lanes)
        most = self._costs.learners if busy else None
        self._play("learn", cost, left, most or self._costs.servers_of(cost))
        if step and cost.fixed:
            self._play("step", cost, deque([cost.fixed]), 1)

    def _play(self, stage: str, cost: Cost, left: deque[float], side_by_side: int) -> None:
        """Take pieces of work one after the other, so many at a time, and wait for them all."""
        open_ = [0]

        def more() -> None:
            if left:
                open_[0] += 1
                self._device(cost).use(stage, left.popleft(), done)

        def done() -> None:
            open_[0] -= 1
            more()

        for _ in range(side_by_side):
            more()
        while open_[0]:
            self.clock.step()

    # The rollout

    def _device(self, cost: Cost) -> _Device:
        if cost.device not in self._devices:
            servers = self._costs.servers_of(cost)
            self._devices[cost.device] = _Device(self.clock, cost.device, servers, self.spans)
        return self._devices[cost.device]

    def _wake(self) -> None:
        while self._parked and (spec := self.stream.next_episode()) is not None:
            lane = self._parked.popleft()
            self._begin(lane, spec)
            self._observe(lane)

    def _begin(self, lane: _Lane, spec: EpisodeSpec) -> None:
        length = self._work.length(spec)
        lane.running.append([spec, length, length])

    def _observe(self, lane: _Lane) -> None:
        """Fill the free slots; then the lane waits for the policy or is parked. Frames are part of a step's cost."""
        while len(lane.running) < lane.size and (spec := self.stream.next_episode()) is not None:
            self._begin(lane, spec)
        if lane.running:
            self._queue.append(lane)
            self._act()
        else:
            self._parked.append(lane)
            self._wake()

    def _act(self) -> None:
        if self._acting or not self._queue:
            return
        waiting = len(self._queue) + len(self._parked) < len(self._lanes)
        if self._wait and waiting:
            if not self._deadline_set:
                self._deadline_set = True
                self.clock.after(self._wait, self._decide)
            return
        self._decide()

    def _decide(self) -> None:
        self._deadline_set = False
        if self._acting or not self._queue:
            return
        lanes, self._queue, self._acting = self._queue, [], True
        cost = self._costs.act

        def done() -> None:
            self._acting = False
            for lane in lanes:
                self._simulate(lane)
            self._act()

        self._device(cost).use("act", cost.of(sum(len(lane.running) for lane in lanes)), done)

    def _simulate(self, lane: _Lane) -> None:
        cost, rows = self._costs.simulate, len(lane.running)
        if self._spread:
            seconds = cost.of(rows) / min(self._costs.servers_of(cost), rows)
            lockstep = Cost(f"{cost.device} (all)" if self._costs.servers_of(cost) > 1 else cost.device, cost.row)
            self._device(lockstep).use("simulate", seconds, lambda: self._stepped(lane))
        else:
            shares = [len(rows) for rows in np.array_split(np.arange(rows), min(self._costs.steppers, rows))]
            left = [len(shares)]

            def done() -> None:
                left[0] -= 1
                if not left[0]:
                    self._stepped(lane)

            for share in shares:
                self._device(cost).use("simulate", cost.of(share), done)

    def _stepped(self, lane: _Lane) -> None:
        going = []
        for spec, left, length in lane.running:
            assert isinstance(spec, EpisodeSpec)
            assert isinstance(left, int)
            assert isinstance(length, int)
            if left > 1:
                going.append([spec, left - 1, length])
                continue
            result = EpisodeResult(spec, True, True, False, 1.0, length, length)
            self.stream.add(Recording(result))
        lane.running = going
        self._observe(lane)


def play(
    costs: Costs, work: Work, config: SchedulerConfig, *, warm_up: int = 1, measured: int = 3, lockstep: int = 0
) -> Played:
    """How long `work` takes under a scheduler. lockstep: instead cut the worlds into that many halves or parts, each of
    which steps on all cores while the policy acts for another, and learn when the rollout is over.

    Under `SerialConfig` all worlds are one such part.
    """
    if isinstance(config, PipelinedConfig) and not lockstep:
        same = costs.act.device == costs.simulate.device
        lanes = config.num_stages(costs.servers_of(costs.simulate), work.worlds, cpu=same)
        return _Pipeline(costs, work, config, spread=False, lanes=lanes).run(warm_up, measured)
    return _Pipeline(costs, work, config, spread=True, lanes=lockstep or 1).run(warm_up, measured)

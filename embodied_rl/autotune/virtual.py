"""Virtual time: what happens when, and devices that are busy for a while."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

from embodied_rl.autotune.costs import Cost, Costs
from embodied_rl.utils.profiler import Span


class Clock:
    """A heap of what happens when; ties in the order of asking."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` then."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, action))

    def step(self) -> None:
        """Let the next thing happen."""
        self.now, _, action = heapq.heappop(self._heap)
        action()


class Device:
    """Servers with one queue, first come, first served."""

    def __init__(self, clock: Clock, name: str, servers: int, spans: list[Span]) -> None:
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


class Machine:
    """The devices of a cost model, each there once it is asked for, and what their servers did when."""

    def __init__(self, costs: Costs) -> None:
        self.clock = Clock()
        self.spans: list[Span] = []
        self.costs = costs
        self._devices: dict[str, Device] = {}

    def device(self, cost: Cost) -> Device:
        """The one that a stage runs on."""
        if cost.device not in self._devices:
            servers = self.costs.servers_of(cost)
            self._devices[cost.device] = Device(self.clock, cost.device, servers, self.spans)
        return self._devices[cost.device]
